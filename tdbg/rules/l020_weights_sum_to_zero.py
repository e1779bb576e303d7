"""TD-L020: the class weights of a batch sum to 0."""

from tdbg.core.observations.loss import LossCallReport
from tdbg.core.rule_base import Link
from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class WeightsSumToZero(LossRule):
    """Says when a weighted mean has nothing to divide by: every target of a batch is of a class that weighs 0.

    What it does: With the flag LOSS.NULL_MASKING (or another under LOSS.) it looks at the targets and class
    weights that torch's cross_entropy and nll_loss were given in the step whose loss is NaN. Targets that
    are ignored by ignore_index are told apart: if all are, it is TD-L004.

    Why it matters: cross_entropy with `weight` divides by the sum of the weights of the batch's targets; a
    sum of 0 makes the loss NaN, and with it the weights of the model.

    Example:
        TD-L020 error: the class weights of the batch sum to 0 in cross_entropy: its weighted mean divides
        by them, step 3, rank 0

    What to do: Leave the loss of such a batch out, or use `reduction="sum"` and divide by the sum of the
    weights, at least 1e-8. To leave a class out for good, `ignore_index` says so.

    Thresholds: None.
    """

    code = "TD-L020"
    title = "the class weights of a batch sum to 0"
    severity = "error"
    observes = (LossCallReport,)
    leads_to = (Link("TD-N001", least=0, most=1, same=("rank",)), Link("TD-N002", least=0), Link("TD-N003", least=0))
