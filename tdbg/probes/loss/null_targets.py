"""The targets of one task as they are: their format, which of them are null, what was masked."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from tdbg.core.tables import format_count
from tdbg.probes.loss.arithmetic import SUM_TOLERANCE, sum_tolerance, to_host
from tdbg.probes.loss.loss_report import build_argument_error


@dataclass(slots=True)
class Targets:
    """One task of one batch, on the host, a value per sample."""

    format: str  # indices, one-hot or soft
    shape: list[int]
    dtype: str
    device: str
    how: str  # how nulls are told from the others
    raw: Tensor  # as given
    labels_N: Tensor  # class of each sample; of a row without any mass the null index
    nulls_N: Tensor
    masked_N: Tensor
    found_N: Tensor | None  # what the program took for null
    per_element: str  # which of masked and nulls has a value per element of labels that have a row a sample
    null_index: int
    classes: int | None
    counts: Counter[int]

    @property
    def sample_count(self) -> int:
        """Samples."""
        return len(self.labels_N)


def read_targets(
    targets: Tensor, masked: Tensor, found: Tensor | None, null_index: int, classes: int | None
) -> Targets:
    """Look at one task; TdbgError for shapes that do not fit together."""
    raw = to_host(targets)
    own = targets if isinstance(targets, Tensor) else raw
    style = find_format(raw, sum_tolerance(own))
    rows = style in ("one-hot", "soft")
    empty_N = torch.zeros(0, dtype=torch.bool)
    if rows:
        empty_N = raw.sum(1) == 0
        labels_N = torch.where(empty_N, null_index, raw.to(torch.float32).argmax(1))
        nulls_N = labels_N == null_index
    else:
        labels_N = raw.reshape(-1).long() if raw.numel() else raw.reshape(-1).to(torch.int64)
        nulls_N = raw.reshape(-1) == null_index
    how = f"{'largest of the row' if style == 'soft' else 'class'} == {null_index}"
    if rows and bool(empty_N.any()):
        how += f", {format_count(int(empty_N.sum()), 'row')} without a class"
    per_element = ""
    fitted: list[Tensor | None] = []
    for name, given in (("masked", masked), ("nulls", found)):
        flat, whole = _per_sample(name, given, raw, labels_N, rows)
        per_element = name if whole and not per_element else per_element
        fitted.append(flat)
    assert fitted[0] is not None
    return Targets(
        format=style,
        shape=list(own.shape),
        dtype=str(own.dtype).removeprefix("torch."),
        device=str(own.device),
        how=how,
        raw=raw,
        labels_N=labels_N,
        nulls_N=nulls_N,
        masked_N=fitted[0],
        found_N=fitted[1],
        per_element=per_element,
        null_index=null_index,
        classes=int(raw.shape[1]) if rows else classes,
        counts=_count_classes(labels_N),
    )


def find_format(targets: Tensor, tolerance: float = SUM_TOLERANCE) -> str:
    """``one-hot`` and ``soft`` for rows of [B, C], else ``indices``; TdbgError for what is none of them."""
    if targets.ndim == 2 and targets.shape[1] > 1 and len(targets):
        values = targets.double()
        sums = values.sum(1)
        whole = bool(((values == 0) | (values == 1)).all())
        if whole and bool((sums <= 1).all()) and bool((sums == 1).any()):
            return "one-hot"
        if bool((values >= 0).all()) and bool((((sums - 1).abs() < tolerance) | (sums == 0)).all()):
            return "soft"
    if targets.is_floating_point() and not bool((targets == targets.round()).all()):
        raise build_argument_error(
            f"targets of shape {list(targets.shape)} are neither class indices nor rows that sum to 1",
            "give whole numbers [B], or one-hot or soft labels [B, C]",
        )
    return "indices"


def _per_sample(
    name: str, given: Tensor | None, raw: Tensor, labels_N: Tensor, rows: bool
) -> tuple[Tensor | None, bool]:
    """A flag per sample, and whether it had one per element of the rows."""
    if given is None:
        if name == "masked":
            raise build_argument_error(
                "masked is missing", "give a bool per sample, True where it is left out of the loss"
            )
        return None, False
    flags = to_host(given) != 0
    if rows and flags.shape == raw.shape:
        return flags.any(1), True
    if flags.numel() == labels_N.numel():
        return flags.reshape(-1), False
    hint = "give one value per sample"
    if raw.ndim == 2 and flags.numel() == len(raw) and bool(((raw == 0) | (raw == 1)).all()):
        hint = "rows with several ones are multi-label, not one-hot: give each label as a task of its own, [B]"
    raise build_argument_error(f"{name} has shape {list(flags.shape)}, the targets have {list(raw.shape)}", hint)


def _count_classes(labels_N: Tensor) -> Counter[int]:
    found, counts = labels_N.unique(return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist(), strict=True)))
