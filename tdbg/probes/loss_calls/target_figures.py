"""What the targets of one loss call look like, in numbers: computed on their device, read in one go."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tdbg.probes.loss.arithmetic import sum_tolerance
from tdbg.probes.loss_calls.call_arguments import LossCall

MAX_CLASSES = 4096  # whose samples are counted
MAX_TARGETS = 1 << 22  # whose classes are looked at; of more than these the masked ones alone are counted
SUM_TOLERANCE = 0.01  # rows that were rounded to bfloat16 on their way are as near to 1
MAX_ELEMENTS = 1 << 20  # of soft targets: of larger ones the first rows stand for all


@dataclass(slots=True)
class TargetFigures:
    """Numbers of one call; those that its kind does not have stay 0."""

    ignored: int = 0  # equal to ignore_index; of soft targets rows without any mass
    zero_weight: int = 0  # not ignored, and weighted 0
    nulls: int = 0  # equal to the configured null index
    counted_nulls: int = 0  # of them neither ignored nor weighted 0
    rows: int = 0
    bad_rows: int = 0  # whose sum is not 1, or that hold negative mass
    least_sum: float = 0.0
    largest_sum: float = 0.0
    positives: float = 0.0
    counts: list[float] = field(default_factory=list)  # by class; of labels the positives of each
    weights: list[float] = field(default_factory=list)  # by class; of labels pos_weight


class Measurement:
    """Figures on their way: ``values`` is to be read, and `name_figures` makes `TargetFigures` of what was read."""

    def __init__(self) -> None:
        self._names: list[tuple[str, int]] = []
        self._parts: list[Tensor] = []

    def add_figure(self, name: str, values: Tensor) -> None:
        """One figure (0-D) or one for each class (1-D)."""
        flat = values.detach().reshape(-1)
        self._names.append((name, flat.numel()))
        self._parts.append(flat.to(torch.float64 if flat.device.type == "cpu" else torch.float32))

    @property
    def joined_figures(self) -> Tensor | None:
        """All figures in a row; None if there are none."""
        return torch.cat(self._parts) if self._parts else None

    def name_figures(self, values: list[float]) -> TargetFigures:
        """Name the figures again."""
        found, place = TargetFigures(), 0
        for name, count in self._names:
            part, place = values[place : place + count], place + count
            if name in ("counts", "weights"):
                setattr(found, name, part)
            else:
                setattr(found, name, type(getattr(found, name))(part[0]))
        return found


def measure_targets(call: LossCall, target: Tensor, null_index: int | None, *, with_classes: bool) -> Measurement:
    """Look at the targets of a call. Cost: some 10 operations over them; nothing waits for a device.

    null_index: the class that stands for "no label", if one is configured. with_classes: count samples by class.
    """
    made = Measurement()
    if not target.numel():
        return made
    if call.kind == "classes":
        _measure_classes(made, call, target.detach().reshape(-1), null_index, with_classes)
    elif call.kind == "rows":
        _measure_rows(made, call, target.detach())
    elif call.kind == "labels":
        _measure_labels(made, call, target.detach(), with_classes)
    return made


def _measure_classes(
    made: Measurement, call: LossCall, target_N: Tensor, null_index: int | None, with_classes: bool
) -> None:
    target_N = target_N.long()
    counts_N = torch.ones_like(target_N, dtype=torch.bool)
    if call.ignore_index is not None:
        counts_N = target_N != call.ignore_index
        made.add_figure("ignored", (~counts_N).sum())
    weight_C = call.weight if target_N.numel() <= MAX_TARGETS else None
    if weight_C is not None and weight_C.ndim == 1:
        classes = weight_C.numel()
        counts_N = counts_N & (target_N >= 0) & (target_N < classes)
        class_N = torch.where(counts_N, target_N, 0)
        if with_classes and classes <= MAX_CLASSES:
            ones_N = counts_N.to(torch.float32)
            made.add_figure("counts", torch.zeros(classes, device=target_N.device).scatter_add_(0, class_N, ones_N))
            made.add_figure("weights", weight_C)
        zero_N = counts_N & (weight_C.detach()[class_N] == 0)
        made.add_figure("zero_weight", zero_N.sum())
        counts_N = counts_N & ~zero_N
    if null_index is not None:
        null_N = target_N == null_index
        made.add_figure("nulls", null_N.sum())
        made.add_figure("counted_nulls", (null_N & counts_N).sum())


def _measure_rows(made: Measurement, call: LossCall, target: Tensor) -> None:
    """Rows along the dimension that has the fewest bad ones: of kl_div nothing tells which it is."""
    if not target.ndim:
        return
    if target.ndim > 1:
        target = target[: max(MAX_ELEMENTS // max(target[0].numel(), 1), 1)]
    values = target.double() if target.device.type == "cpu" else target.float()
    values = values.exp() if call.in_logs else values
    tolerance = max(SUM_TOLERANCE, sum_tolerance(target))
    first = min(1, target.ndim - 1)
    dims = {first} if call.name != "kl_div" else {first, target.ndim - 1}
    found = []
    for dim in sorted(dims):
        sums_N, least_N = values.sum(dim).reshape(-1), values.amin(dim).reshape(-1)
        empty_N = (sums_N == 0) & (least_N == 0)
        bad_N = ~empty_N & ~(((sums_N - 1).abs() <= tolerance) & (least_N >= -tolerance))
        filled_N = torch.where(empty_N, 1.0, sums_N)
        size = sums_N.new_full((), sums_N.numel())
        found.append(torch.stack([bad_N.sum(), empty_N.sum(), filled_N.amin(), filled_N.amax(), size]))
    best = found[0] if len(found) == 1 else torch.where(found[1][0] < found[0][0], found[1], found[0])
    for name, value in zip(("bad_rows", "ignored", "least_sum", "largest_sum", "rows"), best, strict=True):
        made.add_figure(name, value)


def _measure_labels(made: Measurement, call: LossCall, target: Tensor, with_classes: bool) -> None:
    if call.weight is not None:
        zero = (call.weight.detach() == 0).float().mean()  # it may be broadcast
        made.add_figure("zero_weight", (zero * target.numel()).round())
    weight = call.pos_weight
    if with_classes and weight is not None and weight.ndim <= target.ndim and weight.numel() <= MAX_CLASSES:
        made.add_figure("counts", target.float().sum_to_size(weight.shape))
        made.add_figure("weights", weight)
