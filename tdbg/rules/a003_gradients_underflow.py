"""TD-A003: most of the gradients are lost in fp16."""

from tdbg.core.events import Finding
from tdbg.core.observations.amp import PrecisionLoss
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, ObservingRule, Reported
from tdbg.rules.text import format_figure, format_loss_scale

LOOKS = 6


def _format_percent(value: object) -> str:
    return f"{100 * value:.3g} %" if isinstance(value, int | float) else "-"


@RULES.add
class GradientsUnderflow(ObservingRule[Reported]):
    """Says when most of the gradient is too small for fp16.

    What it does: With the flag AMP (or level advanced) it looks at a sample of the gradients of weight matrices
    after backward, as they are scaled. It speaks when, in 6 consecutive sampled steps, more than half of the
    elements are zero or below fp16's smallest normal number (6.1e-5), and so are more than half of those that
    are not zero; or when all of them are zero. bfloat16 has float32's range and is not judged.

    Why it matters: Below 6.1e-5 fp16 has fewer and fewer bits, below 6e-8 none: the model trains on a rest of
    its gradient, or not at all, and no error says so.

    Example:
        TD-A003 warning: fp16 loses the gradient: 38 % of its elements are zero, 61 % below the normal range, no
        GradScaler, rank 0

    What to do: Use `torch.amp.GradScaler`; if there is one, start it higher (`init_scale`), and find out why
    the scale came down (TD-A001, TD-A002). Or use bfloat16, which needs none. A loss that is divided by a large
    number (batch times pixels) has small gradients: divide later.

    Thresholds: 6 sampled steps; half of the elements, and half of those not zero, since a ReLU's zeros are no
    loss.
    """

    code = "TD-A003"
    title = "gradients underflow in fp16"
    severity = "warning"
    observes = (PrecisionLoss,)
    kept = Reported

    def evaluate(self, process: ProcessDir, state: Reported, seen: PrecisionLoss) -> Finding | None:
        if state.is_reported or seen.lost_looks < LOOKS:
            return None
        state.is_reported = True
        scaler = seen.scaler
        at = f"at loss scale {format_loss_scale(seen.scale)}" if scaler else "no GradScaler"
        return self.make_finding(
            f"fp16 loses the gradient: {_format_percent(seen.zero_share)} of its elements are zero,"
            f" {_format_percent(seen.faint_share)} below the normal range, {at}, {process.display_name}",
            first_step=seen.lost_since if seen.lost_since is not None else seen.step,
            rank=process.rank,
            phase="gradient",
            evidence=[
                f"{format_count(seen.lost_looks, 'consecutive sampled step')}, up to step {seen.step}; the largest of"
                f" {format_count(seen.elements, 'sampled element')} is {format_figure(seen.largest)}"
            ],
            cause="the loss scale is too low for these gradients" if scaler else "fp16 without a loss scale",
            try_next="raise init_scale and find out why the scale fell, or use bfloat16"
            if scaler
            else "use torch.amp.GradScaler, or bfloat16, which needs no loss scale",
        )
