"""TD-L021: targets of the null class count in the loss."""

from tdbg.core.observations.loss import LossCallReport
from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class NullsCounted(LossRule):
    """Says when targets that stand for "no label" are learned like a class.

    What it does: With the flag LOSS.NULL_MASKING and `--threshold LOSS.NULL_MASKING.null_index=INDEX` it
    counts, where torch's cross_entropy, nll_loss and multi_margin_loss are called, the targets that are
    the null class and are neither `ignore_index` nor of a class that weighs 0.

    Why it matters: The model learns to answer "no label", and the loss looks better than it is.

    Example:
        TD-L021 warning: targets of the null class 0 count in cross_entropy, step 1, rank 0

    What to do: Give the loss `ignore_index=INDEX`, or a weight of 0 for this class.

    Thresholds: One such target. Silent with `reduction="none"`, where the program may mask them itself.
    """

    code = "TD-L021"
    title = "targets of the null class count in the loss"
    severity = "warning"
    observes = (LossCallReport,)
