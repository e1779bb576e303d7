"""Copies that nothing can change later: detached, on the host, no larger than what they show."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from tdbg.runtime.torch_compat import is_transformed

ITSELF = "<circular reference>"
UNREADABLE = "<a tensor inside torch.func, which has no values of its own>"


def snapshot(value: object) -> Any:
    """The same structure with a copy of every tensor in it.

    A tensor's copy is a plain tensor: detached, on the host, contiguous, of the same dtype, with as many bytes as
    it has elements (a slice does not keep what it was cut from); of a DTensor it is this rank's part. Outside of
    inference mode it can be used like any other, also where the tensor was made in it. A sparse tensor stays sparse.
    Tuples (named ones too), lists and mappings are copied, dataclasses become mappings, numpy arrays are copied;
    other objects are the same. A structure inside itself is replaced by a text.
    Cost: one copy of each tensor; from an accelerator one that waits.
    """
    with torch.inference_mode(False), torch.no_grad():
        return _copy_value(value, ())


def _copy_value(value: object, around: tuple[int, ...]) -> object:
    if isinstance(value, Tensor):
        return copy_of(value)
    if value is None or isinstance(value, str | bytes | int | float | complex):
        return value
    if id(value) in around:
        return ITSELF
    inside = (*around, id(value))
    if isinstance(value, Mapping):
        return {key: _copy_value(item, inside) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(_copy_value(item, inside) for item in value)
    if isinstance(value, list | tuple):
        items = [_copy_value(item, inside) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _copy_value(getattr(value, item.name, None), inside) for item in fields(value)}
    if type(value).__module__ == "numpy" and hasattr(value, "copy"):
        return value.copy()
    return value


def copy_of(tensor: Tensor) -> object:
    """The copy of one tensor, as `snapshot` says. A text where there is nothing to copy."""
    if is_transformed(tensor):
        return UNREADABLE
    data = tensor.detach()
    if hasattr(data, "to_local"):  # a DTensor: this rank's part, without a collective
        data = data.to_local()
    if data.is_mkldnn:
        data = data.to_dense()
    if data.layout != torch.strided or data.is_nested or data.is_meta:
        return data.clone() if data.is_meta else data.cpu().clone()
    data = data.resolve_conj().resolve_neg()
    if data.device.type != "cpu":
        return data.to("cpu").contiguous()
    return data.clone(memory_format=torch.contiguous_format)
