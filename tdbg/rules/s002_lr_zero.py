"""TD-S002: training with a learning rate of zero, or below."""

from collections.abc import Iterable

from tdbg.core.events import Finding, Step
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, PerProcessRule
from tdbg.rules.text import format_figure
from tdbg.rules.view import View, to_finite

ZERO_STEPS = 20
# Recursive schedulers may end a hair below zero; that is rounding, not a negative rate.
ROUNDING = 1e-6


class _State:
    since: int = 0
    zeros: int = 0
    highest: float = 0.0
    said: bool = False


@RULES.add
class LearningRateZero(PerProcessRule[_State]):
    """Says when steps are taken with a learning rate of zero in every group, or with a negative one.

    What it does: Speaks at the 20th step in a row whose rates are all zero, or at once for a negative rate.
    Groups frozen on purpose do not count while another group learns.

    Why it matters: Nothing is learned, and nothing fails: a scheduler that ran out before the training did, or
    one that starts at zero and is stepped once an epoch, wastes whole epochs in silence. A negative rate climbs
    instead of descending.

    Example:
        TD-S002 warning: the learning rate has been 0 for 20 steps, since step 981, rank 0

    What to do: Compare the scheduler's number of steps with the real one: accumulation, several ranks and
    dropped last batches change it. Set a floor (`eta_min`) if training is to go on.

    Thresholds: 20 steps: a warm-up that begins at zero and a decay that ends at zero have one or two.
    """

    code = "TD-S002"
    title = "learning rate zero or negative"
    severity = "warning"
    leads_to = ("TD-S007", "TD-K001")
    kept = _State

    def evaluate(self, process: ProcessDir, state: _State, event: Step) -> Finding | None:
        rates = [value for value in event.lr if to_finite(value) is not None]
        if not event.lr or (state.said and not state.zeros):
            return None
        high, low = max(rates, default=1.0), min(rates, default=1.0)
        state.highest = max(state.highest, high)
        if low < -ROUNDING * max(state.highest, ROUNDING) and not state.said:
            return self._make_rate_finding(
                process, state, f"the learning rate is negative: {format_figure(low)}", event.step, "error"
            )
        if abs(high) > 0 or abs(low) > 0:
            state.zeros = 0
            return None
        state.since = event.step if state.zeros == 0 else state.since
        state.zeros = event.step - state.since + 1
        if state.zeros < ZERO_STEPS or state.said:
            return None
        text = f"the learning rate has been 0 for {ZERO_STEPS} steps, since step {state.since}"
        return self._make_rate_finding(process, state, text, state.since, self.severity)

    def finish(self, view: View) -> Iterable[Finding]:
        longest = max((state.zeros for state in self._states.values() if state.said), default=0)
        if self._given and longest > ZERO_STEPS:
            self._given[0].evidence.insert(0, f"{format_count(longest, 'step')} with rate 0 up to the end")
        return ()

    def _make_rate_finding(self, process: ProcessDir, state: _State, text: str, step: int, severity: str) -> Finding:
        state.said = True
        return self.make_finding(
            f"{text}, {process.display_name}",
            severity=severity,
            first_step=step,
            rank=process.rank,
            phase="optimizer",
            evidence=[f"highest rate before: {format_figure(state.highest)}"],
            cause="the schedule ended before the training, or starts at zero and is stepped too rarely",
            try_next="compare the scheduler's number of steps with the real one",
        )
