"""TD-L004: everything is masked."""

from tdbg.core.rule_base import Link
from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class EverythingMasked(LossRule):
    """Says when nothing is left of a task's loss.

    What it does: With the flag LOSS.NULL_MASKING it speaks when all samples of a batch are masked although
    some have a label, when exactly those with a label are, and when several batches in a row hold nothing
    but masked nulls.

    Why it matters: The task learns nothing; a mean over no sample is NaN.

    Example:
        TD-L004 error: everything is masked in task genus, step 1, rank 0

    What to do: Look at the sense of the mask (True: left out, or kept?), and at what the loss makes of an
    empty task.

    Thresholds: 3 samples with a label among them; else 3 batches in a row with 64 samples together.
    """

    code = "TD-L004"
    title = "everything is masked"
    severity = "error"
    leads_to = (Link("TD-N001", least=0, most=1, same=("rank",)),)
