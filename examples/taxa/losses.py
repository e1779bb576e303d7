"""The losses: taxonomy-guided label smoothing, null masking and class weighting, each apart.

B: samples. C: classes of a rank; class 0 is null.
"""

from collections.abc import Mapping

import torch
from debugging import diagnostics
from languages import LINEAGES, NULL_INDEX, RANKS
from torch import Tensor
from yacs.config import CfgNode


def distances(classes: tuple[str, ...], rank: int) -> Tensor:
    """(C, C): how far up two classes first meet, over the height of the tree; 0 to themselves, 1 at the root.

    An ultrametric. Null is no place in the tree: it is at distance 1 from all others.
    """
    above = {lineage[rank]: lineage[rank:] for lineage in LINEAGES.values() if lineage[rank] is not None}
    height = len(RANKS) - rank
    found = torch.ones(len(classes), len(classes))
    for row, one in enumerate(classes):
        for column, other in enumerate(classes):
            if row == column:
                found[row, column] = 0.0
            elif one in above and other in above:
                meets = [
                    up for up in range(1, height) if above[one][up] is not None and above[one][up] == above[other][up]
                ]
                found[row, column] = min(meets, default=height) / height
    return found


def smoothing_matrix(distance_CC: Tensor, mass: float, beta: float) -> Tensor:
    """(C, C): row c is the target of a sample of class c: 1 - mass on c, the rest on the others, more on near ones.

    Others get shares proportional to exp(-beta * distance); null neither gives nor takes.
    """
    pull = torch.exp(-beta * distance_CC)
    pull.fill_diagonal_(0.0)
    pull[NULL_INDEX] = 0.0
    pull[:, NULL_INDEX] = 0.0
    share = pull / pull.sum(1, keepdim=True).clamp_min(1e-12)
    matrix = (1.0 - mass) * torch.eye(len(pull)) + mass * share
    matrix[NULL_INDEX] = torch.eye(len(pull))[NULL_INDEX]
    return matrix


def class_weights(counts_C: Tensor, beta: float) -> Tensor:
    """(C): weights by the effective number of samples (Cui et al. 2019), 1 on average over the samples; 0 for none."""
    effective = (1.0 - beta ** counts_C.double()) / (1.0 - beta)
    weights = torch.where(counts_C > 0, 1.0 / effective.clamp_min(1e-12), 0.0)
    return (weights * counts_C.sum() / (weights * counts_C).sum()).float()


class NullMask:
    """Leaves null-labelled samples out of a rank's loss, at first (nearly) all, later fewer."""

    def __init__(self, config: CfgNode, total_steps: int) -> None:
        self.config = config
        self.ramp_steps = max(1, round(config.RAMP * total_steps))

    def probability(self, step: int) -> float:
        """The probability that a null-labelled sample is left out."""
        done = min(step / self.ramp_steps, 1.0)
        return float(self.config.START + done * (self.config.END - self.config.START))

    def keep(self, labels: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """(B) by rank: which samples stay."""
        probability = self.probability(step)
        return {
            rank: (labels_B != NULL_INDEX) | (torch.rand(labels_B.shape, device=labels_B.device) >= probability)
            for rank, labels_B in labels.items()
        }


class RankLoss:
    """The loss of one rank of the taxonomy: its soft targets and its class weights."""

    def __init__(self, classes: tuple[str, ...], rank: int, counts_C: Tensor, config: CfgNode) -> None:
        smoothing, weighting = config.SMOOTHING, config.CLASS_WEIGHTING
        self.target_CC, self.weight_C = torch.eye(len(classes)), torch.ones(len(classes))
        self.smoothed, self.weighted = bool(smoothing.ENABLED), bool(weighting.ENABLED)
        if self.smoothed:
            distance_CC = distances(classes, rank)
            self.target_CC = smoothing_matrix(distance_CC, smoothing.MASS, smoothing.BETA)
            diagnostics.taxonomy_distances(distance_CC, names=classes, largest=1.0)
            diagnostics.taxonomy_matrix(self.target_CC, distances=distance_CC, kept=1.0 - smoothing.MASS, names=classes)
        if self.weighted:
            self.weight_C = class_weights(counts_C, weighting.BETA)
            diagnostics.class_weighting(self.weight_C, counts_C, beta=weighting.BETA, names=classes)

    def to(self, device: torch.device) -> "RankLoss":
        """The same, with its tables on a device."""
        self.target_CC, self.weight_C = self.target_CC.to(device), self.weight_C.to(device)
        return self

    def __call__(self, scores_BC: Tensor, labels_B: Tensor, keep_B: Tensor) -> Tensor:
        """The mean over the samples that stay; 0, with a graph, if none does."""
        soft_BC = self.target_CC[labels_B]
        each_B = -(soft_BC * scores_BC.float().log_softmax(1)).sum(1)
        if diagnostics.is_on("LOSS.TAXONOMY_SMOOTHING") and self.smoothed:  # asked first: its arguments cost something
            diagnostics.taxonomy_forward(scores_BC, labels_B.where(keep_B, -1), soft_BC)
        if self.weighted:
            diagnostics.class_losses(each_B, labels_B, classes=len(self.weight_C), weights=self.weight_C)
        return (each_B * self.weight_C[labels_B] * keep_B).sum() / keep_B.sum().clamp_min(1)


class TaxonomyLoss:
    """The losses of all ranks of the taxonomy."""

    def __init__(
        self,
        classes: Mapping[str, tuple[str, ...]],
        counts: Mapping[str, Tensor],
        config: CfgNode,
        total_steps: int,
        device: torch.device,
    ) -> None:
        self.ranks = {
            rank: RankLoss(classes[rank], at, counts[rank], config).to(device) for at, rank in enumerate(RANKS)
        }
        self.mask = NullMask(config.NULL_MASKING, total_steps) if config.NULL_MASKING.ENABLED else None
        self.classes = {rank: len(labels) for rank, labels in classes.items()}
        self.null_share = {rank: float(found[0] / found.sum()) for rank, found in counts.items()}
        if config.SMOOTHING.ENABLED:
            diagnostics.taxonomy_hierarchy(tree())

    def __call__(self, scores: Mapping[str, Tensor], labels_BR: Tensor, step: int) -> dict[str, Tensor]:
        """Scores (B, C) by rank and labels (B, R) to the loss of each rank."""
        labels = dict(zip(RANKS, labels_BR.unbind(1), strict=True))
        if self.mask is None:
            keep = {rank: torch.ones_like(own, dtype=torch.bool) for rank, own in labels.items()}
        else:
            keep = self.mask.keep(labels, step)
            if diagnostics.is_on("LOSS.NULL_MASKING"):
                diagnostics.null_masking(
                    labels,
                    {rank: ~own for rank, own in keep.items()},
                    null_index=NULL_INDEX,
                    nulls={rank: own == NULL_INDEX for rank, own in labels.items()},
                    classes=self.classes,
                    probability=self.mask.probability(step),
                    expected_share=self.null_share,
                    schedule=(step, 0, self.mask.ramp_steps),
                )
        return {rank: loss(scores[rank], labels[rank], keep[rank]) for rank, loss in self.ranks.items()}


def tree() -> dict[str, str | None]:
    """Child -> parent over all ranks; a group without a name is passed over."""
    found: dict[str, str | None] = {}
    for lineage in LINEAGES.values():
        path = [f"{rank} {label}" for rank, label in zip(RANKS, lineage, strict=True) if label is not None]
        found |= dict(zip(path, [*path[1:], None], strict=True))
    return found
