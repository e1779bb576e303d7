"""LayerOutput against averages worked out here."""

import pytest
import torch
from torch import nn

from tdbg.core.errors import TdbgError
from tdbg.debuggers import LayerOutput
from tests.debuggers.conftest import Gives


def run_debugger(value, factor=4, layer=None, **how):
    model, debugger = Gives(), LayerOutput("layer", factor, **how)
    if layer is not None:
        layer.forward = lambda value: value
        model.layer = layer
    with debugger.attach(model):
        model(value)
        return debugger({}, model)


def average_blocks(x, dims, factor):
    """Block by block, with plain slices."""
    for dim in dims:
        parts = [x.narrow(dim, at, min(factor, x.size(dim) - at)) for at in range(0, x.size(dim), factor)]
        x = torch.cat([part.sum(dim, keepdim=True) for part in parts], dim)
    return x


def compute_expected(x, dims, factor):
    return average_blocks(x, dims, factor) / average_blocks(torch.ones_like(x), dims, factor)


@pytest.mark.parametrize(
    ("layer", "shape", "dims"),
    (
        (nn.Conv2d(3, 3, 1), (2, 3, 8, 8), (2, 3)),
        (nn.Conv2d(3, 3, 1), (2, 3, 9, 7), (2, 3)),
        (nn.Conv2d(3, 3, 1), (3, 8, 8), (1, 2)),
        (nn.Conv2d(3, 3, 1), (2, 3, 3, 11), (2, 3)),
        (nn.Conv3d(3, 3, 1), (2, 3, 4, 8, 5), (2, 3, 4)),
        (nn.Conv1d(3, 3, 1), (2, 3, 10), (2,)),
        (nn.Linear(3, 3), (2, 10, 3), (1,)),
        (nn.LayerNorm(3), (2, 8, 8, 3), (1, 2)),
        (nn.GRU(3, 3), (10, 2, 3), (0,)),
        (nn.Identity(), (2, 10, 3), (1,)),
    ),
    ids=str,
)
def test_averages(layer, shape, dims):
    x = torch.randn(shape)
    found = run_debugger(x, layer=layer)
    assert set(found) == {"layer_name", "original_shape", "output", "downsampled", "downsample_factor"}
    assert (found["original_shape"], found["downsampled"], found["downsample_factor"]) == (list(shape), True, 4)
    torch.testing.assert_close(found["output"], compute_expected(x, dims, 4))


def test_by_hand():
    x = torch.tensor([[[[1.0, 3.0, 10.0], [5.0, 7.0, 20.0]]]])
    assert run_debugger(x, 2)["output"].tolist() == [[[[4.0, 15.0]]]]


@pytest.mark.parametrize(
    ("tensor", "factor"),
    (
        (torch.randn(2, 3), 4),
        (torch.randn(5), 4),
        (torch.tensor(1.0), 4),
        (torch.arange(64).view(1, 1, 8, 8), 4),
        (torch.randn(1, 1, 8, 8) > 0, 4),
        (torch.randn(1, 1, 8, 8, dtype=torch.complex64), 4),
        (torch.empty(0, 1, 8, 8), 4),
        (torch.randn(1, 1, 1, 1), 4),
        (torch.randn(1, 1, 8, 8), 1),
    ),
)
def test_nothing_to_average(tensor, factor):
    found = run_debugger(tensor, factor)
    assert torch.equal(found["output"], tensor) and found["downsampled"] is False
    assert found["original_shape"] == list(tensor.shape)


def test_the_dtype_stays_and_sums_do_not_overflow():
    x = torch.full((1, 1, 4, 4), 6e4, dtype=torch.float16)
    found = run_debugger(x)["output"]
    assert found.dtype is torch.float16 and found.tolist() == [[[[60000.0]]]]


def test_channels_where_the_caller_says():
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(run_debugger(x, channel_dim=1)["output"], compute_expected(x, (2,), 4))


def test_several_tensors():
    x = torch.randn(2, 8, 3)
    found = run_debugger((x, x * 2))
    torch.testing.assert_close(found["others"]["1"]["output"], found["output"] * 2)


def test_a_factor_below_one():
    with pytest.raises(TdbgError, match="downsample_factor must be 1 or more, not 0"):
        LayerOutput("layer", 0)
