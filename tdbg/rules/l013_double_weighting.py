"""TD-L013: classes are weighted twice."""

from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class DoubleWeighting(LossRule):
    """Says when sampler and loss, or two weightings of the loss, both level the classes.

    What it does: With the flag LOSS.CLASS_WEIGHTING and `sampling` or `others` it fits the slope of
    log(weight) over log(count) for each and for their product; -1 is full balance.

    Why it matters: Together they turn the imbalance round: the rarest class gets most of the training, and
    is learnt by heart.

    Example:
        TD-L013 warning: classes are weighted twice: weights and sampling together weigh them by
        count^-2.00, step 1, rank 0

    What to do: Keep one of them, or take the root of both.

    Thresholds: Two weightings below -0.25 each, together below -1.25.
    """

    code = "TD-L013"
    title = "classes are weighted twice"
    severity = "warning"
