"""LOSS.TAXONOMY_SMOOTHING: the label hierarchy, its distance matrix, the smoothing matrix and what it does to a batch."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tdbg.probes.loss.arithmetic import sum_tolerance, to_host
from tdbg.probes.loss.loss_report import build_argument_error, diagnostic
from tdbg.probes.loss.matrices import check_distances, check_rows, given_away, mass_faults, rows_faults, square
from tdbg.probes.loss.taxonomy_reports import Distances, Forward, Hierarchy, SmoothingMatrix
from tdbg.probes.loss.trees import build_hierarchy

FLAG = "LOSS.TAXONOMY_SMOOTHING"


@diagnostic(FLAG, once=True)
def taxonomy_hierarchy(
    parents: Tensor | Sequence[int] | Mapping[Any, Hashable | None],
    *,
    names: Sequence[str] | None = None,
    always: bool = False,
) -> Hierarchy:
    """Tell what a label hierarchy looks like: root classes, metaclades (whole trees), depth, orphans, cycles.

    parents: the parent of each of N nodes, as a whole number (int64 [N] or a list), -1 for a root; or a mapping
        child -> parent of any names, None for a root (``{("species", 3): ("genus", 1), ("genus", 1): None}``).
    names: of the N nodes, for parents given by number.
    Findings: TD-L010 for orphans (a parent that is no node) and cycles.
    Cost: 2 us a node. Source: Bertinetto et al. 2020, "Making Better Mistakes" (arXiv:1912.09393).
    """
    return build_hierarchy(parents, names)


@diagnostic(FLAG, once=True)
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
    Cost: C^3 operations, 40 ms at 256 classes: call it once, not in every step.
    Source: Bertinetto et al. 2020 (lowest-common-ancestor distance); Johnson 1967, "Hierarchical clustering
    schemes" (the ultrametric inequality).
    """
    return check_distances(square(distances, "distances"), names, largest, ultrametric=ultrametric)


@diagnostic(FLAG, once=True)
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
    Cost: 20 us a class, 5 ms at 256. Source: Szegedy et al. 2016, "Rethinking the Inception Architecture for
    Computer Vision" (label smoothing); Bertinetto et al. 2020 (soft labels from a hierarchy).
    """
    between = None if distances is None else square(distances, "distances")
    return check_rows(matrix, between, kept, names)


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
    Cost: 0.5 ms at [64, 100]. Source: Szegedy et al. 2016.
    """
    scores_BC, soft_BC, true_B = to_host(logits), to_host(smoothed), to_host(targets).long().reshape(-1)
    if scores_BC.ndim != 2 or soft_BC.shape != scores_BC.shape or len(true_B) != len(scores_BC):
        raise build_argument_error(
            f"logits {list(scores_BC.shape)}, smoothed {list(soft_BC.shape)}, targets {list(true_B.shape)} do not fit",
            "give logits and smoothed as [B, C], targets as [B]",
        )
    inside_B = (true_B >= 0) & (true_B < scores_BC.shape[1])
    scores_BC, soft_BC, true_B = scores_BC[inside_B], soft_BC[inside_B].double(), true_B[inside_B]
    log_BC = torch.log_softmax(scores_BC.double(), 1)
    index_B = torch.arange(len(true_B))
    with_B, without_B = -(soft_BC * log_BC).sum(1), -log_BC[index_B, true_B]
    kept_B = soft_BC[index_B, true_B]
    rows: list[dict[str, Any]] = []
    for place in range(min(samples, len(true_B))):
        true = int(true_B[place])
        rows.append(
            {
                "true": true,
                "kept": float(kept_B[place]),
                "to": given_away(soft_BC[place], true),
                "loss": float(with_B[place]),
                "plain_loss": float(without_B[place]),
            }
        )
    count = len(true_B)
    report = Forward(
        samples=count,
        left_out=int((~inside_B).sum()),
        loss=float(with_B.mean()) if count else float("nan"),
        plain_loss=float(without_B.mean()) if count else float("nan"),
        kept=float(kept_B.mean()) if count else float("nan"),
        rows=rows,
        names=None if names is None else [str(name) for name in names],
    )
    if count:
        said, tolerance = [f"sample {place}" for place in range(count)], sum_tolerance(smoothed)
        report.findings = rows_faults(soft_BC, said, "the smoothed targets", tolerance)
        report.findings += mass_faults(soft_BC, true_B, None, None, said, names, "the smoothed targets", tolerance)
    return report
