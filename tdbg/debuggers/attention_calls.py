"""Attention weights out of torch's own attention functions, which do not give them away.

Whoever listens is told of every call and can have its weights, worked out again from the same queries and keys. The
functions themselves are called as they would be, so what they return is the same to the last bit.

Shapes: B batch, H heads, L queries, S keys, E features.
"""

import functools
import inspect
import math
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tdbg.core.frames import drop_own_frames
from tdbg.core.guard import Guard
from tdbg.debuggers.hooks import Removable, is_program_forward
from tdbg.runtime.compiler import hide_from_compiler
from tdbg.runtime.patches import Patches
from tdbg.runtime.torch_hooks import iter_targets

SDPA = F.scaled_dot_product_attention
LIMIT_MB = 512.0  # attention weights that are larger are not worked out


class NoWeights(ValueError):
    """The weights cannot be worked out, or would take more memory than they may."""


class Call(Protocol):
    """One call of an attention function, while it is being told of."""

    kind: str  # the function's name
    dropout_p: float  # share of the weights that the call itself dropped; the weights told here are those before
    out_weight: Tensor | None  # the output projection, by which a module knows its own calls

    def compute_weights(self, *, per_head: bool, limit_mb: float) -> Tensor:
        """B(H)LS: what the call gave, or the same worked out again. Raises NoWeights."""


class Listener(Protocol):
    """Somebody who wants to know of attention calls. guard: the one that its work is done below."""

    @property
    def guard(self) -> Guard: ...

    def accepts_call(self, call: Call) -> bool: ...

    def record_call(self, call: Call) -> None: ...


class ScaledDotProduct:
    """A call of ``scaled_dot_product_attention``; the mask may be boolean, added, a torch.nn.attention.bias, or causal."""

    kind = "scaled_dot_product_attention"
    out_weight: Tensor | None = None

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        self.query, self.key, self.mask = query, key, attn_mask
        self.dropout_p, self.causal, self.scale, self.grouped = dropout_p, is_causal, scale, enable_gqa

    def compute_weights(self, *, per_head: bool, limit_mb: float) -> Tensor:
        """softmax(q k / sqrt(E) + mask), in float32; 0 in rows that may look at nothing. Heads are as in the call."""
        if self.query.is_nested:
            raise NoWeights("queries are nested tensors: their attention weights are not computed")
        with torch.autocast(self.query.device.type, enabled=False):
            return self._worked_out(limit_mb)

    def _worked_out(self, limit_mb: float) -> Tensor:
        query, key = _to_float(self.query), _to_float(self.key)
        if self.grouped:
            key = key.repeat_interleave(query.size(-3) // key.size(-3), dim=-3)
        batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        _check_size(math.prod(batch) * query.size(-2) * key.size(-2), limit_mb)
        scale = 1 / math.sqrt(query.size(-1)) if self.scale is None else self.scale
        mask = self.mask if self.mask is None or not hasattr(self.mask, "_materialize") else self.mask._materialize()
        return softmax_of(query @ key.transpose(-2, -1) * scale, mask, causal=self.causal)


class MultiHead:
    """A call of ``multi_head_attention_forward``, by which ``nn.MultiheadAttention`` runs when its fast path does not."""

    kind = "MultiheadAttention"

    def __init__(self, original: Callable[..., Any], given: Tensor | None, arguments: dict[str, Any]) -> None:
        self.original, self.given, self.arguments = original, given, arguments
        self.dropout_p = arguments["dropout_p"] if arguments["training"] else 0.0
        self.out_weight: Tensor | None = arguments["out_proj_weight"]

    def compute_weights(self, *, per_head: bool, limit_mb: float) -> Tensor:
        """What the call itself gave, unless that has gone through dropout, or lacks the heads that are asked for."""
        averaged = self.arguments["average_attn_weights"]
        if self.given is not None and not self.dropout_p and not (per_head and averaged):
            return self.given.detach().clone()
        query, key = self.arguments["query"], self.arguments["key"]
        batch = query.size(1) if query.dim() == 3 else 1
        _check_size(batch * self.arguments["num_heads"] * query.size(0) * key.size(0), limit_mb)
        asked = {"training": False, "need_weights": True, "average_attn_weights": averaged and not per_head}
        found: Tensor = self.original(**{**self.arguments, **asked})[1]
        return found


class Fused:
    """Self-attention inside one of torch's fused functions, which take the projections with them."""

    kind = "MultiheadAttention"
    dropout_p = 0.0  # these functions run in eval mode alone

    def __init__(
        self,
        x_BLE: Tensor,
        heads: int,
        projection: tuple[Tensor, Tensor],
        out_weight: Tensor,
        mask: Tensor | None,
        *,
        averaged: bool = True,
        norm: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.x_BLE, self.heads, self.projection, self.mask = x_BLE, heads, projection, mask
        self.out_weight: Tensor | None = out_weight
        self.averaged, self.norm = averaged, norm

    def compute_weights(self, *, per_head: bool, limit_mb: float) -> Tensor:
        """BHLS, or averaged over the heads (BLS) if the module would have given that."""
        x_BLE, mask = self.x_BLE.detach(), self.mask
        if x_BLE.is_nested:
            x_BLE, mask = _pad_nested(x_BLE)
        if self.norm is not None:
            x_BLE = self.norm(x_BLE)
        _check_size(x_BLE.size(0) * self.heads * x_BLE.size(1) ** 2, limit_mb)
        width = x_BLE.size(-1)
        weight, bias = (part[: 2 * width] for part in self.projection)
        qk_BLF = _to_float(F.linear(x_BLE, weight, bias))
        query, key = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in qk_BLF.split(width, dim=-1))
        if mask is not None and mask.dim() == 2 and mask.shape == x_BLE.shape[:2]:
            mask = mask[:, None, None, :]
        if mask is not None and mask.dtype == torch.bool:
            mask = ~mask  # these functions say where not to look
        found = softmax_of(query @ key.transpose(-2, -1) / math.sqrt(query.size(-1)), mask)
        return found.mean(1) if self.averaged and not per_head else found


def _to_float(tensor: Tensor) -> Tensor:
    data = tensor.detach()
    return data if data.dtype == torch.float64 else data.float()


def _check_size(elements: int, limit_mb: float) -> None:
    if elements * 4 > limit_mb * 1e6:
        raise NoWeights(f"the weights would take {elements * 4 / 1e6:,.0f} MB, more than limit_mb={limit_mb:g}")


def _pad_nested(x: Tensor) -> tuple[Tensor, Tensor]:
    """A nested tensor as BLE, and where it has no tokens."""
    lengths_B = torch.tensor([row.size(0) for row in x.unbind()], device=x.device)
    whole = torch.nested.to_padded_tensor(x, 0.0)
    return whole, torch.arange(whole.size(1), device=x.device) >= lengths_B[:, None]


def softmax_of(scores: Tensor, mask: Tensor | None, *, causal: bool = False) -> Tensor:
    """Over the last dimension. mask: True where to look, or what is added; a row that may look at nothing is 0."""
    if causal:
        here = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~here, -math.inf)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    blind = (scores == -math.inf).all(-1, keepdim=True)
    return scores.softmax(-1).masked_fill(blind, 0.0)


class Overhears(TorchFunctionMode):
    """While it is entered, whoever calls ``scaled_dot_product_attention`` in this thread, by any name, is heard.

    The function itself, and what tensor subclasses make of it, stay as they are. But torch's fused inference paths are
    not taken meanwhile: it must not be entered around an nn.MultiheadAttention.
    """

    def __init__(self, hear: Callable[[Call], None], guard: Guard) -> None:
        super().__init__()
        self._hear = hear
        self._guard = guard

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        try:  # not `own_frames_dropped`: the compiler may trace this function
            result = function(*args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        if not torch.compiler.is_compiling() and function is SDPA:
            self._guard.call_guarded(self._report_attention_call, args, kwargs)
        return result

    def _report_attention_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_program_forward():
            with torch.no_grad():
                self._hear(ScaledDotProduct(*args, **kwargs))


# What a call of each other function is, from its original, its arguments and its result.


def _multi_head(original: Callable[..., object], result: Any, *args: object, **kwargs: object) -> Call:
    bound = inspect.signature(original).bind(*args, **kwargs)
    bound.apply_defaults()
    return MultiHead(original, result[1], dict(bound.arguments))


def _parse_native_call(original: Callable[..., object], result: object, *args: Any, **kwargs: object) -> Call:
    query, _, _, _, heads, weight, bias, out, _, mask, _, averaged, *_ = args
    return Fused(query, heads, (weight, bias), out, mask, averaged=averaged)


def _parse_encoder_call(original: Callable[..., object], result: object, *args: Any, **kwargs: object) -> Call:
    src, width, heads, weight, bias, out, _, _, norm_first, eps, norm_weight, norm_bias, *rest = args
    norm = (lambda x: F.layer_norm(x, (width,), norm_weight, norm_bias, eps)) if norm_first else None
    return Fused(src, heads, (weight, bias), out, rest[6] if len(rest) > 6 else None, norm=norm)


CALLS: dict[str, Callable[..., Call]] = {
    "multi_head_attention_forward": _multi_head,
    "_native_multi_head_attention": _parse_native_call,
    "_transformer_encoder_layer_fwd": _parse_encoder_call,
}


class Taps:
    """Stands in front of the functions by which nn.MultiheadAttention runs, while somebody listens.

    A hook on the module would keep torch's encoder from its fused path.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._patches = Patches()
        self.listeners: tuple[Listener, ...] = ()

    def add_listener(self, listener: Listener) -> Removable:
        """Have a listener told of calls, in all threads, until the result's ``remove()``."""
        with self._lock:
            self.listeners = (*self.listeners, listener)
            if len(self.listeners) == 1:
                for owner, name in iter_targets("attention"):
                    self._patches.wrap_attribute(owner, name, functools.partial(self._wrap_function, CALLS[name]))
        return _Ear(self, listener)

    def remove_listener(self, listener: Listener) -> None:
        """It listens no longer."""
        with self._lock:
            self.listeners = tuple(found for found in self.listeners if found is not listener)
            if not self.listeners:
                self._patches.restore()

    def _wrap_function(self, call_of: Callable[..., Call], original: Callable[..., object]) -> Callable[..., object]:
        def attention(*args: object, **kwargs: object) -> object:
            result = original(*args, **kwargs)
            if not torch.compiler.is_compiling():
                for listener in self.listeners:
                    listener.guard.call_guarded(_notify_listener, listener, call_of, original, result, args, kwargs)
            return result

        hide_from_compiler(attention)
        return attention


def _notify_listener(
    listener: Listener,
    call_of: Callable[..., Call],
    original: Callable[..., object],
    result: object,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> None:
    if is_program_forward():
        with torch.no_grad():
            call = call_of(original, result, *args, **kwargs)
            if listener.accepts_call(call):
                listener.record_call(call)


class _Ear:
    def __init__(self, taps: Taps, listener: Listener) -> None:
        self.taps, self.listener = taps, listener

    def remove(self) -> None:
        self.taps.remove_listener(self.listener)


TAPS = Taps()
