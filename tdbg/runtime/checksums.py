"""Checksums of samples of tensors, made where the tensors are, by which ranks are compared without a collective."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tdbg.runtime import tensors

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor

MAX_ELEMENTS = 256  # of a sample
PIECE = 1 << 24  # a float32 holds integers below it exactly
ODD = 0x9E3779B1  # sums of odd multiples differ wherever one element does


@lru_cache(maxsize=8)
def _build_multipliers(device: torch.device) -> Tensor:
    """An odd number for each place of a sample."""
    places = torch.arange(MAX_ELEMENTS, dtype=torch.int64, device="cpu")
    return ((places * 2 + 1) * ODD | 1).to(device)


def checksum_pieces(samples: Sequence[Tensor]) -> Tensor:
    """Two integers below 2**24 a sample, as float32: equal for equal elements, and hardly ever for others."""
    device = samples[0].device
    sizes = [sample.numel() for sample in samples]
    values = torch.cat([sample.detach().reshape(-1).float() for sample in samples]).nan_to_num() + 0.0  # -0.0 is 0.0
    places = torch.cat([_build_multipliers(device)[:size] for size in sizes])
    sums = _sum_rows(values.view(torch.int32).to(torch.int64) * places, sizes)
    return torch.cat([sums & (PIECE - 1), (sums >> 24) & (PIECE - 1)]).float()


def sample_norms(samples: Sequence[Tensor]) -> Tensor:
    """The norm of each sample."""
    values = torch.cat([sample.detach().float() for sample in samples])
    return _sum_rows(values.square(), [sample.numel() for sample in samples]).sqrt()


def _sum_rows(values: Tensor, sizes: Sequence[int]) -> Tensor:
    rows = torch.repeat_interleave(torch.tensor(sizes, device="cpu")).to(values.device)
    return values.new_zeros(len(sizes)).index_add_(0, rows, values)


def join_pieces(values: Sequence[float]) -> list[str]:
    """The checksums, as twelve hexadecimal digits each."""
    half = len(values) // 2
    return [f"{int(high):06x}{int(low):06x}" for low, high in zip(values[:half], values[half:], strict=True)]


def read_values(monitor: "Monitor", values: Tensor, then: Callable[[list[float]], None]) -> None:
    """Hand the values over now, or a step late where a device would have to be waited for."""
    if tensors.on_host(values):
        then(values.tolist())
    else:
        monitor.read_late(values, lambda found, record: then(found))


def checksum_rows(rows_NE: Tensor) -> list[int]:
    """A checksum of each row of numbers on the host; equal rows have equal ones, in whatever batch they come."""
    values_NE = rows_NE.detach().to(torch.float32).nan_to_num() + 0.0  # -0.0 is 0.0
    places_E = _build_multipliers(values_NE.device)[: values_NE.shape[1]]
    found: list[int] = (values_NE.contiguous().view(torch.int32).to(torch.int64) * places_E).sum(dim=1).tolist()
    return found
