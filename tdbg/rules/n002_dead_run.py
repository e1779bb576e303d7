"""TD-N002: a run that goes on after its loss is lost."""

import itertools
from collections.abc import Iterable

from tdbg.core.events import Event, Finding, NonFinite, Step
from tdbg.core.observations import Evidence
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, PerProcessRule
from tdbg.rules.text import format_figure
from tdbg.rules.view import ProcessView, View, is_non_finite

DEAD_STEPS = 20
GOING_ON = f"for {DEAD_STEPS} steps and training goes on"  # as long as the run is watched
DEAD_RECORDS = 3  # the budget may leave most steps without a record
IN_WEIGHTS = ("gradient", "backward", "optimizer", "")  # phases of a `NonFinite` that names the update before its loss
RUINED = "weights that hold a NaN give a NaN for every batch: no further step can mend them"
SKIPPED = "GradScaler skips every update, so no weight changes: the loss itself is NaN or Inf for every batch"


class _Streak:
    since: int = 0
    kind: str = ""
    steps: int = 0
    records: int = 0
    skipped: int = 0  # records of updates that GradScaler skipped
    first_bad: int = 0  # step of the first bad loss, as located; its own record may be left out
    is_reported: bool = False
    is_cut: bool = False  # the process went on after the last record, and how is not known

    def describe(self) -> str:
        """``1,189 steps without a finite loss, from step 12 on (39 of them recorded, none finite)``."""
        sparse = f" ({self.records:,} of them recorded, none finite)" if self.records < self.steps - 1 else ""
        least = "at least " if self.is_cut else ""
        return f"{least}{format_count(self.steps, 'step')} without a finite loss, from step {self.since} on{sparse}"


def _find_loss_step(event: NonFinite) -> int:
    """The step of the event's loss: where an update ruined the weights, the step after it."""
    is_in_weights = event.weights == "updated" and event.phase in IN_WEIGHTS
    return max(event.step, event.until) + is_in_weights


@RULES.add
class DeadRun(PerProcessRule[_Streak]):
    """Says that a run goes on although its loss has been NaN or Inf for many steps.

    What it does: Counts training steps in a row whose loss is not finite, from the first one that was
    located or recorded. At 20 it speaks; at the end it says how many steps went to waste, up to the last
    loss that the process read, recorded or not. A last loss that is not finite is told also where no check
    met the NaN before.

    Why it matters: A dead run looks alive: it uses the machines, writes checkpoints over good ones and may
    end with "done" and exit code 0.

    Example:
        TD-N002 critical: the loss has been NaN or Inf for 20 steps and training goes on, rank 0, since step 3

    What to do: Stop it; start again from a checkpoint older than the first bad step, which TD-N001 names
    with its cause. `tdbg run --stop-on TD-N002` does the stopping.

    Thresholds: 20 steps in a row: a GradScaler that comes down from its first scale of 65,536 needs at
    most 16.
    """

    code = "TD-N002"
    title = "dead run: the loss stays NaN or Inf"
    severity = "critical"
    grade = Evidence.LOCAL.grade_word
    kept = _Streak
    listens = (Step, NonFinite)

    def __init__(self) -> None:
        super().__init__()
        self._longest = _Streak()
        self._reported_streaks: dict[str, _Streak] = {}  # process -> its streak that was reported
        self._is_reported = False  # by TD-N001

    def should_evaluate(self, event: Event) -> bool:
        """True for a training step, and for the first bad value of training."""
        return (isinstance(event, NonFinite) and not event.eval) or super().should_evaluate(event)

    def evaluate(self, process: ProcessDir, state: _Streak, event: Step | NonFinite) -> Finding | None:
        if isinstance(event, NonFinite):
            self._is_reported = True
            if is_non_finite(event.loss) and not state.first_bad and not state.records:
                state.first_bad, state.kind = _find_loss_step(event), str(event.loss)
            return None
        if not is_non_finite(event.loss):
            # Records are written a step late: one of before the bad step says nothing against it.
            if event.loss is not None and event.step >= state.first_bad:
                self._states.pop(process.label, None)
            return None
        self._is_reported = True
        if state.records == 0:
            state.kind = state.kind or str(event.loss)
            state.since = min(event.step, state.first_bad or event.step)
        state.records += 1
        state.skipped += bool(event.skipped)
        state.steps = event.step - state.since + 1
        if state.steps < DEAD_STEPS or state.records < DEAD_RECORDS:
            return None
        if state.steps > self._longest.steps:
            self._longest = state
        said, state.is_reported = state.is_reported, True
        if said:
            return None
        self._reported_streaks.setdefault(process.label, state)
        return self._make_dead_finding(process, state)

    def finish(self, view: View) -> Iterable[Finding]:
        if self._given:
            for label, found in view.processes.items():
                if label in self._states:
                    self._count_to_end(self._states[label], found)
            self._conclude(view)
        elif not self._is_reported:
            yield from itertools.islice(filter(None, map(self._report_last_loss, view.processes.values())), 1)

    def _conclude(self, view: View) -> None:
        """Say how long it lasted: in the process that is named, and in the one in which it lasted longest."""
        given = self._given[0]
        named = next((one for one in view.processes.values() if self._is_origin(given, one.process)), None)
        streak = self._reported_streaks.get(named.process.label, self._longest) if named is not None else self._longest
        if named is not None and self._states.get(named.process.label) is not streak:
            given.title = given.title.replace(GOING_ON, f"for {format_count(streak.steps, 'step')}")  # it was over
        elif named is not None and named.end is not None and is_non_finite(named.end.loss):
            given.title = given.title.replace(
                GOING_ON, f"for {format_count(streak.steps, 'step')}, to the end of the run"
            )
        longest = self._longest if self._longest.steps > streak.steps + 1 else streak  # ranks may differ by a step
        given.evidence.insert(0, longest.describe())

    def _count_to_end(self, state: _Streak, found: ProcessView) -> None:
        """Add the steps after the last record: the process read the loss of its last step, on record or not."""
        if not state.is_reported:
            return
        end = found.end
        if end is None:  # killed, or still running
            state.is_cut = found.step > state.since + state.steps
        elif is_non_finite(end.loss):
            state.steps = max(state.steps, end.loss_step - state.since + 1)
        if state.steps > self._longest.steps:
            self._longest = state

    def _report_last_loss(self, found: ProcessView) -> Finding | None:
        end, last = found.end, found.last
        if end is None or not is_non_finite(end.loss):
            return None
        known = f"last finite loss on record: {format_figure(last.loss)} at step {last.step}" if last else ""
        return self.make_finding(
            f"the last loss read, at step {end.loss_step}, was {format_figure(end.loss)}, {found.display_name}",
            first_step=end.loss_step,
            rank=found.rank,
            phase="loss",
            evidence=[known] if known else [],
            cause="origin unknown: the run ended before tdbg checked a step with it",
            try_next="run again with --max-overhead 100: tdbg then checks every step, and TD-N001 names step and module",
        )

    def _make_dead_finding(self, process: ProcessDir, streak: _Streak) -> Finding:
        skips = streak.skipped == streak.records
        again = "fix what TD-N001 names" if skips else "restart from a checkpoint older than that step"
        return self.make_finding(
            f"the loss has been NaN or Inf {GOING_ON}, {process.display_name}, since step {streak.since}",
            first_step=streak.since,
            rank=process.rank,
            phase="loss",
            evidence=[f"loss at step {streak.since}: {format_figure(streak.kind)}"],
            cause=SKIPPED if skips else RUINED,
            try_next=f"stop; {again} (--stop-on TD-N002 stops by itself)",
        )
