"""Attention: where a layer looks.

Shapes: B batch, H heads, L queries, S keys.
"""

import threading
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tdbg.debuggers import DEBUGGERS
from tdbg.debuggers.attention_calls import LIMIT_MB, TAPS, Call, NoWeights, Overhears
from tdbg.debuggers.base import ForwardDebugger
from tdbg.debuggers.captured_stats import to_real_numbers
from tdbg.debuggers.copies import snapshot
from tdbg.debuggers.hooks import BARE, Hooks
from tdbg.debuggers.layers import unwrap_all
from tdbg.runtime.own_hooks import add_post_hook, add_pre_hook
from tdbg.runtime.tensors import iter_tensors

SURE = 1e-2  # how far from 1 the sum of a row of weights may be, in half precision
NO_WEIGHTS = (
    "no attention weights: the output holds none, and neither scaled_dot_product_attention nor nn.MultiheadAttention ran "
    "in it. For weights computed by hand, choose their softmax or dropout layer, if there is one"
)
NOT_ROWS = "rows do not sum to 1: the layer's output is stored unchanged"


@DEBUGGERS.add
class Attention(ForwardDebugger):
    """The attention weights of a layer.

    They are taken from, in this order: ``scaled_dot_product_attention`` and ``nn.MultiheadAttention`` calls while the
    layer runs (worked out again from the same queries, keys and masks, before dropout); the weights in its output, as
    Hugging Face's attention modules return them, ``(out, weights)``; an output that is a plain attention tensor. An
    ``nn.MultiheadAttention`` needs no ``need_weights``; an ``nn.TransformerEncoderLayer`` stands for its self-attention.
    What the model computes is the same to the last bit.

    per_head: give BHLS also where an ``nn.MultiheadAttention`` is asked for the average over its heads (BLS).
    limit_mb: weights that are larger (H * L * S floats a datapoint) are not worked out; a ``note`` says so.
    Returns ``layer_name``, ``attention_map`` (B(H)LS), ``source`` and ``attention_stats``: entropy (mean over all rows of
    -sum(a log(a + 1e-8)), nats), max_attention, attention_distribution (mean over dim 0). ``dropout_p`` is there if the
    layer dropped weights, ``note`` if there is no map or it is odd. A layer in which several calls ran has the first
    one's, and ``others`` those of each other by its number.
    Limits: a fused kernel of another library (flash-attn, xformers) and flex_attention are not seen.
    Cost:   the product of queries and keys again, and a copy of the weights to the host.
    """

    name = "attention"

    def __init__(self, layer_name: str, *, per_head: bool = False, limit_mb: float = LIMIT_MB) -> None:
        super().__init__(layer_name)
        self.per_head = per_head
        self.limit_mb = limit_mb

    @property
    def _running(self) -> "_Running":
        running: _Running = self.__dict__.setdefault("_running_by_thread", _Running())
        return running

    def process_forward(self, module: nn.Module, input: object, output: object) -> dict[str, object]:
        """What was heard while the layer ran, or what its output holds."""
        running = self._running.layers
        heard = running[-1] if running else []
        return self._format_calls(heard or [self._in_output(output)])

    def _format_calls(self, heard: list[dict[str, object]]) -> dict[str, object]:
        first, *more = heard
        others = {"others": {str(number): row for number, row in enumerate(more, start=1)}} if more else {}
        return {"layer_name": self.layer_name, **first, **others}

    # what runs in the layer

    def _add_layer_hooks(self, layer: nn.Module, hooks: Hooks) -> None:
        target = attention_in(layer)
        if target is not None:  # a hook there would keep torch's encoder from its fused path, and change bits
            hooks.add(TAPS.add_listener(_OfModule(self, target)))
            return
        hooks.add(add_pre_hook(layer, self._build_hook(self._enter_layer)))
        for part in parts_without(layer):
            hooks.add(add_pre_hook(part, self._build_hook(self._start_overhearing)))
            hooks.add(add_post_hook(part, self._build_hook(self._stop_overhearing, undoes=True), always_call=True))
        super()._add_layer_hooks(layer, hooks)
        hooks.add(add_post_hook(layer, self._build_hook(self._leave_layer, undoes=True), always_call=True))
        hooks.add(TAPS.add_listener(_WhileRunning(self)))

    def _has_own_hook(self, layer: nn.Module) -> bool:
        target = attention_in(layer)
        heard = (listener for listener in TAPS.listeners if isinstance(listener, _OfModule))
        return super()._has_own_hook(layer) or any(each.owner is self and each.module is target for each in heard)

    def _enter_layer(self, module: nn.Module, args: object) -> None:
        self._running.layers.append([])

    def _leave_layer(self, module: nn.Module, args: object, output: object) -> None:
        if self._running.layers:
            self._running.layers.pop()

    def _start_overhearing(self, module: nn.Module, args: object) -> None:
        mode = Overhears(self._record_call, self._hook_guard)
        TorchFunctionMode.__enter__(mode)
        self._running.modes.append(mode)

    def _stop_overhearing(self, module: nn.Module, args: object, output: object) -> None:
        if self._running.modes:
            TorchFunctionMode.__exit__(self._running.modes.pop(), None, None, None)

    def _record_call(self, call: Call) -> None:
        if self._running.layers:
            self._running.layers[-1].append(self.describe_call(call))

    def describe_call(self, call: Call) -> dict[str, object]:
        """What is told of one call of an attention function."""
        dropped = {"dropout_p": call.dropout_p} if call.dropout_p else {}
        try:
            weights = call.compute_weights(per_head=self.per_head, limit_mb=self.limit_mb)
        except NoWeights as error:
            return {"source": call.kind, "note": str(error), **dropped}
        return {"source": call.kind, **_compute_stats(weights), **dropped}

    # what is in the output

    def _in_output(self, output: object) -> dict[str, object]:
        if isinstance(output, Tensor):
            odd = {} if _are_rows(output) else {"note": NOT_ROWS}
            return {"source": "output", **_compute_stats(output), **odd} if output.dim() >= 2 else {"note": NO_WEIGHTS}
        found = _weights_in(output)
        return {"note": NO_WEIGHTS} if found is None else {"source": "output", **_compute_stats(found)}


class _Running(threading.local):
    """The layers that run in a thread, each with what was heard in it."""

    def __init__(self) -> None:
        self.layers: list[list[dict[str, object]]] = []
        self.modes: list[Overhears] = []

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), ()


class _WhileRunning:
    """Listens to all attention in a layer while it runs in this thread."""

    def __init__(self, owner: Attention) -> None:
        self.owner, self.guard = owner, owner._hook_guard

    def accepts_call(self, call: Call) -> bool:
        return bool(self.owner._running.layers)

    def record_call(self, call: Call) -> None:
        self.owner._record_call(call)


class _OfModule:
    """Listens to one nn.MultiheadAttention, which it knows by its output projection."""

    def __init__(self, owner: Attention, module: nn.MultiheadAttention) -> None:
        self.owner, self.module, self.guard = owner, module, owner._hook_guard

    def accepts_call(self, call: Call) -> bool:
        return call.out_weight is not None and call.out_weight is self.module.out_proj.weight

    def record_call(self, call: Call) -> None:
        self.owner._keep_capture(snapshot(self.owner._format_calls([self.owner.describe_call(call)])))


def attention_in(layer: nn.Module) -> nn.MultiheadAttention | None:
    """The module that can be listened to instead of being hooked: nn.MultiheadAttention, also in an encoder layer."""
    found = unwrap_all(layer.self_attn) if isinstance(layer, nn.TransformerEncoderLayer) else layer
    same = isinstance(found, nn.MultiheadAttention) and type(found).forward is nn.MultiheadAttention.forward
    return found if same and isinstance(found, nn.MultiheadAttention) else None


def parts_without(layer: nn.Module) -> Iterator[nn.Module]:
    """The layer, or else the largest parts of it, in which there is no nn.MultiheadAttention."""
    if isinstance(layer, (*BARE, nn.MultiheadAttention)):
        return
    if not any(isinstance(module, nn.MultiheadAttention) for module in layer.modules()):
        yield layer
        return
    for child in layer.children():
        yield from parts_without(child)


def _compute_stats(weights: Tensor) -> dict[str, object]:
    data = to_real_numbers(weights)
    if not data.numel():
        return {"attention_map": weights, "note": "the attention map is empty"}
    entropy, highest = torch.stack([-(data * (data + 1e-8).log()).sum(-1).mean(), data.max()]).tolist()
    stats = {"entropy": entropy, "max_attention": highest, "attention_distribution": data.mean(0)}
    return {"attention_map": weights, "attention_stats": stats}


def _are_rows(tensor: Tensor) -> bool:
    """True if every row is a distribution, or 0 where all was masked."""
    if tensor.dim() < 2 or not tensor.is_floating_point() or not tensor.numel():
        return False
    sum_ = to_real_numbers(tensor).sum(-1)
    return bool((tensor >= 0).all() & (((sum_ - 1).abs() < SURE) | (sum_ == 0)).all())


def _weights_in(output: object) -> Tensor | None:
    """The attention weights in what an attention module returned; dropout may have been at them."""
    tensors = [
        (path, tensor) for path, tensor in iter_tensors(output) if tensor.is_floating_point() and tensor.dim() >= 2
    ]
    named = next((tensor for path, tensor in tensors if "attn" in path or "attention" in path), None)
    rows = next((tensor for _, tensor in tensors if _are_rows(tensor)), None)
    second = output[1] if isinstance(output, list | tuple) and len(output) > 1 else None
    square = second if isinstance(second, Tensor) and second.dim() >= 3 else None
    for found in (named, rows, square):
        if found is not None:
            return found
    return None
