"""TD-L014: a GradNorm weight collapsed."""

from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class GradNormCollapse(LossRule):
    """Says when GradNorm leaves a task without weight.

    What it does: With the flag LOSS.GRADNORM_METRICS and a program that calls `gradnorm_metrics` it
    compares each task's weight with the mean of all.

    Why it matters: The task is no longer trained, and its weight does not come back: what it would learn
    from has no gradient.

    Example:
        TD-L014 warning: GradNorm weights collapsed: genus, step 40, rank 0

    What to do: Look at rates and initial losses in the record; lower the weights' learning rate or alpha;
    set a least weight.

    Thresholds: 1 % of the mean weight.
    """

    code = "TD-L014"
    title = "a GradNorm weight collapsed"
    severity = "warning"
