"""TD-S005: a schedule that does not fit the run."""

from collections.abc import Iterable
from typing import ClassVar

from tdbg.core.events import Event, Finding, Observation, Plan
from tdbg.core.observations.schedule import ScheduleOver, SchedulerStepped
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, ObservingRule
from tdbg.rules.text import format_figure
from tdbg.rules.view import View

LEAST_PLANNED = 20
NEAR = 0.1  # the schedule's length is the number of updates, but for so much
BARELY = 0.1  # of it was used
LEAST_ADVANCED = 3  # steps of a scheduler that tell its pace


class _State:
    scheduler: str = ""
    planned: int = 0
    advanced: int = 0
    updates: int = 0
    steps: int | None = None  # updates that the trainer means to do
    is_reported: bool = False


@RULES.add
class ScheduleMisfit(ObservingRule[_State]):
    """Says when a schedule is over long before the training is, or has barely begun at its end.

    What it does: With the flags LR or SCHEDULING it follows how often each scheduler steps. It speaks when
    CosineAnnealingLR runs past its T_max within the first epoch because it steps after each batch, or because it
    steps several times an update; when StepLR, MultiStepLR or ExponentialLR bring the rate down a million times
    within the first epoch; and when a schedule made for as many steps as the run has updates uses a tenth of them
    or less: at its end, or at its third step where a trainer has told how long the run is to be.

    Why it matters: The unit is wrong: epochs were meant and batches came, or the other way round. The rate swings
    up and down every few batches, is gone after the first epoch, or never decays.

    Example:
        TD-S005 warning: CosineAnnealingLR of 10 steps was over after 12 updates of the first epoch, rank 0

    What to do: Step the scheduler in the unit it was given: once an epoch for T_max in epochs, once an update for
    T_max in updates (batches / accumulation steps x epochs; under Accelerate times the number of processes).

    Thresholds: 5 % and two steps past the end; an epoch at least 1.5 times as long as the schedule; for a
    rate that is gone, 5 updates in a row with a step of the scheduler, in an epoch of 8 batches or more. Steps per
    update equal to the number of ranks are Accelerate's custom and do not count. A cosine that runs past its
    T_max over several epochs may be meant, and is not told.
    """

    code = "TD-S005"
    title = "schedule does not fit the run"
    severity = "warning"
    leads_to = ("TD-G003", "TD-G005", "TD-S002", "TD-S007")
    observes = (SchedulerStepped, ScheduleOver)
    kept = _State
    listens: ClassVar[tuple[type[Event], ...]] = (Observation, Plan)

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        """A trainer's plan is kept; observations go to `evaluate`."""
        if isinstance(event, Plan):
            self._states[process.label].steps = event.steps
            return ()
        return super().feed(process, event)

    def evaluate(self, process: ProcessDir, state: _State, seen: SchedulerStepped | ScheduleOver) -> Finding | None:
        if isinstance(seen, SchedulerStepped):
            return self._follow_schedule(process, state, seen) if seen.planned else None
        if state.is_reported:
            return None
        state.is_reported = True
        return self._make_over_finding(process, seen)

    def _follow_schedule(self, process: ProcessDir, state: _State, seen: SchedulerStepped) -> Finding | None:
        state.scheduler, state.planned = seen.scheduler, seen.planned or 0
        state.advanced, state.updates = seen.advanced, seen.updates
        if state.is_reported or not _will_barely_begin(state):
            return None
        state.is_reported = True
        return self._make_barely_finding(process, state, state.updates)

    def _make_over_finding(self, process: ProcessDir, seen: ScheduleOver) -> Finding:
        length = f" of {format_count(seen.planned, 'step')}" if seen.planned else ""
        crowded = seen.kind == "crowded"
        where = "" if crowded else " of the first epoch"
        return self.make_finding(
            f"{seen.scheduler}{length} was over after {format_count(seen.updates, 'update')}{where}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="optimizer",
            evidence=[seen.text(), f"learning rate {format_figure(seen.rates)} by then"],
            cause="it steps several times an update: at each micro-batch"
            if crowded
            else "its length counts epochs, and it steps after each batch",
            try_next="step it once an update" if crowded else "step it once an epoch, or give its length in updates",
        )

    def finish(self, view: View) -> Iterable[Finding]:
        """A run that ended in good order, with a schedule of just its length that has barely begun."""
        found: list[Finding] = []
        for seen in view.processes.values():
            state = self._states.get(seen.process.label)
            if state is None or state.is_reported or state.planned < LEAST_PLANNED:
                continue
            whole = seen.end is not None and seen.end.reason == "exit"
            fits = abs(seen.step - state.planned) <= NEAR * state.planned
            if whole and fits and _has_barely_begun(state, seen.step):
                found += self.report_from(
                    seen.process, self._given, self._make_barely_finding(seen.process, state, seen.step)
                )
        return found

    def _make_barely_finding(self, process: ProcessDir, state: _State, steps: int) -> Finding:
        return self.make_finding(
            f"{state.scheduler} of {format_count(state.planned, 'step')} had barely begun after {format_count(steps, 'update')},"
            f" {process.display_name}",
            first_step=1,
            rank=process.rank,
            phase="optimizer",
            evidence=[
                f"{format_count(state.advanced, 'step')} taken by update {state.updates}: its length equals the run's"
            ],
            cause="its length counts updates, and it steps once an epoch",
            try_next="step it after each update, or give its length in epochs",
        )


def _has_barely_begun(state: _State, updates: int) -> bool:
    """True if it was at most a tenth of its way, as far as it was seen and at the pace it had until then."""
    rest = max(updates - state.updates, 0) * state.advanced / state.updates if state.updates else updates
    return state.advanced + rest <= BARELY * state.planned


def _will_barely_begin(state: _State) -> bool:
    """True if at the pace so far the planned run uses a tenth or less of a schedule made for just its length."""
    if state.steps is None or state.planned < LEAST_PLANNED or state.advanced < LEAST_ADVANCED or not state.updates:
        return False
    fits = abs(state.steps - state.planned) <= NEAR * state.planned
    return fits and state.advanced / state.updates <= BARELY
