"""LOSS.TAXONOMY_SMOOTHING: the label hierarchy, its distance matrix, the smoothing matrix and what it does to a batch."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from tdbg.probes.loss.report import Report, diagnostic

FLAG = "LOSS.TAXONOMY_SMOOTHING"


@dataclass(slots=True, kw_only=True)
class Hierarchy(Report):
    """What a label hierarchy looks like."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "HIERARCHY"

    nodes: int = 0
    roots: list[str] = field(default_factory=list)
    metaclades: list[dict[str, Any]] = field(default_factory=list)  # root, nodes, leaves, depth of each whole tree
    leaves: int = 0
    depth: int = 0  # of the deepest node; a root has 0
    leaf_depths: dict[int, int] = field(default_factory=dict)  # depth -> leaves
    orphans: list[str] = field(default_factory=list)  # their parent does not exist
    cycles: list[list[str]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Distances(Report):
    """What a matrix of distances between classes looks like."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "DISTANCES"

    classes: int = 0


@dataclass(slots=True, kw_only=True)
class SmoothingMatrix(Report):
    """What a smoothing matrix does with the mass of each class."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "MATRIX"

    classes: int = 0


@dataclass(slots=True, kw_only=True)
class Forward(Report):
    """What smoothing did to the samples of one batch."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "FORWARD"

    samples: int = 0
    loss: float = 0.0
    plain_loss: float = 0.0


@diagnostic(FLAG)
def taxonomy_hierarchy(
    parents: Tensor | Sequence[int] | Mapping[Hashable, Hashable | None],
    *,
    names: Sequence[str] | None = None,
    always: bool = False,
) -> Hierarchy:
    """Tell what a label hierarchy looks like: root classes, metaclades (whole trees), depth, orphans, cycles.

    parents: the parent of each of N nodes, as a whole number (int64 [N] or a list), -1 for a root; or a mapping
        child -> parent of any names, None for a root (``{("species", 3): ("genus", 1), ("genus", 1): None}``).
    names: of the N nodes, for parents given by number.
    Findings: TD-L010 for orphans (a parent that is no node) and cycles.
    Cost: 1 us a node. Source: Bertinetto et al. 2020, "Making Better Mistakes" (arXiv:1912.09393).
    """
    raise NotImplementedError


@diagnostic(FLAG)
def taxonomy_distances(
    distances: Tensor,
    *,
    names: Sequence[str] | None = None,
    largest: float | None = None,
    ultrametric: bool = True,
    always: bool = False,
) -> Distances:
    """Check a matrix of distances between classes: range, zero diagonal, symmetry, triangles, ultrametric.

    distances: [C, C], any unit. names: of the C classes. largest: no distance may exceed it. ultrametric: whether
        d(a, c) <= max(d(a, b), d(b, c)) is to hold, as for heights of the lowest common ancestor, or path lengths
        between leaves at one depth; where leaves lie at unlike depths, path lengths are not, and False is right.
    Findings: TD-L009. Up to 512 classes every triangle is checked, above 256 middle classes, evenly spread (told).
    Cost: C^3 operations, 30 ms at 256 classes: call it once, not in every step.
    Source: Bertinetto et al. 2020 (lowest-common-ancestor distance); Johnson 1967, "Hierarchical clustering
    schemes" (the ultrametric inequality).
    """
    raise NotImplementedError


@diagnostic(FLAG)
def taxonomy_matrix(
    matrix: Tensor,
    *,
    distances: Tensor | None = None,
    kept: float | None = None,
    names: Sequence[str] | None = None,
    always: bool = False,
) -> SmoothingMatrix:
    """Check a smoothing matrix: rows sum to 1, mass kept on the true class, near classes get more than far ones.

    matrix: [C, C], row i the soft target of true class i. distances: [C, C] between the classes, to compare the
        order of neighbours with. kept: the mass that is meant to stay on the true class, 1 - smoothing.
    names: of the C classes.
    Findings: TD-L007 (a row does not sum to 1, or is negative), TD-L008 (the true class is not the largest of its
    row, keeps less than ``kept``, or a far class gets more than a near one).
    Cost: C^2 log C, 3 ms at 256 classes. Source: Szegedy et al. 2016, "Rethinking the Inception Architecture"
    (label smoothing); Bertinetto et al. 2020 (soft labels from a hierarchy).
    """
    raise NotImplementedError


@diagnostic(FLAG)
def taxonomy_forward(
    logits: Tensor,
    targets: Tensor,
    smoothed: Tensor,
    *,
    names: Sequence[str] | None = None,
    samples: int = 8,
    always: bool = False,
) -> Forward:
    """Tell for a batch, sample by sample, where the mass went, and the loss with and without smoothing.

    logits: [B, C]. targets: true classes, int64 [B]; a sample below 0 or beyond C - 1 is left out (masked).
    smoothed: the soft targets in use, [B, C]. names: of the C classes. samples: so many get a line of their own,
    from the first on.
    Losses are cross entropies in nats, averaged over the samples.
    Findings: TD-L007 (soft targets that do not sum to 1), TD-L008 (more mass on another class than on the true one).
    Cost: 0.2 ms at [64, 100]. Source: Szegedy et al. 2016.
    """
    raise NotImplementedError
