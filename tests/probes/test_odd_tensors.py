"""Sparse, nested, lazy and unsigned tensors: no part of tdbg is switched off by one."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tdbg.probes.checkpoint import state_keys
from tdbg.probes.dataloader import batch_contents
from tdbg.runtime import tensors
from tdbg.runtime.rerun import Call

from .conftest import Watch


class Returns(nn.Module):
    """Returns what a function makes of a layer's output."""

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.make = nn.Linear(4, 4), make

    def forward(self, batch: Tensor) -> Tensor:
        output: Tensor = self.make(self.layer(batch))
        return output


def test_a_root_may_return_a_sparse_tensor(start_watch: Callable[..., Watch]) -> None:
    start_watch(flags={"FORWARD": True})
    model = Returns(Tensor.to_sparse)
    for _ in range(2):
        model(torch.randn(4, 4)).to_dense().sum().backward()


def test_a_sparse_input_is_small() -> None:
    call = Call.capture_call(nn.Linear(4, 4), (torch.eye(4).to_sparse(),), {})
    assert call is not None
    assert call.is_small()
    assert not call.holds_memory()


def test_labels_may_be_unsigned() -> None:
    labels = torch.tensor([3, 1, 2], dtype=torch.uint16)
    assert batch_contents.label_range(labels) == (1, 3)
    part = batch_contents.Part("0", torch.full((4, 3), 7, dtype=torch.uint16))
    batch_contents.measure_part(part)
    assert part.constant


def test_a_lazy_parameter_has_no_shape_yet() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(2))
    assert state_keys.collect_module_shapes(model) == {"0.weight": (4, 4), "0.bias": (4,)}


def test_bad_values_of_a_compressed_tensor_are_seen() -> None:
    bad = tensors.find_bad_values(torch.tensor([[0.0, torch.inf], [1.0, 0.0]]).to_sparse_csr())
    assert bad is not None
    assert (bad.kind, bad.count) == ("inf", 1)


def test_a_nested_batch_has_its_samples_counted() -> None:
    batch = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])
    call = Call.capture_call(nn.Linear(4, 4), (batch,), {})
    assert call is not None
    assert call.samples == 2


def test_norms_of_several_devices_come_to_the_one_that_is_not_the_host() -> None:
    assert tensors.compute_norms([torch.ones(2), torch.ones(2, device="meta")]).device.type == "meta"
    assert tensors.compute_norms([torch.ones(2), torch.ones(3)]).device.type == "cpu"
