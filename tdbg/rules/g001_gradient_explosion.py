"""TD-G001: the gradient norm explodes."""

from tdbg.core.events import Finding, Step
from tdbg.core.observations import Evidence
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, PerProcessRule
from tdbg.rules._series import Surge, Window
from tdbg.rules.text import format_figure
from tdbg.rules.view import to_finite

RATIO = 10.0
FLOOR = 10.0
LOG_SIGMAS = 4.0
LASTING_STEPS = 3
WARM_STEPS = 20


class _State:
    is_reported: bool = False
    since: int = 0
    held: int = 0  # steps in a row that count against the run

    def __init__(self) -> None:
        self.surge = Surge(ratio=RATIO, mads=RATIO, sigmas=LOG_SIGMAS, lasting=LASTING_STEPS, warm=WARM_STEPS)
        self.losses = Window()


@RULES.add
class GradientExplosion(PerProcessRule[_State]):
    """Says when the gradient norm leaves its course by a factor of ten and stays there.

    What it does: Keeps the last 64 gradient norms (before clipping) per rank. It speaks when 3 in a row exceed
    ten times the median, 10.0, and 4 robust deviations of the logarithm, while the loss is not better than its
    own median. Steps that GradScaler skipped do not count. Silent in the first 20 steps.

    Why it matters: Clipping hides an explosion: the update stays small, but its direction is noise. Without
    clipping the next stop is a loss of NaN.

    Example:
        TD-G001 warning: gradient norm rose from 1.2 to 340 at step 88, rank 0

    What to do: Clip (`clip_grad_norm_`), lower the learning rate, or lengthen the warm-up. `grad_norms` in the
    step records shows which parameter's gradient grew; one layer alone means a bad initial value or a missing
    normalisation there, all layers mean a learning rate too high or a bad batch.

    Thresholds: Norm above 10.0, as older debugging guides have it, and above 10x the running median, since a
    large model's norm may well lie above 10 in health; 3 steps in a row, since single spikes are common in
    healthy runs of large models.
    """

    code = "TD-G001"
    title = "gradient explosion"
    severity = "warning"
    leads_to = (Link("TD-N004", least=0, most=50),)
    kept = _State

    def evaluate(self, process: ProcessDir, state: _State, event: Step) -> Finding | None:
        if event.skipped:
            return None
        norm, loss = to_finite(event.grad_norm), to_finite(event.loss)
        better = loss is not None and len(state.losses) > 0 and loss < state.losses.median
        if loss is not None:
            state.losses.push(loss)
        if norm is None or norm <= 0 or state.is_reported:
            return None
        surged = state.surge.add_value(norm)
        if state.surge.streak == 1:
            state.since = event.step
        counts = state.surge.streak > 0 and norm > FLOOR and not better
        state.held = state.held + 1 if counts else 0
        if not surged or state.held < LASTING_STEPS:
            return None
        state.is_reported = True
        return self._make_explosion_finding(process, state)

    def _make_explosion_finding(self, process: ProcessDir, state: _State) -> Finding:
        surge = state.surge
        return self.make_finding(
            f"gradient norm rose from {format_figure(surge.base)} to {format_figure(surge.peak)} at step {state.since},"
            f" {process.display_name}",
            first_step=state.since,
            rank=process.rank,
            phase="gradient",
            evidence=[
                f"median of the steps before: {format_figure(surge.base)}; {format_count(surge.streak, 'step')} in a row above"
                f" {RATIO:g}x of it, the highest {surge.peak / surge.base:.0f}x, while the loss got no better",
            ],
            cause="a learning rate too high, a bad batch, or a layer without normalisation",
            try_next="use clip_grad_norm_ or a longer warm-up; grad_norms in the step records shows which parameter it is",
            grade=Evidence.STATISTICAL.grade_word,
        )
