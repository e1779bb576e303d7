"""TD-L017: memory stays after each GradNorm update."""

from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class GradNormLeak(LossRule):
    """Says when GradNorm's extra passes keep memory from update to update.

    What it does: With the flag LOSS.GRADNORM_MEMORY and a program that wraps its passes in
    `gradnorm_memory` it compares memory in use where the updates begin (on an accelerator the allocator's
    figure, on the host malloc's), and looks which of the tensors given to `mark`, and of those that their
    graphs save, are still held when the next update begins. Growth from elsewhere is not laid to GradNorm.
    Older torch (2.6, 2.9) does not show what graphs save; there only the tensors given to `mark` count.

    Why it matters: Some steps later the run is out of memory.

    Example:
        TD-L017 error: memory stays after each GradNorm update: 4.2 MB an update, step 8, rank 0

    What to do: Keep `.item()` or `.detach()` of what goes into histories; free the graph with the last task
    (`retain_graph=False`).

    Thresholds: 5 updates in a row, each beginning with 0.05 MB or more above the one before, and with 0.05 MB
    or more still held of what that one made.
    """

    code = "TD-L017"
    title = "memory stays after each GradNorm update"
    severity = "error"
