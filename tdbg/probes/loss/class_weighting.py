"""LOSS.CLASS_WEIGHTING: class weights, effective sample numbers, and each class's share of the loss."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tdbg.core.tables import format_count, join_limited
from tdbg.probes.loss.arithmetic import compute_slope, format_number, format_share, get_class_name, to_host, to_vector
from tdbg.probes.loss.class_reports import FLAG, ClassLosses, ClassWeighting
from tdbg.probes.loss.loss_report import Fault, build_argument_error, diagnostic

LEVELS = -0.25  # exponent from which on a weighting counts as one that levels the classes
TOO_FAR = -1.25  # exponent of all weightings together, where -1 is full balance
INVERTED = 0.1


@diagnostic(FLAG, once=True)
def class_weighting(
    weights: Tensor | Sequence[float],
    counts: Tensor | Sequence[float],
    *,
    beta: float | None = None,
    sampling: Tensor | Sequence[float] | None = None,
    others: Mapping[str, Tensor | Sequence[float]] | None = None,
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
    The exponent of a weighting is the slope of log(weight) over log(count): 0 none, -1 full balance, below -1 more
    than that. Classes without samples, and weights of zero (a class left out on purpose), are told and left out of it.
    Findings: TD-L011 extreme weights (or negative, not finite), TD-L012 rare classes weigh least (exponent above 0.1,
    the rarest class has the smallest weight), TD-L013 several weightings that level the classes (each below -0.25,
    together below -1.25): sampler and loss, or two in the loss.
    Cost: 20 us a class: call it once. Source: Cui et al. 2019, "Class-Balanced Loss Based on Effective Number of
    Samples" (arXiv:1901.05555), eq. 3 and section 4.
    """
    return weigh_classes(weights, counts, beta=beta, sampling=sampling, others=others, extreme=extreme, names=names)


def weigh_classes(
    weights: Tensor | Sequence[float],
    counts: Tensor | Sequence[float],
    *,
    beta: float | None = None,
    sampling: Tensor | Sequence[float] | None = None,
    others: Mapping[str, Tensor | Sequence[float]] | None = None,
    extreme: float = 100.0,
    names: Sequence[str] | None = None,
) -> ClassWeighting:
    """The report of `class_weighting`, whatever its flag is; nothing is written."""
    count_C, given = to_vector(counts, "counts"), {"weights": to_vector(weights, "weights")}
    given |= {name: to_vector(more, name) for name, more in (others or {}).items()}
    given |= {"sampling": to_vector(sampling, "sampling")} if sampling is not None else {}
    size, total = len(count_C), float(count_C.sum())
    if not bool((torch.isfinite(count_C) & (count_C >= 0)).all()):
        raise build_argument_error(
            "counts hold negative values, NaN or Inf", "give how many samples each class has, [C]"
        )
    for name, weight_C in given.items():
        if len(weight_C) != size:
            raise build_argument_error(
                f"{name} has {format_count(len(weight_C), 'value')}, counts has {size}", "give one value per class"
            )
    if beta is None:
        beta = (total - 1) / total if total > 1 else 0.0
    if not 0 <= beta < 1:
        raise build_argument_error(f"beta is {beta}", "0 <= beta < 1; 0.999 is usual, (N - 1) / N the default")
    effective_C = compute_effective_numbers(count_C, beta)
    product_C = torch.stack(list(given.values())).prod(0)
    exponents = {name: _compute_exponent(count_C, weight_C) for name, weight_C in given.items()}
    report = ClassWeighting(
        classes=size,
        samples=int(total),
        beta=beta,
        ratio=_compute_ratio(count_C, given["weights"]),
        exponents=exponents,
        exponent=_compute_exponent(count_C, product_C),
        rows=_build_rows(count_C, effective_C, given, product_C, names),
    )
    report.findings = [
        *_find_extreme_weights(report, count_C, given, extreme, names),
        *_find_inverted_weights(count_C, given, exponents, names),
        *_find_double_weighting(report),
    ]
    return report


def compute_effective_numbers(counts_C: Tensor, beta: float) -> Tensor:
    """(1 - beta^n) / (1 - beta) per class (Cui et al. 2019, eq. 3); n itself as beta goes to 1."""
    if beta == 0:
        return (counts_C > 0).double()
    return -torch.expm1(counts_C * math.log(beta)) / (1 - beta)


def _find_used_classes(counts_C: Tensor, weights_C: Tensor) -> Tensor:
    return (counts_C > 0) & (weights_C > 0) & torch.isfinite(weights_C)


def _compute_exponent(counts_C: Tensor, weights_C: Tensor) -> float:
    used = _find_used_classes(counts_C, weights_C)
    if int(used.sum()) < 2:
        return 0.0
    return compute_slope(counts_C[used].log().tolist(), weights_C[used].log().tolist())


def _compute_ratio(counts_C: Tensor, weights_C: Tensor) -> float:
    used = weights_C[_find_used_classes(counts_C, weights_C)]
    return float(used.max() / used.min()) if len(used) else 1.0


def _build_rows(
    counts_C: Tensor, effective_C: Tensor, given: dict[str, Tensor], product_C: Tensor, names: Sequence[str] | None
) -> list[dict[str, object]]:
    """A row a class, the rarest first."""
    inverse_C = torch.where(effective_C > 0, 1 / effective_C, 0.0)
    balanced_C = inverse_C * int((effective_C > 0).sum()) / inverse_C.sum().clamp(min=1e-300)
    mass_C = counts_C * torch.nan_to_num(product_C, posinf=0.0, neginf=0.0)
    share_C = mass_C / mass_C.sum().clamp(min=1e-300)
    return [
        {
            "class": index,
            "name": get_class_name(names, index),
            "count": float(counts_C[index]),
            "effective": float(effective_C[index]),
            "balanced": float(balanced_C[index]),
            "weights": {name: float(weight_C[index]) for name, weight_C in given.items()},
            "share": float(share_C[index]),
        }
        for index in counts_C.argsort(stable=True).tolist()
    ]


def _find_extreme_weights(
    report: ClassWeighting, counts_C: Tensor, given: dict[str, Tensor], extreme: float, names: Sequence[str] | None
) -> list[Fault]:
    found = []
    for name, weight_C in given.items():
        bad = (~torch.isfinite(weight_C) | (weight_C < 0)).nonzero().flatten().tolist()
        ratio = _compute_ratio(counts_C, weight_C)
        evidence = f"{name}: {join_limited([f'{get_class_name(names, i)} {format_number(float(weight_C[i]))}' for i in bad], 4)}"
        title = f"{len(bad)} of {report.classes} class weights are negative or not finite ({name})"
        if not bad:
            if ratio <= extreme:
                continue
            used = torch.where(_find_used_classes(counts_C, weight_C), weight_C, float("nan"))
            most, least = _find_extreme_class(used, -1.0), _find_extreme_class(used, 1.0)
            evidence = (
                f"{name}: {get_class_name(names, most)} {format_number(float(weight_C[most]))} at {counts_C[most]:g} samples, "
                f"{get_class_name(names, least)} {format_number(float(weight_C[least]))} at {counts_C[least]:g}"
            )
            title = f"class weights are extreme: the largest is {format_number(ratio)} times the smallest ({name})"
        found.append(
            Fault(
                "TD-L011",
                title,
                "error" if bad else "warning",
                what=name,
                evidence=[evidence],
                cause="weights are 1 / count where a class has hardly any sample"
                + (", or a class without samples made them infinite" if bad else ""),
                try_next="weigh by the effective number with beta 0.99 to 0.999, take a root, or clip the ratio at 10",
            )
        )
    return found


def _find_extreme_class(values_C: Tensor, sign: float) -> int:
    """The class of the smallest value (sign 1) or the largest (-1), NaN left out."""
    return int(torch.nan_to_num(values_C * sign, nan=float("inf")).argmin())


def _find_inverted_weights(
    counts_C: Tensor, given: dict[str, Tensor], exponents: dict[str, float], names: Sequence[str] | None
) -> list[Fault]:
    found = []
    for name, weight_C in given.items():
        used = _find_used_classes(counts_C, weight_C)
        if exponents[name] <= INVERTED or not bool(used.any()):
            continue
        rare = _find_extreme_class(torch.where(used, counts_C, float("nan")), 1.0)
        common = _find_extreme_class(torch.where(used, counts_C, float("nan")), -1.0)
        if float(weight_C[rare]) > 1.01 * float(weight_C[used].min()):
            continue
        found.append(
            Fault(
                "TD-L012",
                f"class weights are inverted: rare classes weigh least ({name})",
                "error",
                what=name,
                evidence=[
                    f"{get_class_name(names, rare)}: {counts_C[rare]:g} samples, weight {format_number(float(weight_C[rare]))}; "
                    f"{get_class_name(names, common)}: {counts_C[common]:g} samples, weight {format_number(float(weight_C[common]))}; "
                    f"exponent {format_number(exponents[name])}"
                ],
                cause="counts or frequencies are used as weights, or the loss is divided by the weights",
                try_next="weights fall with the count: 1 / effective number, scaled to a mean of 1",
            )
        )
    return found


def _find_double_weighting(report: ClassWeighting) -> list[Fault]:
    levelling = [name for name, value in report.exponents.items() if value <= LEVELS]
    if len(levelling) < 2 or report.exponent >= TOO_FAR:
        return []
    rarest = report.rows[0]
    first = next((row for row in report.rows if row["count"] > 0), rarest)
    last = report.rows[-1]
    return [
        Fault(
            "TD-L013",
            f"classes are weighted twice: {' and '.join(levelling)} together weigh them by count^{report.exponent:.2f}",
            "warning",
            evidence=[
                ", ".join(f"{name} count^{report.exponents[name]:.2f}" for name in levelling),
                f"{first['name']} ({first['count']:g} samples) gets {format_share(first['share'])} of the weight in "
                f"training, {last['name']} ({last['count']:g}) {format_share(last['share'])}",
            ],
            cause="a sampler that balances the classes and a loss that does so too",
            try_next="keep one of them, or take the root of both",
        )
    ]


@diagnostic(FLAG)
def class_losses(
    losses: Tensor,
    targets: Tensor,
    *,
    classes: int | None = None,
    weights: Tensor | Sequence[float] | None = None,
    names: Sequence[str] | None = None,
    always: bool = False,
) -> ClassLosses:
    """Tell which classes the loss of a batch comes from: samples, mean loss and share of the sum per class.

    losses: [B], a loss per sample without weights (``reduction="none"``). targets: class indices int [B]; those below
    0 or beyond C - 1 are left out. classes: C; the largest target + 1 if left out.
    weights: [C], multiplied in. names: of the C classes.
    Cost: 0.2 ms at B = 64. Source: Cui et al. 2019, section 4.
    """
    loss_B, true_B = to_vector(losses, "losses"), to_host(targets).long().reshape(-1)
    if len(loss_B) != len(true_B):
        raise build_argument_error(
            f"{format_count(len(loss_B), 'loss')}, {format_count(len(true_B), 'target')}",
            "give a loss per sample (reduction='none')",
        )
    size = classes if classes is not None else (int(true_B.max()) + 1 if len(true_B) else 0)
    size = max(size, 0)
    inside_B = (true_B >= 0) & (true_B < size)
    loss_B, true_B = loss_B[inside_B], true_B[inside_B]
    if weights is not None:
        weight_C = to_vector(weights, "weights")
        if len(weight_C) < size:
            raise build_argument_error(
                f"{format_count(len(weight_C), 'weight')} for {format_count(size, 'class')}",
                "give one weight per class",
            )
        loss_B = loss_B * weight_C[true_B]
    wild_B = ~torch.isfinite(loss_B)
    wild_C = torch.bincount(true_B[wild_B], minlength=size)
    sums_C = torch.zeros(size, dtype=torch.float64).index_add(0, true_B, loss_B.masked_fill(wild_B, 0.0))
    count_C = torch.bincount(true_B, minlength=size)
    total = float(sums_C.sum())
    rows = [
        {
            "class": index,
            "name": get_class_name(names, index),
            "samples": int(count_C[index]),
            "part": int(count_C[index]) / max(len(true_B), 1),
            "not_finite": int(wild_C[index]),
            "mean": float(sums_C[index] / (count_C[index] - wild_C[index])),
            "share": float(sums_C[index]) / total if total else 0.0,
        }
        for index in count_C.nonzero().flatten().tolist()
    ]
    rows.sort(key=lambda row: (-row["not_finite"], -row["share"]))
    return ClassLosses(classes=size, samples=len(true_B), left_out=int((~inside_B).sum()), total=total, rows=rows)
