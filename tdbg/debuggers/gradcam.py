"""GradCAM: which places of a layer's output speak for a class.

Shapes: B batch, K classes, C channels.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_count
from tdbg.debuggers import DEBUGGERS
from tdbg.debuggers.base import BaseDebugger, join_calls
from tdbg.debuggers.captured_stats import channel_dim, compute_stats, spatial_dims, time_first
from tdbg.debuggers.copies import snapshot
from tdbg.debuggers.hooks import require_hookable
from tdbg.debuggers.layers import get_layer_by_name
from tdbg.debuggers.second_pass import gradients_on, run_again
from tdbg.runtime.own_hooks import add_post_hook
from tdbg.runtime.tensors import iter_tensors

Classes = int | Sequence[int] | Tensor | None


class _Cut(NamedTuple):
    """One call of the layer in the second pass."""

    point: Tensor  # what the layer gave; gradients are those of this one
    behind: Tensor  # the copy of it that the model went on with
    blind: bool  # autograd did not record where the layer ran

    def validate_point(self, path: str) -> None:
        """An in-place operation that autograd does not record would be left out of the gradient."""
        if self.blind and self.behind._version:
            text = f"the model runs {path!r} under no_grad, and changes its output in place there"
            raise TdbgError(text, "choose the last layer under no_grad, or one after it")


@DEBUGGERS.add
class GradCAM(BaseDebugger):
    """The gradient-weighted class activation map of a layer, from a second forward pass of its own.

    target_layer: a path; the last convolution, as a rule, or a block of a transformer (BTC).
    target_class: one for all datapoints, one for each, or None for the one with the highest score.
    channel_dim: where the layer's channels are, if its kind does not say (see `channel_dim`).
    score: what to explain instead of a class: takes the model's output, gives a number per datapoint (B).

    Returns ``target_layer``, ``target_class`` (int64, B; -1 with ``score``), ``gradcam`` (B and the layer's spatial
    dimensions, float32, not scaled: relu(sum_C(mean of the gradient over space x activation))) and ``gradcam_stats``.
    None if the layer did not run. Of a layer that ran several times: see `ForwardDebugger.__call__`.

    Works within ``no_grad`` and ``inference_mode``, with frozen parameters, with a model in training mode (it runs in
    eval mode meanwhile). Gradients, modes, buffers, random states and hooks are as before afterwards, also after an
    exception. The pass calls the program's own hooks, and that of an FSDP model communicates: every rank must call it.
    Raises TdbgError if there is no such layer, class or score, or if no gradient reaches the layer (a model that runs
    under its own ``no_grad`` or ``inference_mode``).
    Cost: one forward pass, and backward down to the layer.
    Source: Selvaraju et al. 2017, "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization".
    """

    name = "gradcam"
    runs_again = True

    def __init__(
        self,
        target_layer: str,
        target_class: Classes = None,
        *,
        channel_dim: int | None = None,
        score: Callable[[object], Tensor] | None = None,
    ) -> None:
        self.target_layer = target_layer
        self.target_class = target_class
        self.channel_dim = channel_dim
        self.score = score

    def __call__(self, datapoint: Mapping[str, object], model: nn.Module) -> object:
        layer = require_hookable(self.target_layer, get_layer_by_name(model, self.target_layer))
        with gradients_on(model):
            with _cuts_at(self.target_layer, layer) as cuts:
                output = run_again(model, datapoint["inputs"])
            if not cuts:
                return None
            score, classes_B = self._score_of(output)
            pairs = zip(cuts, self._compute_gradients(score, cuts), strict=True)
            calls = [self._format_result(layer, cut.point, grad, classes_B) for cut, grad in pairs if grad is not None]
        return snapshot(join_calls(calls))

    def missing(self, model: nn.Module) -> str:
        """Why the last call gave None."""
        return f"not executed: {self.target_layer!r} did not run"

    def _score_of(self, output: object) -> tuple[Tensor, Tensor]:
        """The sum of all datapoints' scores, and the class of each."""
        if self.score is not None:
            score_B = self.score(output)
            return score_B.sum(), torch.full((score_B.numel(),), -1)
        logits_BK = _extract_logits(output)
        classes_B = _resolve_classes(self.target_class, logits_BK)
        return logits_BK.gather(1, classes_B[:, None]).sum(), classes_B

    def _compute_gradients(self, score: Tensor, cuts: list[_Cut]) -> Sequence[Tensor | None]:
        for cut in cuts:
            cut.validate_point(self.target_layer)
        found: Sequence[Tensor | None] = (None,)
        if score.requires_grad:
            found = torch.autograd.grad(score, [cut.point for cut in cuts], allow_unused=True)
        if all(grad is None for grad in found):
            text = f"no gradient reaches {self.target_layer!r} from the score"
            hint = "is there a no_grad, inference_mode, detach or argmax in the model, after or around that layer?"
            raise TdbgError(text, hint)
        return found

    def _format_result(self, layer: nn.Module, point: Tensor, grad: Tensor, classes_B: Tensor) -> dict[str, object]:
        map_B = self._compute_map(layer, point.detach().float(), grad.float())
        return {
            "gradcam": map_B,
            "target_layer": self.target_layer,
            "target_class": classes_B,
            "gradcam_stats": compute_stats(map_B),
        }

    def _compute_map(self, layer: nn.Module, activation: Tensor, grad: Tensor) -> Tensor:
        channel = self.channel_dim if self.channel_dim is not None else channel_dim(layer, activation)
        dims = spatial_dims(layer, activation, channel)
        if channel is None or not dims:
            text = f"the output of {self.target_layer!r} has no spatial axes to map: shape {list(activation.shape)}"
            raise TdbgError(text, "choose a layer whose output has shape BCHW or BTC")
        weight = grad.mean(dims, keepdim=True)
        found = (weight * activation).sum(channel).relu()
        return found.transpose(0, 1) if time_first(layer, activation) else found


@contextlib.contextmanager
def _cuts_at(path: str, layer: nn.Module) -> Iterator[list[_Cut]]:
    """Have the graph begin at a layer, so that parameters take no part, frozen ones neither. In the order of its calls.

    The model goes on with a copy, which an in-place operation behind the layer may change.
    """
    cuts: list[_Cut] = []
    thread = get_ident()

    def cut_graph(module: nn.Module, args: object, output: object) -> object:
        if get_ident() != thread:  # the program's own pass, beside this one
            return None
        found = next((tensor for _, tensor in iter_tensors(output) if tensor.is_floating_point()), None)
        if found is None:
            return None
        if torch.is_inference_mode_enabled():
            raise TdbgError(f"the model runs {path!r} under inference_mode", "use no_grad there instead")
        blind = not torch.is_grad_enabled()
        with torch.enable_grad():  # a frozen trunk may run under no_grad; what follows it does not
            # Gradients of an earlier call come through the later ones.
            point = found.clone() if cuts and found.requires_grad else found.detach().clone().requires_grad_()
            behind = point.clone()
        cuts.append(_Cut(point, behind, blind))
        return _replace_tensor(output, found, behind)

    handle = add_post_hook(layer, cut_graph)
    try:
        yield cuts
    finally:
        handle.remove()


def _replace_tensor(value: object, old: Tensor, new: Tensor) -> object:
    """The same structure with another tensor in one place."""
    if value is old:
        return new
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(_replace_tensor(item, old, new) for item in value)
    if isinstance(value, list | tuple):
        return type(value)(_replace_tensor(item, old, new) for item in value)
    if isinstance(value, Mapping):
        copied: Any = copy.copy(value)
        for key, item in value.items():
            copied[key] = _replace_tensor(item, old, new)
        return copied
    return value


def _extract_logits(output: object) -> Tensor:
    """One score per datapoint and class out of what a model returned: BK; over places (BKHW) they are averaged."""
    if not isinstance(output, Tensor) and isinstance(named := _read_field(output, "logits"), Tensor):
        output = named
    found = next((tensor for _, tensor in iter_tensors(output) if tensor.is_floating_point()), None)
    if found is None or found.dim() == 0:
        raise TdbgError("the model's output holds no class scores", "say what to explain: GradCAM(..., score=...)")
    logits_BK = found[:, None] if found.dim() == 1 else found
    return logits_BK.flatten(2).mean(2) if logits_BK.dim() > 2 else logits_BK


def _read_field(output: object, name: str) -> object:
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def _resolve_classes(wanted: Classes, logits_BK: Tensor) -> Tensor:
    """The class of each datapoint (B)."""
    batch, classes = logits_BK.shape
    if wanted is None:
        return logits_BK.detach().argmax(1)
    found_B = torch.as_tensor(wanted, dtype=torch.int64, device=logits_BK.device).reshape(-1)
    if found_B.numel() not in (1, batch):
        text = f"target_class names {format_count(found_B.numel(), 'class')} for {format_count(batch, 'datapoint')}"
        raise TdbgError(text, "give one class, or one for each datapoint")
    if bool(((found_B < 0) | (found_B >= classes)).any()):
        raise TdbgError(
            f"target_class is {found_B.tolist()}, but the model has {format_count(classes, 'class')}",
            "class indices start at 0",
        )
    return found_B.expand(batch)
