"""A few elements of a tensor, evenly spread, without a copy."""

from typing import TypeVar

import torch
from torch import Tensor

from tdbg.probes.tensors import checkable, local

T = TypeVar("T")
SAMPLE = 1024  # elements


def spread(tensor: Tensor, count: int) -> Tensor | None:
    """A view of at most ``count`` elements in a row, evenly spread over this rank's part of the tensor.

    None where there are none, where they cannot be NaN, or where a view of them is not possible. The stride is
    odd, so that no column of a power-of-two width is left out.
    """
    if not checkable(tensor):
        return None
    data = local(tensor.detach())
    if data.is_complex() or data.numel() == 0:
        return None
    flat = _in_a_row(data)
    if flat is None or data.numel() <= count:
        return flat
    stride = max((data.numel() // count - 1) | 1, 1)
    return flat[: count * stride : stride]


def sampled(data: Tensor) -> Tensor:
    """A copy of SAMPLE elements as float32, evenly spread; those of a smaller tensor in turn."""
    if data.is_complex():
        data = data.real
    count = data.numel()
    if count < SAMPLE:
        return data.flatten().repeat(-(-SAMPLE // count))[:SAMPLE].to(torch.float32)
    part = spread(data, SAMPLE)
    if part is None:
        part = spread(data.contiguous(), SAMPLE)
    assert part is not None  # what is contiguous lies in a row
    return part.to(torch.float32, copy=True)


def _in_a_row(data: Tensor) -> Tensor | None:
    """All elements in any order, without a copy; None where that takes one."""
    if data.is_contiguous():
        return data.view(-1)
    span = 1 + sum((size - 1) * stride for size, stride in zip(data.shape, data.stride(), strict=True))
    if span == data.numel():  # channels last, transposed
        return data.as_strided((data.numel(),), (1,), data.storage_offset())
    return None


def evenly(items: list[T], count: int) -> list[T]:
    """At most ``count`` of the items, evenly spread, the first one among them."""
    if len(items) <= count:
        return items
    return [items[index * len(items) // count] for index in range(count)]
