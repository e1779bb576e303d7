"""TD-S004: a schedule without effect."""

from collections import defaultdict
from collections.abc import Iterable

from tdbg.core.events import Cost, Event, Finding, Observation, ProbeOff, Switch
from tdbg.core.observations import Observed
from tdbg.core.observations.schedule import (
    PlateauJudged,
    RateChanged,
    Rates,
    SchedulerBuilt,
    SchedulerIdle,
    SchedulerStepped,
)
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, Reported, Rule, read_observations
from tdbg.rules._probe_presence import ProbePresence
from tdbg.rules.text import format_figure
from tdbg.rules.view import ProcessView, View

LEAST_STEPS = 20
LEAST_EPOCH = 1  # passes begun before the last one: within its first epoch a scheduler may have to wait
LATE_STARTERS = ("ReduceLROnPlateau", "SWALR")


class _State(Reported):
    blind: bool = False  # part of the run was not looked at, or the rate changed without a scheduler

    def __init__(self) -> None:
        self.built: dict[int, str] = {}  # number of an optimizer -> class of its scheduler
        self.rates: dict[int, Rates] = {}
        self.stepped: set[int] = set()
        self.presence = ProbePresence("schedule")
        self.step_lines: dict[str, int] = {}  # class of a scheduler -> the line of the program that steps it


@RULES.add
class ScheduleIdle(Rule):
    """Says when a scheduler was built but steers nothing.

    What it does: With the flags LR or SCHEDULING it speaks when a scheduler of an optimizer at work has not
    stepped in three epochs, or at the end of a run of at least 20 steps that went beyond its first epoch; and
    when it steps another optimizer than the one that updates the parameters, whose rate it then does not change.

    Why it matters: The run trains at a constant rate, without the warm-up or decay that its configuration shows.
    Nothing fails.

    Example:
        TD-S004 warning: CosineAnnealingLR was built but never stepped in 400 steps, rank 0

    Where the code that built the scheduler does call its `step()`, in a line that was not reached, it is
    a note: some programs wait there for a worse result.

    What to do: Call `scheduler.step()`. Where it does step: build it from the optimizer that is used in the end,
    after the last time that one was built anew (after `model.to`, after a resume).

    Thresholds: Three epochs; 20 steps. Silent for schedulers that may start late (ReduceLROnPlateau, SWALR), for
    classes with a `step` of their own, when the rate changed all the same, and when the flag was off for a time, or
    what it sees cost more than the budget allows.
    """

    code = "TD-S004"
    title = "schedule without effect"
    severity = "warning"
    leads_to = ("TD-S002",)
    listens = (Observation, Switch, ProbeOff, Cost)
    observes = (SchedulerBuilt, SchedulerStepped, PlateauJudged, RateChanged, SchedulerIdle)

    def __init__(self) -> None:
        self._states: defaultdict[str, _State] = defaultdict(_State)
        self._given: list[Finding] = []

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        state = self._states[process.label]
        if isinstance(event, Cost):
            state.presence.add_event(event)
            state.blind = state.blind or state.presence.is_absent
        elif not isinstance(event, Observation):
            state.blind = True
        for seen in read_observations(event, (SchedulerBuilt, SchedulerStepped, PlateauJudged, RateChanged)):
            self._add_observation(state, seen)
        idle = SchedulerIdle.from_event(event)
        if idle is not None and not state.is_reported:
            state.is_reported = True
            return self.report_from(process, self._given, self._evaluate_idle(process, state, idle))
        return ()

    def _add_observation(self, state: _State, seen: Observed) -> None:
        if isinstance(seen, SchedulerBuilt) and not seen.own_step:
            state.built.setdefault(seen.which, seen.scheduler)
            state.rates.setdefault(seen.which, seen.rates)
            if seen.step_line is not None:
                state.step_lines[seen.scheduler] = seen.step_line
        elif isinstance(seen, SchedulerStepped | PlateauJudged):
            state.stepped.add(seen.which)
        elif isinstance(seen, RateChanged) and seen.before is not None:
            state.blind = True

    def _evaluate_idle(self, process: ProcessDir, state: _State, idle: SchedulerIdle) -> Finding:
        if idle.kind == "never":
            what = f"{idle.scheduler} was built but has never stepped in {format_count(idle.epochs or 0, 'epoch')}"
            return self._make_idle_finding(process, idle.step, what, idle.text(), state.step_lines.get(idle.scheduler))
        what = f"{idle.scheduler} steers an optimizer that does not update: the rate in use does not follow it"
        return self._make_idle_finding(process, idle.step, what, idle.text(), elsewhere=True)

    def finish(self, view: View) -> Iterable[Finding]:
        """A run that ended in good order, and never stepped a scheduler it had built."""
        found: list[Finding] = []
        for seen in view.processes.values():
            state = self._states.get(seen.process.label)
            idle = [which for which in state.built if which not in state.stepped] if state is not None else []
            if state is None or state.is_reported or state.blind or not idle or not _has_continued(seen):
                continue
            name = state.built[idle[0]]
            if name in LATE_STARTERS:
                continue
            what = f"{name} was built but never stepped in {format_count(seen.step, 'step')}"
            detail = f"the learning rate was {format_figure(state.rates[idle[0]])} from beginning to end"
            new = self._make_idle_finding(seen.process, 1, what, detail, state.step_lines.get(name))
            found += self.report_from(seen.process, self._given, new)
        return found

    def _make_idle_finding(
        self,
        process: ProcessDir,
        step: int,
        what: str,
        detail: str,
        step_line: int | None = None,
        *,
        elsewhere: bool = False,
    ) -> Finding:
        if step_line is not None:
            return self.make_finding(
                f"{what}, {process.display_name}",
                first_step=step,
                rank=process.rank,
                phase="optimizer",
                severity="info",
                evidence=[detail],
                grade=SchedulerBuilt.EVIDENCE.grade_word,
                cause=f"the program calls its step() in line {step_line}, which was not reached",
                try_next="check the condition around that line; this is fine if it waits for a metric to get worse",
            )
        return self.make_finding(
            f"{what}, {process.display_name}",
            first_step=step,
            rank=process.rank,
            phase="optimizer",
            evidence=[detail],
            grade=SchedulerBuilt.EVIDENCE.grade_word,
            cause="the optimizer was recreated after the scheduler"
            if elsewhere
            else "scheduler.step() is never called",
            try_next="build the scheduler from the optimizer in use" if elsewhere else "call scheduler.step()",
        )


def _has_continued(seen: ProcessView) -> bool:
    """True for a process that ended in good order after enough steps and, where epochs are known, several of them."""
    if seen.end is None or seen.end.reason != "exit" or seen.step < LEAST_STEPS:
        return False
    epoch = seen.last.epoch if seen.last is not None else None
    return epoch is None or epoch >= LEAST_EPOCH
