"""TD-L012: rare classes weigh least."""

from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class InvertedWeights(LossRule):
    """Says when class weights grow with the number of samples.

    What it does: With the flag LOSS.CLASS_WEIGHTING it fits the slope of log(weight) over log(count), for
    each weighting by itself. Without a call of tdbg's in the program it does so with `weight` of torch's
    own losses and the classes they have seen, and names a `pos_weight` that is positives / negatives.

    Why it matters: Rare classes, which the weights were meant to help, are ignored all the more.

    Example:
        TD-L012 error: class weights are inverted: rare classes weigh least (weights), step 1, rank 0

    What to do: Weights fall with the count: 1 / effective number, scaled to a mean of 1. Frequencies are no
    weights.

    Thresholds: A slope above 0.1, and the rarest class has the smallest weight. In torch's own losses 200
    samples, 20 a class, and counts that chance does not explain; a pos_weight within 25 % of the odds, which
    are above 2.7 or below 1 / 2.7.
    """

    code = "TD-L012"
    title = "rare classes weigh least"
    severity = "error"
