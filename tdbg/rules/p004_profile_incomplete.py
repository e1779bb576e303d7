"""TD-P004: what was asked to be profiled was not, or not all of it."""

from collections import Counter
from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations import Observed
from tdbg.core.observations.profiler import (
    BUDGET_USED,
    ProfilingDone,
    TraceLost,
    TraceWritten,
    WindowOpened,
    WindowYielded,
)
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule
from tdbg.rules.view import View


@RULES.add
class ProfileIncomplete(KindsRule):
    """Says which windows of `tdbg profile` did not come, or ended early, and why.

    What it does: With the flag PROFILER on (`tdbg profile`) it speaks when the program ended before the first
    window, when a window was cut short (the program ended or was killed, an evaluation or a profiler of the
    program's own began), when a trace could not be written, and when the bytes that `--disk-budget` allows were
    used up.

    Why it matters: A trace with fewer steps than asked for, or of other steps, is read as if it were the whole.

    Example:
        TD-P004 warning: nothing was profiled on rank 0: 3 steps seen, but the next window ends at step 5

    What to do: Let the program run longer, or choose earlier steps (`--wait 0`, `--window 2:3`) and fewer of them.

    Thresholds: None.
    """

    code = "TD-P004"
    title = "profile incomplete"
    severity = "warning"
    observes = (WindowOpened, TraceWritten, TraceLost, WindowYielded, ProfilingDone)

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[str, str] = {}  # by process: the window it is in
        self._traces: Counter[str] = Counter()  # by process

    def evaluate(self, process: ProcessDir, seen: Observed) -> Iterable[tuple[str, Finding]]:
        self._traces[process.label] += isinstance(seen, TraceWritten)
        self._open.pop(process.label, None)
        if isinstance(seen, WindowOpened):
            self._open[process.label] = seen.text()
        elif isinstance(seen, ProfilingDone) and seen.missing:
            windows = seen.windows
            had = [f"{format_count(seen.steps, 'step')} in {format_count(windows, 'trace')}"] if windows else []
            yield "missing", self._make_missing_finding(process, seen.missing, windows, had)

    def finish(self, view: View) -> Iterable[Finding]:
        """A process that was killed could not say itself what is missing."""
        new: list[Finding] = []
        for found in view.list_rank_processes():
            label = found.process.label
            if label in self._open and view.is_gone(found):
                why = f"{view.describe_ending(found)} while {self._open[label]}"
                new += self.report_once(
                    self._given["missing"], self._make_missing_finding(found.process, why, self._traces[label], [])
                )
        return new

    def _make_missing_finding(self, process: ProcessDir, why: str, windows: int, had: list[str]) -> Finding:
        return self.make_finding(
            f"{'not all' if windows else 'nothing'} was profiled on {process.display_name}: {why}",
            rank=process.rank,
            phase="profile",
            evidence=had,
            try_next="raise --disk-budget, or record fewer steps, or a lighter --kind"
            if why == BUDGET_USED
            else "run longer, or choose earlier or fewer steps: --wait, --active, --window",
        )
