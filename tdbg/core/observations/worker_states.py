"""What the probe `worker-states` sees."""

from tdbg.core.events import doc
from tdbg.core.observations import Evidence, Observed
from tdbg.core.tables import join_limited


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
