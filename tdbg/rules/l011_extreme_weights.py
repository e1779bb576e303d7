"""TD-L011: class weights are extreme."""

from tdbg.core.rule_base import Link
from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class ExtremeWeights(LossRule):
    """Says when class weights lie far apart, are negative or not finite.

    What it does: With the flag LOSS.CLASS_WEIGHTING and a program that calls `class_weighting` it compares
    the largest and smallest weight of the classes that occur.

    Why it matters: A few samples of one class decide the direction of a step: the loss jumps, and a single
    wrong label can undo many steps.

    Example:
        TD-L011 warning: class weights are extreme: the largest is 1000 times the smallest (weights), step
        1, rank 0

    What to do: Weigh by the effective number with beta 0.99 to 0.999, take a root, or clip the ratio.

    Thresholds: 100 times, set by the argument `extreme`.
    """

    code = "TD-L011"
    title = "class weights are extreme"
    severity = "warning"
    leads_to = (Link("TD-N001", least=0, most=1, same=("rank",)),)
