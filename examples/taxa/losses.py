"""The losses: taxonomy-guided label smoothing, null masking and class weighting, each apart.

B: samples. C: classes of a rank; class 0 is null.
"""

from collections.abc import Mapping

import torch
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
                meets = [up for up in range(1, height) if above[one][up] is not None and above[one][up] == above[other][up]]
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

    def keep(self, labels_B: Tensor, step: int) -> Tensor:
        """(B): which samples stay."""
        hidden = torch.rand(len(labels_B), device=labels_B.device) < self.probability(step)
        return (labels_B != NULL_INDEX) | ~hidden


class RankLoss:
    """The loss of one rank of the taxonomy."""

    def __init__(self, classes: tuple[str, ...], rank: int, counts_C: Tensor, config: CfgNode, total_steps: int) -> None:
        smoothing, weighting, masking = config.SMOOTHING, config.CLASS_WEIGHTING, config.NULL_MASKING
        self.distance_CC = distances(classes, rank)
        self.target_CC = torch.eye(len(classes))
        if smoothing.ENABLED:
            self.target_CC = smoothing_matrix(self.distance_CC, smoothing.MASS, smoothing.BETA)
        self.weight_C = class_weights(counts_C, weighting.BETA) if weighting.ENABLED else torch.ones(len(classes))
        self.mask = NullMask(masking, total_steps) if masking.ENABLED else None

    def to(self, device: torch.device) -> "RankLoss":
        """The same, with its tables on a device."""
        self.target_CC, self.weight_C = self.target_CC.to(device), self.weight_C.to(device)
        return self

    def __call__(self, scores_BC: Tensor, labels_B: Tensor, step: int, keep_B: Tensor | None = None) -> Tensor:
        """The mean over the samples that stay; 0, with a graph, if none does."""
        if keep_B is None:
            keep_B = self.mask.keep(labels_B, step) if self.mask else torch.ones_like(labels_B, dtype=torch.bool)
        each_B = -(self.target_CC[labels_B] * scores_BC.float().log_softmax(1)).sum(1) * self.weight_C[labels_B]
        return (each_B * keep_B).sum() / keep_B.sum().clamp_min(1)


def rank_losses(
    classes: Mapping[str, tuple[str, ...]], counts: Mapping[str, Tensor], config: CfgNode, total_steps: int
) -> dict[str, RankLoss]:
    """The loss of each rank, by its name."""
    return {
        rank: RankLoss(classes[rank], at, counts[rank], config, total_steps) for at, rank in enumerate(RANKS)
    }
