"""TD-L003: one-hot targets are taken for class indices."""

from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class OneHotAsIndices(LossRule):
    """Says when targets with a row a sample are compared with the null index as though they were indices.

    What it does: With the flag LOSS.NULL_MASKING it tells one-hot and soft targets by their rows, and
    speaks when masks have a value per element, when what was taken for null is exactly the comparison of
    the elements with the null index, or when one-hot rows were laid end to end.

    Why it matters: With null index 0 every sample counts as null, with another none does: everything is
    masked, or nothing.

    Example:
        TD-L003 error: one-hot targets are taken for class indices, step 1, rank 0

    What to do: Find nulls with `targets.argmax(1) == null_index`, or before mixup or smoothing turns
    indices into rows.

    Thresholds: None.
    """

    code = "TD-L003"
    title = "one-hot targets are taken for class indices"
    severity = "error"
