"""TD-L015: GradNorm weights are not renormalised."""

from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class GradNormSum(LossRule):
    """Says when the weights of GradNorm do not sum to the number of tasks.

    What it does: With the flag LOSS.GRADNORM_METRICS it adds up the weights after each update.

    Why it matters: The weights' sum acts as a second learning rate, which drifts away from what was chosen.

    Example:
        TD-L015 warning: GradNorm weights are not renormalised: they sum to 1.4, not 3, step 40, rank 0

    What to do: After each update scale the parameter itself: `weights.mul_(T / weights.sum())` under
    `no_grad`.

    Thresholds: One part in a thousand; another sum than the number of tasks is named by `total`.
    """

    code = "TD-L015"
    title = "GradNorm weights are not renormalised"
    severity = "warning"
