"""TD-P004: what was asked to be profiled was not, or not all of it."""

from collections.abc import Iterable

from tdbg.events import Finding, Observation
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule
from tdbg.rules.text import counted
from tdbg.rundir import ProcessDir


@RULES.add
class ProfileIncomplete(KindsRule):
    """Says which windows of `tdbg profile` did not come, or ended early, and why.

    What it does: With the flag PROFILER on (`tdbg profile`) it speaks when the program ended before the first
    window, when a window was cut short (the program ended, an evaluation or a profiler of the program's own began),
    when a trace could not be written, and when the bytes that `--disk-budget` allows were used up.

    Why it matters: A trace with fewer steps than asked for, or of other steps, is read as if it were the whole.

    Example:
        TD-P004 warning: nothing was profiled on rank 0: 3 steps seen, and the next window needed 5

    What to do: Let the program run longer, or choose earlier steps (`--wait 0`, `--window 2:3`) and fewer of them.

    Thresholds: None.
    """

    code = "TD-P004"
    title = "profile incomplete"
    severity = "warning"
    probe = "profiler"

    def see(self, process: ProcessDir, event: Observation) -> Iterable[tuple[str, Finding]]:
        missing = event.values.get("missing")
        if event.part != "DONE" or not missing:
            return
        windows = event.values.get("windows", 0)
        had = [f"{counted(event.values['steps'], 'step')} in {counted(windows, 'trace')}"] if windows else []
        yield (
            "missing",
            self.found(
                f"{'not all' if windows else 'nothing'} was profiled on rank {process.rank}: {missing}",
                rank=process.rank,
                phase="profile",
                evidence=had,
                try_next="let it run longer, or choose earlier and fewer steps: --wait, --active, --window",
            ),
        )
