"""TD-L006: masks are drawn in validation."""

from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class MaskingInValidation(LossRule):
    """Says when validation leaves out some of the nulls at random.

    What it does: With the flag LOSS.NULL_MASKING and `training=False` it speaks when some nulls are masked
    and others are not, when any is masked although 0 was asked for, and when a probability between 0 and 1
    was asked for.

    Why it matters: Two validations of the same weights differ, and the best checkpoint hangs on the draw.

    Example:
        TD-L006 warning: nulls are masked at random in validation in task genus, step 0, rank 0

    What to do: In validation mask none of the nulls, or all of them in a pass of its own; test
    `model.training`.

    Thresholds: None.
    """

    code = "TD-L006"
    title = "masks are drawn in validation"
    severity = "warning"
