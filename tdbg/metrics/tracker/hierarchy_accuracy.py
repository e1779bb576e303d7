"""Accuracy over a hierarchy of tasks (species, genus, family, ...), with labels that may be null.

N: samples of a batch. C: classes of a task. Works on tensors and arrays where they are, and on lists.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tdbg.core.tables import format_count
from tdbg.metrics.tracker.metric_values import MetricValueError

Null = int | Mapping[str, int] | None


class ChainCounts(NamedTuple):
    """Numbers of samples of a batch.

    right: all ranks of the hierarchy are right. samples: all of the batch. partial_right: all ranks that are not null
    are right, of partial_samples that have such a rank.
    """

    right: int
    samples: int
    partial_right: int
    partial_samples: int


def chain_counts(
    predictions: Mapping[str, object], targets: Mapping[str, object], tasks: Iterable[str] = (), null_label: Null = None
) -> ChainCounts:
    """Count the samples whose ranks are all right, and those whose non-null ranks are.

    predictions: by task, the classes predicted (N) or their scores (N, C). targets: by task, the true classes (N).
    tasks: the ranks of the hierarchy; all of ``targets`` if none is named. null_label: the class that means "not
    labelled", one or by task. A null rank is right for the whole chain only if null itself was predicted.
    Raises MetricValueError for a task that is missing and for shapes that do not fit. Cost: one copy to the host.
    """
    names = list(tasks) or list(targets)
    if not names:
        raise MetricValueError("chain accuracy needs at least one task", "pass tasks or targets")
    whole: Any = None
    partial: object = None
    labelled: Any = None
    for task in names:
        right, null = _compare_labels(
            _require_task(predictions, task, "prediction"), _require_task(targets, task, "target"), task, null_label
        )
        if whole is not None and len(right) != len(whole):
            raise MetricValueError(
                f"task {task!r} has {format_count(len(right), 'sample')}, {names[0]!r} has {len(whole)}"
            )
        excused = right | null
        whole = right if whole is None else whole & right
        partial = excused if partial is None else partial & excused
        labelled = ~null if labelled is None else labelled | ~null
    totals = _count_true([whole, partial & labelled, labelled])
    return ChainCounts(totals[0], len(whole), totals[1], totals[2])


class TopCounts(NamedTuple):
    """Numbers of samples of a batch that are not null: right by k, all of them, and those with a NaN score."""

    right: dict[int, int]
    samples: int
    wild: int = 0


def top_counts(
    scores: object, targets: object, ks: Sequence[int] = (1,), *, null_label: Null = None, task: str = ""
) -> TopCounts:
    """For each k the samples whose true class is among the k highest scores, and the samples that are not null.

    scores: (N, C), or the predicted classes (N), for which k is 1. targets: (N). A class beats the true one only if
    its score is higher, or equal and its number lower; a sample with a NaN score is right about nothing. Raises
    MetricValueError for shapes that do not fit and for a label that is neither null nor one of the classes.
    """
    if len(getattr(scores, "shape", ())) == 2 and hasattr(scores, "sum"):
        return _top_of_scores(scores, targets, ks, null_label, task)
    if set(ks) != {1}:
        raise MetricValueError(f"task {task!r}: top-{max(ks)} accuracy needs scores (N, C), not {_get_shape(scores)}")
    right, null = _compare_labels(scores, targets, task, null_label)
    totals = _count_true([right & ~null, ~null])
    return TopCounts({1: totals[0]}, totals[1])


def _top_of_scores(scores: Any, targets: Any, ks: Sequence[int], null_label: Null, task: str) -> TopCounts:
    if not hasattr(targets, "sum") or _get_shape(scores)[:1] != _get_shape(targets) or not _get_shape(scores)[1]:
        raise MetricValueError(f"task {task!r}: scores {_get_shape(scores)} do not fit targets {_get_shape(targets)}")
    scores, targets = _align_devices(scores, targets)
    null = _null_mask(targets, _null_of(null_label, task))
    inside = (targets >= 0) & (targets < scores.shape[1])
    column = (targets * inside).reshape(-1, 1)
    if hasattr(scores, "gather"):
        own, classes = scores.gather(1, column.long()), sys.modules["torch"].arange(scores.shape[1]).to(scores.device)
    else:
        import numpy as np

        own, classes = np.take_along_axis(scores, column.astype("int64"), 1), np.arange(scores.shape[1])
    ahead = ((scores > own) | ((scores == own) & (classes < column))).sum(1)
    known = (scores == scores).all(1)
    usable = inside & ~null & known
    totals = _count_true([*[(ahead < k) & usable for k in ks], ~null, ~null & ~known, ~inside & ~null])
    if totals[-1]:
        raise _make_label_error(task, targets[~inside & ~null], totals[-1], _get_shape(scores)[1])
    return TopCounts(dict(zip(ks, totals, strict=False)), totals[-3], totals[-2])


def _make_label_error(task: str, labels: Any, count: int, classes: int) -> MetricValueError:
    """Labels that are no class: the first of them, and how many there are."""
    label = labels[0].item()
    more = f" and {count - 1} more are" if count > 1 else " is"
    hint = f"if {label} means that there is no label, pass null_label={label}" if label < 0 else "labels count from 0"
    return MetricValueError(
        f"task {task!r}: label {label}{more} not among its {format_count(classes, 'class')} (0 to {classes - 1})", hint
    )


def _compare_labels(predicted: Any, targets: Any, task: str, null_label: Null) -> tuple[Any, Any]:
    """(N) truth values: right, and null."""
    null = _null_of(null_label, task)
    if hasattr(targets, "sum") and hasattr(predicted, "sum"):
        known: object = True
        if len(predicted.shape) == len(targets.shape) + 1:
            known = (predicted == predicted).all(-1)  # a sample with a NaN score is right about nothing
            predicted = predicted.argmax(-1)
        if _get_shape(predicted) != _get_shape(targets) or len(targets.shape) != 1:
            raise MetricValueError(
                f"task {task!r}: predictions {_get_shape(predicted)} do not fit targets {_get_shape(targets)}",
                "predictions are classes (N) or scores (N, C), targets are classes (N)",
            )
        predicted, targets = _align_devices(predicted, targets)
        return (predicted == targets) & known, _null_mask(targets, null)
    said, true = list(predicted), list(targets)
    if len(said) != len(true):
        raise MetricValueError(
            f"task {task!r}: {format_count(len(said), 'prediction', 'does')} not fit {format_count(len(true), 'target')}"
        )
    return _Truths(a == b for a, b in zip(said, true, strict=True)), _Truths(b == null for b in true)


def _null_mask(targets: object, null: int | None) -> Any:
    return targets == null if null is not None else targets != targets


class _Truths(list[bool]):
    """A list of truth values that is combined as tensors are."""

    def __and__(self, other: Iterable[bool]) -> "_Truths":
        return _Truths(a and b for a, b in zip(self, other, strict=True))

    def __or__(self, other: Iterable[bool]) -> "_Truths":
        return _Truths(a or b for a, b in zip(self, other, strict=True))

    def __invert__(self) -> "_Truths":
        return _Truths(not a for a in self)

    def sum(self) -> int:
        return sum(self)


def _count_true(truths: Sequence[Any]) -> list[int]:
    """How many are true in each: one copy to the host for all of them."""
    sums = [truth.sum() for truth in truths]
    torch = sys.modules.get("torch")
    if torch is not None and all(isinstance(total, torch.Tensor) for total in sums):
        found: list[int] = torch.stack(sums).tolist()
        return found
    return [int(total) for total in sums]


def _align_devices(one: Any, other: object) -> tuple[object, object]:
    """Both on the device of the first, and without their graph."""
    one = one.detach() if hasattr(one, "detach") else one
    other = other.detach() if hasattr(other, "detach") else other
    if hasattr(one, "to") and hasattr(other, "to"):
        other = other.to(one.device)
    return one, other


def _null_of(null_label: Null, task: str) -> int | None:
    return null_label.get(task) if isinstance(null_label, Mapping) else null_label


def _require_task(by_task: Mapping[str, object], task: str, what: str) -> object:
    if task not in by_task:
        raise MetricValueError(f"task {task!r} has no {what}", f"there are: {', '.join(by_task) or 'none'}")
    return by_task[task]


def _get_shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", (len(value),)))
