"""TD-L007: smoothed targets do not sum to 1."""

from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class SmoothingRows(LossRule):
    """Says when rows of a smoothing matrix, or smoothed targets, are no distributions.

    What it does: With the flag LOSS.TAXONOMY_SMOOTHING and a program that calls `taxonomy_matrix` or
    `taxonomy_forward` it sums each row and looks for negative mass. Without a call of tdbg's in the program
    it does so with the soft targets of torch's own cross_entropy and kl_div; rows without any mass count as
    masked.

    Why it matters: The loss weighs classes by the sums of their rows, and no longer has its least value at
    the true distribution.

    Example:
        TD-L007 error: 6 of 6 rows of the smoothing matrix do not sum to 1, or hold negative mass, step 1,
        rank 0

    What to do: Divide each row by its own sum after all else: `matrix / matrix.sum(1, keepdim=True)`.

    Thresholds: A sum within 0.001 of 1 is one; within 0.01 in torch's own losses.
    """

    code = "TD-L007"
    title = "smoothed targets do not sum to 1"
    severity = "error"
