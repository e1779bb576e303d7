"""TD-L001: no null labels are seen although the data has them."""

from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class NoNullsSeen(LossRule):
    """Says when samples without a label never reach the loss as such, although the data has them.

    What it does: With the flag LOSS.NULL_MASKING and a program that calls `tdbg.probes.loss.null_masking`
    it compares, task by task, the null labels in the targets with what the program took for null (`nulls`),
    and with their share in the data set (`expected_share`).

    Why it matters: Samples without a label are trained on as though the null class were one to learn, or
    are missing; masking does nothing.

    Example:
        TD-L001 warning: no nulls are seen in task genus although the data has them, step 1, rank 0

    What to do: Count the null labels in a batch as it leaves the data loader, and again where the loss gets
    it; look for code between them that drops or relabels samples.

    Thresholds: None where the program found none of the nulls that are there. Against `expected_share`: a
    chance below 1 in 10^6.
    """

    code = "TD-L001"
    title = "no null labels are seen although the data has them"
    severity = "warning"
