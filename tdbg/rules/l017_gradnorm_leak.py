"""TD-L017: memory stays after each GradNorm update."""

from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class GradNormLeak(LossRule):
    """Says when GradNorm's extra passes keep memory from update to update.

    What it does: With the flag LOSS.GRADNORM_MEMORY and a program that wraps its passes in
    `gradnorm_memory` it compares memory in use where the updates begin and end: on an accelerator the
    allocator's figures, on the host those of malloc.

    Why it matters: Some steps later the run is out of memory.

    Example:
        TD-L017 error: memory stays after each GradNorm update: 4.2 MB an update, step 8, rank 0

    What to do: Keep `.item()` or `.detach()` of what goes into histories; free the graph with the last task
    (`retain_graph=False`).

    Thresholds: 5 updates in a row that leave 0.05 MB or more, each beginning with 0.05 MB or more above the
    one before.
    """

    code = "TD-L017"
    title = "memory stays after each GradNorm update"
    severity = "error"
