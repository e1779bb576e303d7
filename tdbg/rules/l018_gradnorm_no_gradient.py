"""TD-L018: no gradient reaches the shared layer."""

from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class GradNormNoGradient(LossRule):
    """Says when a task's loss has no gradient at the layer that all tasks share.

    What it does: With the flag LOSS.GRADNORM_METRICS it looks at the gradients given as `shared`, or where
    there are none at the norms. A task without a loss or a weight in this update is left alone.

    Why it matters: GradNorm raises the weight of the task without end, while the backbone learns nothing
    from it.

    Example:
        TD-L018 error: no gradient reaches the shared layer from genus, step 1, rank 0

    What to do: Look for `detach()` or `no_grad` between backbone and head, and whether the norm is taken at
    a layer the task uses.

    Thresholds: None.
    """

    code = "TD-L018"
    title = "no gradient reaches the shared layer"
    severity = "error"
