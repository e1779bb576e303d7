"""TD-L009: the distance matrix is no metric."""

from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class DistancesBroken(LossRule):
    """Says when distances between classes are not symmetric, break the triangle inequality, or come from no tree.

    What it does: With the flag LOSS.TAXONOMY_SMOOTHING and a program that calls `taxonomy_distances` it
    checks range, diagonal, symmetry, every triangle (of more than 512 classes a part), and unless told
    otherwise the ultrametric inequality.

    Why it matters: Smoothing by such distances prefers classes for no reason; usually the hierarchy behind
    them is broken.

    Example:
        TD-L009 error: the distance matrix is not symmetric in 3 pairs, step 1, rank 0

    What to do: Compute distances from the parents: the height of the lowest common ancestor. Path lengths
    between leaves at unlike depths are not ultrametric by nature: say `ultrametric=False`.

    Thresholds: 0.00001 of the largest distance.
    """

    code = "TD-L009"
    title = "invalid distance matrix"
    severity = "error"
