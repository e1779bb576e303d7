"""The arguments that reach torch's loss functions, as far as they say what is masked, weighted or smoothed."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tdbg.runtime import tensors

HELD_BYTES = 1 << 22  # of the targets of one call, kept until the next step; larger ones are held weakly
NONE, MEAN, SUM = 0, 1, 2  # torch's numbers for reductions


class Layout(NamedTuple):
    """Where a function of torch expects its arguments. -1: it has no such argument."""

    name: str  # in `torch.nn.functional`
    reduction: int = 2
    target: int = 1
    weight: int = -1
    pos_weight: int = -1
    ignore_index: int = -1
    smoothing: int = -1


LAYOUTS = {
    "cross_entropy_loss": Layout("cross_entropy", 3, weight=2, ignore_index=4, smoothing=5),
    "nll_loss_nd": Layout("nll_loss", 3, weight=2, ignore_index=4),
    "multi_margin_loss": Layout("multi_margin_loss", 5, weight=4),
    "binary_cross_entropy": Layout("binary_cross_entropy", 3, weight=2),
    "binary_cross_entropy_with_logits": Layout("binary_cross_entropy_with_logits", 4, weight=2, pos_weight=3),
    "poisson_nll_loss": Layout("poisson_nll_loss", 5),
    "margin_ranking_loss": Layout("margin_ranking_loss", 4, target=2),
    "cosine_embedding_loss": Layout("cosine_embedding_loss", 4, target=2),
    "hinge_embedding_loss": Layout("hinge_embedding_loss", 3),
} | {
    name: Layout(name)
    for name in (
        *("kl_div", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
        *("multilabel_margin_loss", "soft_margin_loss"),
    )
}
OF_CLASSES = ("cross_entropy", "nll_loss", "multi_margin_loss")
OF_LABELS = ("binary_cross_entropy", "binary_cross_entropy_with_logits")


@dataclass(slots=True)
class LossCall:
    """One call of a loss function. Targets are held weakly where they are large."""

    name: str
    kind: str  # classes: indices; rows: soft targets; labels: a probability an element; numbers: all else
    shape: tuple[int, ...]  # of the input
    count: int  # targets
    target: Callable[[], Tensor | None]
    weight: Tensor | None
    pos_weight: Tensor | None
    reduction: int
    ignore_index: int | None
    smoothing: float
    in_logs: bool  # the targets are logarithms (kl_div)
    graded: bool  # gradients are recorded: training
    step: int = 0

    @property
    def classes(self) -> int:
        """C of an input (N, C, ...) or (C)."""
        return self.shape[1] if len(self.shape) > 1 else (self.shape[0] if self.shape else 0)

    @property
    def can_mask(self) -> bool:
        """True if the call says which targets count."""
        return self.kind in ("classes", "rows") or self.weight is not None

    @classmethod
    def from_arguments(cls, layout: Layout, args: Sequence[object], kwargs: Mapping[str, object]) -> "LossCall | None":
        """The call, from its arguments; None where one of them shows no values of its own (a subclass, a tracer).

        The input may be missing: nothing but its shape is looked at.
        """

        def find_argument(place: int, name: str, default: object = None) -> object:
            return args[place] if 0 <= place < len(args) else kwargs.get(name, default)

        given, target = find_argument(0, "input"), find_argument(layout.target, "target")
        weight, pos_weight = find_argument(layout.weight, "weight"), find_argument(layout.pos_weight, "pos_weight")
        if not isinstance(target, Tensor):
            return None
        if not all(one is None or _is_plain(one) for one in (target, weight, pos_weight)):
            return None
        ignored = find_argument(layout.ignore_index, "ignore_index", -100) if layout.ignore_index >= 0 else None
        reduction, smoothing = (
            find_argument(layout.reduction, "reduction", NONE),
            find_argument(layout.smoothing, "label_smoothing", 0.0),
        )
        return cls(
            name=layout.name,
            kind=_kind_of(layout.name, target),
            shape=tuple(tensors.shape_of(given)) if isinstance(given, Tensor) else (),
            count=target.numel(),
            target=_hold_target(target),
            weight=weight if isinstance(weight, Tensor) else None,
            pos_weight=pos_weight if isinstance(pos_weight, Tensor) else None,
            reduction=reduction if isinstance(reduction, int) else NONE,
            ignore_index=ignored if isinstance(ignored, int) else None,
            smoothing=smoothing if isinstance(smoothing, float) else 0.0,
            in_logs=kwargs.get("log_target") is True,
            graded=torch.is_grad_enabled(),
        )


def _is_plain(found: object) -> bool:
    """True for a dense tensor with values, of no class but torch's own."""
    if type(found) is not Tensor and type(found) is not nn.Parameter:
        return False
    return found.layout == torch.strided and not found.is_meta and not found.is_quantized


def _kind_of(name: str, target: Tensor) -> str:
    if name in OF_CLASSES:
        return "rows" if target.is_floating_point() else "classes"
    if name in OF_LABELS:
        return "labels"
    return "rows" if name == "kl_div" else "numbers"


def _hold_target(target: Tensor) -> Callable[[], Tensor | None]:
    """What gives the targets back as long as they are there; no gradient hangs on them."""
    if target.numel() * target.element_size() > HELD_BYTES:
        return weakref.ref(target)
    held = target.detach()
    return lambda: held
