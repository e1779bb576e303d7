"""TD-L019: values of GradNorm are not finite."""

from tdbg.core.rule_base import Link
from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class GradNormNotFinite(LossRule):
    """Says when a loss, norm, weight or other value of GradNorm is NaN or infinite.

    What it does: With the flag LOSS.GRADNORM_METRICS or LOSS.VERBOSE_GRADNORM_LOGGING it looks at every
    value it is given.

    Why it matters: One such value makes all weights NaN with the next update, and with them the model.

    Example:
        TD-L019 error: values of GradNorm are not finite: norms of genus is nan, step 3, rank 0

    What to do: Clamp initial losses above zero; give a task without samples in this batch no part in the
    update.

    Thresholds: None.
    """

    code = "TD-L019"
    title = "values of GradNorm are not finite"
    severity = "error"
    leads_to = (Link("TD-N001", least=0, most=1, same=("rank",)),)
