"""`--capture-samples`: which rows of a captured batch are kept, by their loss, their error, or their place."""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.nn import functional

from tdbg.core.capture import SampleSelection
from tdbg.core.guard import guarded

IGNORED = -100  # torch's own default of ``ignore_index``
HALF = 0.5
SUM_ERROR = 0.02  # of probabilities in half precision


class SampleChooser:
    """Chooses rows of one batch after another. Call it from one thread only.

    worst: the rows with the largest loss: cross entropy for class labels, binary cross entropy for labels of 0 and 1,
    else the mean squared error. A loss that is not finite counts as the largest. wrong: the rows of which more than
    half of the predictions are wrong. Cost: one pass over the prediction, in the thread that writes.
    """

    def __init__(self, samples: SampleSelection) -> None:
        self.needs_labels = samples.needs_labels
        self._samples = samples
        self._seen = 0
        self.unscored = 0  # batches whose labels do not fit the prediction
        self.without_rows = 0  # batches whose number of samples is unknown

    def choose_rows(self, count: int, tensors: Mapping[str, Tensor]) -> list[int] | None:
        """The rows to keep, in order; None to keep all ``count`` rows, if none can be chosen.

        tensors: the captured ones, by path; only ``inputs``, ``outputs`` and ``labels`` are read.
        """
        if count < 1:  # it is not known what dimension 0 of the arguments holds
            self.without_rows += 1
            return None
        first, self._seen = self._seen, self._seen + count
        kind, number = self._samples
        if kind == "every":
            return [row for row in range(count) if (first + row) % number == 0]
        losses: list[float] = []
        is_wrong: list[bool] | None = None
        with guarded("labels and predictions of the program may be anything", program_code=True):
            losses, is_wrong = score_rows(count, tensors) or ([], None)
        if not losses or (kind == "wrong" and is_wrong is None):
            self.unscored += 1
            return None
        if kind == "wrong":
            return [row for row, wrong in enumerate(is_wrong or ()) if wrong]
        weights = [value if math.isfinite(value) else math.inf for value in losses]
        return sorted(sorted(range(count), key=lambda row: -weights[row])[:number])


def score_rows(count: int, tensors: Mapping[str, Tensor]) -> tuple[list[float], list[bool] | None] | None:
    """The loss of each row, and whether it is predicted wrong (None for regression). None if no labels fit."""
    outputs = [value for value in _list_part(tensors, "outputs", count) if value.is_floating_point()]
    inputs = _list_part(tensors, "inputs", count)
    for labels in _list_part(tensors, "labels", count):
        for output in outputs:
            scores = _score_pair(output.float(), labels, inputs)
            if scores is not None:
                losses, wrong = scores
                return losses.tolist(), None if wrong is None else wrong.tolist()
    return None


def _list_part(tensors: Mapping[str, Tensor], part: str, count: int) -> list[Tensor]:
    """The tensors of one part of the datapoint that have a row for each sample."""
    return [
        value
        for path, value in tensors.items()
        if (path == part or path.startswith((f"{part}.", f"{part}/"))) and value.shape[:1] == (count,)
    ]


def _score_pair(output: Tensor, labels: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor | None] | None:
    is_integer = not labels.is_floating_point() and not labels.is_complex()
    if labels.dim() == output.dim() == 2 and labels.shape[1] == 1 != output.shape[1]:
        labels = labels[:, 0]
    if is_integer and output.dim() == labels.dim() + 1 and output.numel() > labels.numel():
        if labels.shape == output.shape[:1] + output.shape[2:]:
            return _score_classes(output.flatten(2).transpose(1, 2) if output.dim() > 2 else output[:, None], labels)
        if labels.shape == output.shape[:-1]:
            if any(_are_same_tokens(value, labels) for value in inputs):
                output, labels = output[:, :-1], labels[:, 1:]  # a language model: each token predicts the next one
            return _score_classes(output.flatten(1, -2), labels)
    if output.numel() != labels.numel():
        return None
    output, labels = output.flatten(1) if output.dim() > 1 else output[:, None], labels.float().reshape(len(labels), -1)
    if bool(((labels == 0) | (labels == 1)).all()):
        if labels.shape[1] > 1 and bool((labels.sum(1) == 1).all()):  # one-hot
            return _score_classes(output[:, None], labels.argmax(1))
        return _score_binary(output, labels)
    return (output - labels).square().mean(1), None


def _are_same_tokens(tokens: Tensor, labels: Tensor) -> bool:
    """True if the labels are these tokens, but for those that are ignored: padding, or a prompt."""
    if tokens.shape != labels.shape:
        return False
    counts = labels != IGNORED
    return bool(counts.any()) and bool((tokens == labels)[counts].all())


def _score_classes(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """scores_BNC: N predictions per row; labels_BN or labels_B. Scores that sum to 1 are taken as probabilities."""
    labels = labels.reshape(len(labels), -1).long()
    counts = (labels != IGNORED) & (labels >= 0) & (labels < scores.shape[-1])
    target = labels.where(counts, 0)
    is_probability = bool((scores >= 0).all()) and bool(((scores.sum(-1) - 1.0).abs() <= SUM_ERROR).all())
    logs = scores.clamp(min=1e-12).log() if is_probability else functional.log_softmax(scores, -1)
    loss = -logs.gather(-1, target[..., None])[..., 0].where(counts, 0.0)
    number = counts.sum(1).clamp(min=1)
    wrong = ((scores.argmax(-1) != target) & counts).sum(1)
    return loss.sum(1) / number, wrong > HALF * number


def _score_binary(output: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Binary labels. outputs_BN: logits, or probabilities if all lie between 0 and 1."""
    is_probability = bool(((output >= 0) & (output <= 1)).all())
    if is_probability:
        loss = functional.binary_cross_entropy(output, labels, reduction="none")
    else:
        loss = functional.binary_cross_entropy_with_logits(output, labels, reduction="none")
    wrong = (output > (HALF if is_probability else 0.0)) != (labels > HALF)
    return loss.mean(1), wrong.float().mean(1) > HALF if labels.shape[1] > 1 else wrong[:, 0]
