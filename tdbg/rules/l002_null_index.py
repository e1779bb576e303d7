"""TD-L002: the null index is wrong."""

from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class NullIndexWrong(LossRule):
    """Says when another value than the one named stands for no label.

    What it does: With the flag LOSS.NULL_MASKING it looks for targets that can be no class (negative, or
    beyond the number of classes) and are not the null index; for masks that cover exactly another class;
    for a null index that no one-hot row can have; and in training for a share of nulls that contradicts
    `expected_share`.

    Why it matters: A real class is left out of the loss and learns nothing, while samples without a label
    are taken for a class.

    Example:
        TD-L002 error: the null index 0 is wrong in task genus, step 1, rank 0

    What to do: Print the class map of the task: which index do samples without a label get? An index off by
    one is the usual case.

    Thresholds: Masks of one other class: 3 masked samples. Against `expected_share`: a quarter of it away, and a
    chance below 1 in 10^6.
    """

    code = "TD-L002"
    title = "the null index is wrong"
    severity = "error"
