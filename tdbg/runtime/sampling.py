"""A few elements of a tensor, evenly spread, without a copy."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

from tdbg.runtime.tensors import is_checkable, to_local_part

T = TypeVar("T")
SAMPLE = 1024  # elements
# A sample is taken in runs: of elements further apart each would cost a cache line, as much as reading all of them.
RUN = 64  # elements


def view_sample(tensor: Tensor, count: int) -> Tensor | None:
    """A view of at most ``count`` elements in a row, evenly spread over this rank's part of the tensor.

    None where there are none, where they cannot be NaN, or where a view of them is not possible. The stride is
    odd, so that no column of a power-of-two width is left out.
    """
    if not is_checkable(tensor):
        return None
    data = to_local_part(tensor.detach())
    if data.is_complex() or data.numel() == 0:
        return None
    return view_strided_sample(data, count)


def view_strided_sample(data: Tensor, count: int) -> Tensor | None:
    """The same of data that `view_sample` would not have to ask about; one operation."""
    if not _in_a_row(data):
        return None
    numel = data.numel()
    stride = max((numel // count - 1) | 1, 1) if numel > count else 1
    return data.as_strided((min(numel, count),), (stride,), data.storage_offset())


def view_runs(data: Tensor, count: int) -> Tensor | None:
    """A view of ``count`` elements in runs of 64, evenly spread: (count / 64, 64). Cost: 2 us, and 4 cache lines a run.

    None where there are no more than ``count``, or where no such view is possible.
    """
    numel = data.numel()
    if numel <= count or not _in_a_row(data):
        return None
    rows = count // RUN
    return data.as_strided((rows, RUN), ((numel - RUN) // (rows - 1), 1), data.storage_offset())


def stack_samples(found: Sequence[Tensor]) -> Tensor:
    """A row of SAMPLE elements of each, evenly spread; those of a smaller tensor in turn.

    Returns: (len(found), SAMPLE), float32, a copy. Cost: 5 us a row.
    Raises: RuntimeError for tensors of unlike devices.
    """
    return torch.stack([_runs_of(data) for data in found]).flatten(1)


def _runs_of(data: Tensor) -> Tensor:
    """SAMPLE elements as float32, in rows of RUN."""
    if data.is_complex():
        data = data.real
    part = view_runs(data, SAMPLE)
    if part is None and data.numel() > SAMPLE:
        part = view_runs(data.contiguous(), SAMPLE)
    if part is None:
        part = torch.take(data, _in_turn(data.numel(), data.device)).view(-1, RUN)
    return part if part.dtype == torch.float32 else part.to(torch.float32)


@lru_cache(maxsize=256)
def _in_turn(count: int, device: torch.device) -> Tensor:
    """SAMPLE places in a tensor of ``count`` elements, from the first to the last and again."""
    return torch.arange(SAMPLE, device=device) % count


def spread_of(norms_N: Tensor, means_N: Tensor) -> Tensor:
    """The standard deviation of samples, from their norms and means; it cancels where |mean| > 1,000 std."""
    return (norms_N.square() / SAMPLE - means_N.square()).clamp_(min=0.0).sqrt_()


def _in_a_row(data: Tensor) -> bool:
    """True where all elements lie in a row, in whatever order."""
    return data.is_contiguous() or _fills_its_span(data)


def _fills_its_span(data: Tensor) -> bool:
    """True where all elements lie in a row, in whatever order: channels last, transposed."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(data.shape, data.stride(), strict=True))
    return span == data.numel()


def select_evenly(items: list[T], count: int) -> list[T]:
    """At most ``count`` of the items, evenly spread, the first one among them."""
    if len(items) <= count:
        return items
    return [items[index * len(items) // count] for index in range(count)]
