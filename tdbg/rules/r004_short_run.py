"""TD-R004: fewer steps than the program planned."""

from collections.abc import Iterable

from tdbg.core.events import Event, Finding, Observation, Plan
from tdbg.core.observations import Evidence
from tdbg.core.observations.early_stopping import StoppingCheck
from tdbg.core.rule_base import Needs
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, Rule
from tdbg.rules.view import ProcessView, View


@RULES.add
class ShortRun(Rule):
    """Says that a run ended before the number of steps it had planned.

    What it does: Where a framework says how many steps it means to take (Trainer, Lightning, a scheduler's
    total), compares that with the steps taken, in a process that ended as if all were well. It is `info`,
    since early stopping does this on purpose, and a warning when an exception was logged and swallowed. It is
    silent where the flag EARLY_STOPPING has seen a stopper ask for the end, and no step came after that.

    Why it matters: A program that catches its own crash prints "done" and exits 0 with half its steps taken.

    Example:
        TD-R004 info: rank 0 took 80 of 100 planned steps (HF Trainer)

    What to do: Look for TD-R003 in the same run (an exception that was swallowed), for early stopping, and for
    a loader that is shorter than the schedule thinks.

    Thresholds: One step fewer than planned.
    """

    code = "TD-R004"
    title = "fewer steps than planned"
    severity = "warning"
    grade = Evidence.LOCAL.grade_word
    listens = (Plan, Observation)
    observes = (StoppingCheck,)
    needs = Needs(events=(Plan,))

    def __init__(self) -> None:
        self._stopped: dict[str, int] = {}  # process -> the step at which an early stopper asked for the end

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        check = StoppingCheck.from_event(event)
        if check is not None and check.stop:
            self._stopped[process.label] = check.step
        return ()

    def finish(self, view: View) -> Iterable[Finding]:
        for found in view.list_rank_processes():
            if not found.swallowed and self._stopped.get(found.process.label, -1) >= found.step:
                continue
            planned = found.plan.steps if found.plan is not None else None
            if planned and 0 < found.step < planned and view.is_gone(found) and view.describe_ending(found) == "ended":
                return (self._make_short_finding(found, planned),)
        return ()

    def _make_short_finding(self, found: ProcessView, planned: int) -> Finding:
        source = f" ({found.plan.source})" if found.plan is not None and found.plan.source else ""
        return self.make_finding(
            f"rank {found.rank} took {found.step:,} of {format_count(planned, 'planned step')}{source}",
            severity=self.severity if found.swallowed else "info",
            first_step=found.step,
            rank=found.rank,
            evidence=[f"{format_count(found.swallowed, 'exception')} logged and swallowed before"]
            * bool(found.swallowed),
            cause="" if found.swallowed else "early stopping, a resumed run, or a loader shorter than planned",
            try_next="see TD-R003 of this run" if found.swallowed else "",
        )
