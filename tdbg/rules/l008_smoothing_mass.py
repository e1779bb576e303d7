"""TD-L008: smoothing moves the mass off the true class."""

from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class SmoothingMass(LossRule):
    """Says when smoothing gives mass to the wrong classes.

    What it does: With the flag LOSS.TAXONOMY_SMOOTHING it speaks when another class than the true one has
    the most mass of a row, when the true class keeps less than `kept`, and, with `distances`, when a far
    class gets more than a near one. Of torch's own losses it names a label_smoothing of 1.

    Why it matters: The model learns the neighbours of a class instead of it, or mistakes that are as bad as
    can be cost least.

    Example:
        TD-L008 error: 6 of 6 rows of the smoothing matrix have more mass on another class than on the true
        one, step 1, rank 0

    What to do: Start from a one-hot row and give only the smoothing mass to the others, by exp(-distance);
    see that matrix and labels have one order of classes.

    Thresholds: 0.001 of the mass that is meant to stay, 0.00001 between two classes.
    """

    code = "TD-L008"
    title = "smoothing moves the mass off the true class"
    severity = "error"
