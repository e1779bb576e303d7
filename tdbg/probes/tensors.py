"""Small helpers over tensors: walk a structure, tell what is not finite, and why nothing more is read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

MAX_DEPTH = 6
MAX_ITEMS = 64


def walk(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in nested tuples, lists, mappings and dataclasses, with its path (``0.mask``).

    Bounded in depth and width: a structure with thousands of entries is looked at in part.
    """
    if isinstance(value, Tensor):
        yield name or "tensor", value
        return
    if depth >= MAX_DEPTH or value is None or isinstance(value, str | bytes | int | float):
        return
    if isinstance(value, Mapping):
        items = list(value.items())[:MAX_ITEMS]
    elif isinstance(value, list | tuple):
        items = list(enumerate(value[:MAX_ITEMS]))
    elif is_dataclass(value) and not isinstance(value, type):
        items = [(item.name, getattr(value, item.name, None)) for item in fields(value)][:MAX_ITEMS]
    else:
        return
    for key, item in items:
        yield from walk(item, f"{name}.{key}" if name else str(key), depth + 1)


def local(tensor: Tensor) -> Tensor:
    """The part of the tensor that is on this rank, without a collective (a DTensor's own shard)."""
    to_local = getattr(tensor, "to_local", None)
    if to_local is not None:
        tensor = to_local()
    return tensor._values() if tensor.is_sparse else tensor


def on_host(tensor: Tensor) -> bool:
    """True where reading a value waits for nothing; elsewhere it is read a step late."""
    return tensor.device.type == "cpu"


def is_sharded(tensor: Tensor) -> bool:
    """True for a DTensor (FSDP2, tensor parallel)."""
    return hasattr(tensor, "to_local")


def checkable(tensor: Tensor) -> bool:
    """True if the tensor can hold NaN or Inf and holds data of its own."""
    return (tensor.is_floating_point() or tensor.is_complex()) and not tensor.is_meta and tensor.numel() > 0


@dataclass(frozen=True, slots=True)
class Bad:
    """What is not finite in one tensor."""

    kind: str  # nan, inf or nan+inf
    count: int
    numel: int
    shape: list[int]
    dtype: str
    only_minus_inf: bool  # as a mask for softmax has on purpose


def look(tensor: Tensor) -> Bad | None:
    """An exact look at one tensor: None if all of it is finite. Cost: one to three passes, one sync."""
    if not checkable(tensor):
        return None
    data = local(tensor.detach())
    if data.element_size() == 1:  # fp8 has few operators
        data = data.to(torch.float32)
    finite = torch.isfinite(data)
    if bool(finite.all()):
        return None
    nan = int(torch.isnan(data).sum())
    count = int(data.numel() - finite.sum())
    plus = count - nan > 0 and not data.is_complex() and bool((data == float("inf")).any())
    kind = "nan" if nan == count else ("inf" if nan == 0 else "nan+inf")
    return Bad(
        kind=kind,
        count=count,
        numel=data.numel(),
        shape=list(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        only_minus_inf=nan == 0 and not plus and not data.is_complex(),
    )


def first_bad(value: Any) -> tuple[str, Bad] | None:
    """The first tensor in a structure that is not finite, with its path; -inf-only tensors come last."""
    weak: tuple[str, Bad] | None = None
    for name, tensor in walk(value):
        bad = look(tensor)
        if bad and not bad.only_minus_inf:
            return name, bad
        if bad and weak is None:
            weak = name, bad
    return weak
