"""Sparse, nested, lazy and unsigned tensors: no part of tdbg is switched off by one."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tdbg.probes.rerun import Call

from .conftest import Watch


class Returns(nn.Module):
    """Returns what a function makes of a layer's output."""

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.make = nn.Linear(4, 4), make

    def forward(self, batch: Tensor) -> Tensor:
        output: Tensor = self.make(self.layer(batch))
        return output


def test_a_root_may_return_a_sparse_tensor(watch: Callable[..., Watch]) -> None:
    watch(flags={"FORWARD": True})
    model = Returns(Tensor.to_sparse)
    for _ in range(2):
        model(torch.randn(4, 4)).to_dense().sum().backward()


def test_a_sparse_input_is_small() -> None:
    call = Call.of(nn.Linear(4, 4), (torch.eye(4).to_sparse(),), {})
    assert call is not None
    assert call.is_small()
    assert not call.holds_memory()
