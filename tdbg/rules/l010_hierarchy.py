"""TD-L010: the label hierarchy is broken."""

from tdbg.rules import RULES
from tdbg.rules._loss import LossRule


@RULES.add
class HierarchyBroken(LossRule):
    """Says when the label hierarchy has orphans or cycles.

    What it does: With the flag LOSS.TAXONOMY_SMOOTHING and a program that calls `taxonomy_hierarchy` it
    follows every node up: a parent that is no node makes an orphan, a way that comes back a cycle.

    Why it matters: Distances and smoothing of the classes below are computed from nonsense, or never end.

    Example:
        TD-L010 error: the hierarchy has 1 cycle: a > b > a, step 1, rank 0

    What to do: Build parents from the same class map as the labels, and tell the ranks apart in the names
    of the nodes.

    Thresholds: None.
    """

    code = "TD-L010"
    title = "the label hierarchy is broken"
    severity = "error"
