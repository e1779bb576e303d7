"""LOSS.CLASS_WEIGHTING: class weights, effective sample numbers, and each class's share of the loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tdbg.probes.loss.report import Report, diagnostic

FLAG = "LOSS.CLASS_WEIGHTING"


@dataclass(slots=True, kw_only=True)
class ClassWeighting(Report):
    """What class weights do, given how often each class occurs."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "WEIGHTS"

    classes: int = 0


@dataclass(slots=True, kw_only=True)
class ClassLosses(Report):
    """Which classes the loss of a batch comes from."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "LOSSES"

    classes: int = 0


@diagnostic(FLAG)
def class_weighting(
    weights: Tensor,
    counts: Tensor,
    *,
    beta: float | None = None,
    sampling: Tensor | None = None,
    others: Mapping[str, Tensor] | None = None,
    extreme: float = 100.0,
    names: Sequence[str] | None = None,
    always: bool = False,
) -> ClassWeighting:
    """Check class weights against how often each class occurs in the training data.

    weights: [C], as the loss multiplies them. counts: samples per class, [C].
    beta: of the effective number (1 - beta^n) / (1 - beta), 0 <= beta < 1; (N - 1) / N for N samples if left out.
    sampling: [C], how much more often the sampler draws a sample of each class (its weights per sample).
    others: further weightings in force, name -> [C]; all are multiplied.
    extreme: the largest to the smallest weight above which it is told. names: of the C classes.
    The exponent s is the slope of log(weight) over log(count): 0 none, -1 full balance, below -1 more than that.
    Findings: TD-L011 extreme weights (or zero, negative, not finite), TD-L012 rare classes weigh least,
    TD-L013 sampler and loss both level the classes.
    Cost: 0.2 ms at 1,000 classes: call it once. Source: Cui et al. 2019, "Class-Balanced Loss Based on Effective
    Number of Samples" (arXiv:1901.05555).
    """
    raise NotImplementedError


@diagnostic(FLAG)
def class_losses(
    losses: Tensor,
    targets: Tensor,
    *,
    classes: int | None = None,
    weights: Tensor | None = None,
    names: Sequence[str] | None = None,
    always: bool = False,
) -> ClassLosses:
    """Tell which classes the loss of a batch comes from: samples, mean loss and share of the sum per class.

    losses: [B], a loss per sample without weights (``reduction="none"``). targets: class indices int [B]; those below
    0 or beyond C - 1 are left out. classes: C; the largest target + 1 if left out.
    weights: [C], multiplied in. names: of the C classes.
    Cost: 0.1 ms at B = 64.
    """
    raise NotImplementedError
