"""TD-L005: the masking probability is not applied."""

from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class ProbabilityNotApplied(LossRule):
    """Says when nulls are masked more or less often than asked for.

    What it does: With the flag LOSS.NULL_MASKING and `probability` it counts, in training, how many nulls
    are masked, in each batch and over all calls, and compares with what was asked, also where a schedule
    changes that.

    Why it matters: The schedule of masking has no effect, or the wrong one.

    Example:
        TD-L005 warning: the masking probability is not applied in task genus: nulls are masked always, step
        1, rank 0

    What to do: Draw once for each sample: `torch.rand(B) < probability`, with the schedule's value of this
    very step.

    Thresholds: A chance below 1 in 10^6 by Hoeffding's bound; asked for 0 or 1, one sample is enough.
    """

    code = "TD-L005"
    title = "the masking probability is not applied"
    severity = "warning"
