"""What the probe `worker-states` sees."""

from typing import Any

from tdbg.core.events import doc
from tdbg.core.observations import Evidence, Observed
from tdbg.core.tables import format_count, join_limited


class SameRandomState(Observed):
    """Workers of a loader that draw the same random numbers."""

    PROBE = "worker-states"
    PART = "SAME"
    EVIDENCE = Evidence.LOCAL
    LEVEL = "W"

    dataset: str = doc("class of the dataset", "")
    source: str = doc("where the numbers come from: random, numpy.random, torch, or an attribute of the dataset", "")
    workers: list[int] = doc(
        "workers that shared one random state, both before and after their first fetch", factory=list
    )
    reported: int = doc("number of workers that reported their state", 0)
    has_init: bool = doc("the loader has a worker_init_fn", False)

    def text(self) -> str:
        """Which workers, and of what."""
        return f"{self.dataset}: workers {join_limited(self.workers, 8)} of {self.reported} draw the same random numbers from {self.source}"


class DrawnStates(Observed):
    """Generators that the first fetch of a loader that trains drew from, on a rank that is not alone."""

    PROBE = "worker-states"
    PART = "DRAWN"
    EVIDENCE = Evidence.LOCAL

    dataset: str = doc("class of the dataset", "")
    states: list[Any] = doc(
        "[source as above, checksum of its state before the fetch, and after it] of each, of all workers or of the process"
        " itself",
        factory=list,
    )

    def rows(self) -> list[tuple[str, int, int]]:
        """``states`` but for rows that were not written by this version of the probe."""
        rows = [row for row in self.states if isinstance(row, list) and len(row) == 3]
        return [(str(name), begin, end) for name, begin, end in rows if isinstance(begin, int) and isinstance(end, int)]

    def text(self) -> str:
        """How many, and of what."""
        return f"{self.dataset}: states of {format_count(len(self.states), 'generator')} that the first fetch drew from"
