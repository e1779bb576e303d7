"""TD-L016: a GradNorm weight is negative."""

from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class GradNormNegative(LossRule):
    """Says when GradNorm makes a task's loss count against itself.

    What it does: With the flag LOSS.GRADNORM_METRICS it looks at the sign of each weight after the update.

    Why it matters: Training raises the loss of this task.

    Example:
        TD-L016 error: GradNorm weights are negative: genus, step 40, rank 0

    What to do: Lower the weights' learning rate; clamp the weights above zero, or learn their logarithm.

    Thresholds: None.
    """

    code = "TD-L016"
    title = "a GradNorm weight is negative"
    severity = "error"
