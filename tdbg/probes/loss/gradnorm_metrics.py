"""LOSS.GRADNORM_METRICS: task losses, rates, gradient norms, target norms and weights of GradNorm."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from tdbg.core.tables import format_count, join_limited
from tdbg.probes.loss.arithmetic import format_number, to_vector
from tdbg.probes.loss.loss_report import Fault, Report, build_argument_error, diagnostic, get_state

FLAG = "LOSS.GRADNORM_METRICS"
COLLAPSED = 0.01  # of the mean weight
SUM_TOLERANCE = 1e-3  # of what the weights sum to

PerTask = Tensor | Sequence[float] | Mapping[str, Tensor | float]  # one value per task


@dataclass(slots=True, kw_only=True)
class GradNormMetrics(Report):
    """One update of GradNorm, a value per task."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "UPDATE"

    name: str
    tasks: list[str]
    alpha: float
    losses: list[float]
    ratios: list[float]  # L_i(t) / L_i(0)
    rates: list[float]  # the ratios over their mean: r_i, the relative inverse training rate
    norms: list[float]
    targets: list[float]  # mean norm * r_i^alpha
    target_gap: float | None  # the largest difference of the program's own targets from them, relative
    gradnorm_loss: float  # sum of |norm - target|
    weights: list[float]
    weight_sum: float
    total: float  # what it is to be
    drift: list[float]  # of each weight since the first call
    change: list[float]  # since the call before
    shared: dict[str, dict[str, Any]] = field(default_factory=dict)  # task -> tensors, missing, norm
    updates: int = 1  # calls so far

    def records(self) -> list[tuple[str, str]]:
        lines = [
            f"{self.name}, update {self.updates}: mean norm {format_number(_compute_mean(self.norms))}, alpha {self.alpha:g}, loss of "
            f"GradNorm {format_number(self.gradnorm_loss)}; weights sum to {format_number(self.weight_sum)} of {format_number(self.total)}"
        ]
        for place, task in enumerate(self.tasks):
            lines.append(
                f"  {task}: loss {format_number(self.losses[place])} ({format_number(self.ratios[place])} of the first), rate "
                f"{format_number(self.rates[place])}; norm {format_number(self.norms[place])}, target {format_number(self.targets[place])}; "
                f"weight {format_number(self.weights[place])} ({self.change[place]:+.4g} now, {self.drift[place]:+.4g} in all)"
                + self._format_shared(task)
            )
        if self.target_gap is not None:
            lines.append(f"  the program's own targets differ by {100 * self.target_gap:.3g} % at most")
        return [(self.part, "\n".join(lines))]

    def _format_shared(self, task: str) -> str:
        row = self.shared.get(task)
        if row is None:
            return ""
        missing = f", {row['missing']} of {row['tensors']} missing" if row["missing"] else ""
        return f"; at the shared layer {format_number(row['norm'])}{missing}"

    def collect_event_values(self) -> dict[str, Any]:
        drift = max(map(abs, self.drift), default=0.0)
        return {"name": self.name, "weights": self.weights, "rates": self.rates, "drift": drift}


class _Course:
    """The weights of a GradNorm from call to call."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.calls = 0


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
    Findings: TD-L014 a weight collapsed (below 1 % of the mean), TD-L015 weights not renormalised (by more than one
    part in a thousand), TD-L016 negative weight, TD-L018 no gradient at the shared layer from a task with a loss and a
    weight, TD-L019 values that are not finite.
    Cost: 0.3 ms; reads the values. Source: Chen et al. 2018, "GradNorm: Gradient Normalization for Adaptive Loss
    Balancing in Deep Multitask Networks" (arXiv:1711.02257), section 3.
    """
    given = {"losses": losses, "initial_losses": initial_losses, "norms": norms, "weights": weights}
    given |= {"targets": targets} if targets is not None else {}
    tasks = _list_tasks(given, shared)
    per = {what: _per_task(what, value, tasks) for what, value in given.items()}
    ratios = [_divide_safely(now, first) for now, first in zip(per["losses"], per["initial_losses"], strict=True)]
    rates = [_divide_safely(ratio, _compute_mean(ratios)) for ratio in ratios]
    wanted = [_compute_mean(per["norms"]) * (rate**alpha if rate >= 0 else math.nan) for rate in rates]
    course = get_state(_Course, "gradnorm_metrics", name)
    now = dict(zip(tasks, per["weights"], strict=True))
    report = GradNormMetrics(
        name=name,
        tasks=tasks,
        alpha=alpha,
        losses=per["losses"],
        ratios=ratios,
        rates=rates,
        norms=per["norms"],
        targets=wanted,
        target_gap=None if targets is None else _compute_gap(per["targets"], wanted),
        gradnorm_loss=sum(abs(norm - target) for norm, target in zip(per["norms"], wanted, strict=True)),
        weights=per["weights"],
        weight_sum=sum(per["weights"]),
        total=float(total) if total is not None else float(len(tasks)),
        drift=[weight - course.first.get(task, weight) for task, weight in now.items()],
        change=[weight - course.last.get(task, weight) for task, weight in now.items()],
        shared={task: _measure_shared_gradients(grads) for task, grads in (shared or {}).items()},
        updates=course.calls + 1,
    )
    course.first, course.last, course.calls = course.first or now, now, course.calls + 1
    report.findings = _find_faults(report, per)
    return report


def _list_tasks(given: Mapping[str, object], shared: Mapping[str, object] | None) -> list[str]:
    named = next((value for value in given.values() if isinstance(value, Mapping)), shared)
    if named is not None:
        return [str(task) for task in named]
    return [f"task {place}" for place in range(len(to_vector(given["losses"], "losses")))]


def _per_task(what: str, value: object, tasks: list[str]) -> list[float]:
    """One number per task; tensors of an accelerator come in one copy."""
    if isinstance(value, Mapping):
        missing = [task for task in tasks if task not in value]
        if missing:
            raise build_argument_error(
                f"{what} lacks {join_limited(missing)}", f"it has {join_limited([str(task) for task in value])}"
            )
        found = [value[task] for task in tasks]
        tensors = [item for item in found if isinstance(item, Tensor)]
        if len(tensors) == len(found):
            value = torch.stack([item.detach().reshape(()).float() for item in tensors])
        else:
            value = [float(item) for item in found]
    numbers: list[float] = to_vector(value, what).tolist()
    if len(numbers) != len(tasks):
        raise build_argument_error(
            f"{what} has {format_count(len(numbers), 'value')} for {format_count(len(tasks), 'task')}",
            f"the tasks are {join_limited(tasks)}",
        )
    return numbers


def _compute_mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _divide_safely(value: float, by: float) -> float:
    return value / by if by else math.nan


def _compute_gap(given: Sequence[float], wanted: Sequence[float]) -> float:
    gaps = [abs(own - ours) / max(abs(ours), 1e-12) for own, ours in zip(given, wanted, strict=True)]
    return max(gaps, default=0.0)


def _measure_shared_gradients(grads: Tensor | Iterable[Tensor | None] | None) -> dict[str, object]:
    """How many tensors there are, how many are missing, and the L2 norm of all."""
    held = [grads] if grads is None or isinstance(grads, Tensor) else list(grads)
    there = [grad.detach().float() for grad in held if grad is not None]
    norm = float(torch.stack([torch.linalg.vector_norm(grad) for grad in there]).norm()) if there else 0.0
    return {"tensors": len(held), "missing": len(held) - len(there), "norm": norm}


def _find_faults(report: GradNormMetrics, per: Mapping[str, list[float]]) -> list[Fault]:
    """per: what the program gave; its own targets count where it gives them, else those that follow."""
    found = []
    wild = [
        f"{what} of {task} is {value}"
        for what in ("losses", "norms", "weights", "initial_losses", "targets")
        for task, value in zip(report.tasks, per.get(what, report.targets), strict=True)
        if not math.isfinite(value) and (what != "targets" or any(report.losses))
    ]
    if wild and "targets" not in per:
        wild += [f"initial loss of {t} is 0" for t, v in zip(report.tasks, per["initial_losses"], strict=True) if not v]
    if wild:
        found.append(build_not_finite_fault(report.name, wild))
    weights = dict(zip(report.tasks, report.weights, strict=True))
    below = [task for task, weight in weights.items() if weight < 0]
    if below:
        found.append(
            Fault(
                "TD-L016",
                f"GradNorm weights are negative: {join_limited(below)}",
                "error",
                what=report.name,
                evidence=[f"weight of {task} is {format_number(weights[task])}" for task in below[:4]],
                cause="the step on the weights is too large, and nothing keeps them above zero",
                try_next="use a smaller learning rate for the weights; clamp them, or learn their logarithm",
            )
        )
    found += _find_collapsed_weights(report, weights)
    if math.isfinite(report.weight_sum) and abs(report.weight_sum - report.total) > SUM_TOLERANCE * abs(report.total):
        found.append(
            Fault(
                "TD-L015",
                f"GradNorm weights are not renormalised: they sum to {format_number(report.weight_sum)}, not {report.total:g}",
                "warning",
                what=report.name,
                evidence=[", ".join(f"{task} {format_number(weight)}" for task, weight in list(weights.items())[:8])],
                cause="the weights are never rescaled, rescaled before the update, or into a copy under autograd",
                try_next="after each update: weights.mul_(T / weights.sum()) under no_grad, on the parameter itself",
            )
        )
    return found + _find_missing_gradients(report, weights)


def _find_collapsed_weights(report: GradNormMetrics, weights: Mapping[str, float]) -> list[Fault]:
    mean = _compute_mean([abs(weight) for weight in weights.values()])
    small = [task for task, weight in weights.items() if 0 <= weight < COLLAPSED * mean]
    if not small or len(weights) < 2:
        return []
    largest = max(weights, key=weights.__getitem__)
    return [
        Fault(
            "TD-L014",
            f"GradNorm weights collapsed: {join_limited(small)}",
            "warning",
            what=report.name,
            evidence=[
                *(
                    f"weight of {task} is {format_number(weights[task])}, the mean {format_number(mean)}"
                    for task in small[:4]
                ),
                f"{largest} has {format_number(weights[largest])} of {format_number(report.weight_sum)}",
            ],
            cause="a rate for the weights that is too large, an initial loss near zero, or alpha too large",
            try_next="look at rates and initial losses; lower the weights' learning rate or alpha; set a least weight",
        )
    ]


def _find_missing_gradients(report: GradNormMetrics, weights: Mapping[str, float]) -> list[Fault]:
    """TD-L018: nothing arrives at the shared layer, although the task has a loss and a weight."""
    without = {task for task, row in report.shared.items() if row["missing"] == row["tensors"] or not row["norm"]}
    for task, norm in zip(report.tasks, report.norms, strict=True):
        if norm == 0 and task not in report.shared:
            without.add(task)
    losses = dict(zip(report.tasks, report.losses, strict=True))
    without = {task for task in without if losses.get(task, 1.0) != 0 and weights.get(task, 1.0) != 0}
    if not without:
        return []
    said = [
        f"{task}: {row['missing']} of {row['tensors']} gradients missing, norm {format_number(row['norm'])}"
        if (row := report.shared.get(task)) is not None
        else f"{task}: norm 0"
        for task in sorted(without)
    ]
    return [
        Fault(
            "TD-L018",
            f"no gradient reaches the shared layer from {join_limited(sorted(without))}",
            "error",
            what=report.name,
            evidence=said[:8],
            cause="detach() or no_grad between backbone and head, a frozen layer, or the norm of the wrong layer",
            try_next="torch.autograd.grad(loss, shared, retain_graph=True, allow_unused=False) names what is unused",
        )
    ]


def build_not_finite_fault(name: str, said: list[str]) -> Fault:
    """TD-L019, as both flags of GradNorm's values tell it."""
    return Fault(
        "TD-L019",
        f"values of GradNorm are not finite: {said[0]}",
        "error",
        what=name,
        evidence=said[:8],
        cause="an initial loss of zero, the norm of an empty gradient, or a loss that is not finite itself",
        try_next="tdbg run tells where the first NaN of the step arises; clamp initial losses above zero",
    )
