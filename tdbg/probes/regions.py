"""The program's own spans (`tdbg.region`): how long each took, told with the step's record."""

import threading
from typing import TYPE_CHECKING, ClassVar

from tdbg.core.events import Step
from tdbg.core.tables import join_limited
from tdbg.probes import PROBES, Probe

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor

MAX_NAMES = 256
REST = "(others)"


class Totals:
    """Seconds and calls by name, since they were last taken; many threads may add."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may have regions of its own
        self._found: dict[str, list[float]] = {}

    def add_call(self, name: str, seconds: float) -> None:
        """One call more. Cost: below 1 us."""
        with self._lock:
            row = self._found.get(name)
            if row is None:
                row = self._found.setdefault(name if len(self._found) < MAX_NAMES else REST, [0.0, 0])
            row[0] += seconds
            row[1] += 1

    def drain(self) -> dict[str, tuple[float, int]]:
        """What was added, by name, in the order of first use; it begins anew."""
        with self._lock:
            found, self._found = self._found, {}
        return {name: (seconds, int(calls)) for name, (seconds, calls) in found.items()}

    def clear(self) -> None:
        """Forget everything (in a forked child, where another thread may have held the lock)."""
        self._lock = threading.RLock()
        self._found = {}

    def __len__(self) -> int:
        return len(self._found)


TOTALS = Totals()


@PROBES.add
class Regions(Probe):
    """The time spent in each `tdbg.region` of the program, a step.

    Reads:  what the program's own ``with tdbg.region("name")`` added up.
    Emits:  one observation with each step record, over the steps since the one before; nothing without regions.
    Cost:   none without regions.
    Limits: host time. A region that runs in several threads at once adds up to more than the step.
    """

    name = "regions"
    levels = ("basic", "advanced", "extreme")
    fields: ClassVar[dict[str, str]] = {
        "names": "names of the regions, nested ones as outer/inner",
        "ms": "time in each, a step",
        "calls": "how often each was entered, a step",
        "steps": "over how many steps ms and calls are the mean",
    }

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._reported_at: int = monitor.step

    def step_ended(self, record: Step, optimizer: "Optimizer") -> None:
        self.report_regions(record.step)

    def run_ends(self) -> None:
        """What was added after the last record: there will be no further one."""
        self.report_regions(self.monitor.step)

    def report_regions(self, step: int) -> None:
        """Tell what was added since the last time."""
        if not len(TOTALS):
            self._reported_at = step
            return
        found, steps = TOTALS.drain(), max(step - self._reported_at, 1)
        self._reported_at = step
        rows = {name: (1e3 * seconds / steps, calls / steps) for name, (seconds, calls) in found.items()}
        slow = sorted(rows, key=lambda name: -rows[name][0])[:4]
        text = join_limited([f"{name} {rows[name][0]:.3g} ms" for name in slow], len(slow), len(rows))
        self.observe(
            f"{text} a step",
            step=step,
            names=list(rows),
            ms=[float(f"{ms:.4g}") for ms, _ in rows.values()],
            calls=[float(f"{calls:.4g}") for _, calls in rows.values()],
            steps=steps,
        )

    def forked(self) -> None:
        TOTALS.clear()
        self._reported_at = 0
