"""LOSS.GRADNORM_METRICS: task losses, rates, gradient norms, target norms and weights of GradNorm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from tdbg.probes.loss.report import Report, diagnostic

FLAG = "LOSS.GRADNORM_METRICS"

PerTask = Tensor | Sequence[float] | Mapping[str, Tensor | float]  # one value per task


@dataclass(slots=True, kw_only=True)
class GradNormMetrics(Report):
    """One update of GradNorm."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "UPDATE"

    tasks: list[str] = field(default_factory=list)


@diagnostic(FLAG)
def gradnorm_metrics(
    losses: PerTask,
    initial_losses: PerTask,
    norms: PerTask,
    weights: PerTask,
    *,
    alpha: float = 1.5,
    targets: PerTask | None = None,
    shared: Mapping[str, Tensor | Sequence[Tensor | None] | None] | None = None,
    total: float | None = None,
    name: str = "gradnorm",
    always: bool = False,
) -> GradNormMetrics:
    """Tell of one GradNorm update what it is made of, task by task, and check the weights that came out.

    Call it after the weights are updated and renormalised, before the optimizer's step. Each of the T tasks has
    one value, in one order or by name; names come from the first mapping, else ``task 0``, ``task 1``, ...
    losses: L_i(t), not weighted. initial_losses: L_i(0). norms: the L2 norm of the gradient of w_i L_i at the shared
    layer. weights: w_i after the update. alpha: the strength of the restoring force.
    targets: the program's own target norms, compared with mean(norms) * r_i^alpha.
    shared: task -> gradients at the shared layer (a tensor, a list, None where there is none).
    total: what the weights sum to after renormalisation; T if left out. name: of this GradNorm, if there are several.
    Drift is told since the first call and since the one before (`forget` ends that).
    Findings: TD-L014 a weight collapsed (below 1 % of the mean), TD-L015 weights not renormalised, TD-L016 negative
    weight, TD-L018 no gradient at the shared layer, TD-L019 values that are not finite.
    Cost: 0.2 ms; reads the values. Source: Chen et al. 2018, "GradNorm" (arXiv:1711.02257), section 3.
    """
    raise NotImplementedError
