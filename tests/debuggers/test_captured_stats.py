"""Which dimension is which, and the figures of one tensor."""

import math

import pytest
import torch
from torch import nn

from tdbg.debuggers.captured_stats import channel_dim, compute_stats, each_tensor, spatial_dims, to_real_numbers


class Block(nn.Module):
    """A user's own, which says nothing of its shape."""


class ConvSame(nn.Conv2d):
    """A user's own kind of convolution."""


CASES = (
    (nn.Conv2d(2, 2, 1), (5, 2, 4, 4), 1, [2, 3]),
    (ConvSame(2, 2, 1), (5, 2, 4, 4), 1, [2, 3]),
    (nn.Conv2d(2, 2, 1), (2, 4, 4), 0, [1, 2]),
    (nn.Conv3d(2, 2, 1), (5, 2, 4, 4, 4), 1, [2, 3, 4]),
    (nn.Conv1d(2, 2, 1), (5, 2, 7), 1, [2]),
    (nn.Conv1d(2, 2, 1), (2, 7), 0, [1]),
    (nn.BatchNorm1d(2), (5, 2), 1, []),
    (nn.BatchNorm1d(2), (5, 2, 7), 1, [2]),
    (nn.AdaptiveAvgPool2d(1), (5, 2, 1, 1), 1, [2, 3]),
    (nn.GroupNorm(1, 2), (5, 2, 7), 1, [2]),
    (nn.Linear(2, 2), (5, 2), 1, []),
    (nn.Linear(2, 2), (5, 7, 2), 2, [1]),
    (nn.LayerNorm(2), (5, 4, 4, 2), 3, [1, 2]),
    (nn.Embedding(3, 2), (5, 7, 2), 2, [1]),
    (nn.ReLU(), (5, 7, 2), 2, [1]),
    (nn.ReLU(), (5, 2, 4, 4), 1, [2, 3]),
    (Block(), (5, 7, 2), 2, [1]),
    (Block(), (5, 2, 4, 4), 1, [2, 3]),
    (Block(), (5, 2), 1, []),
    (Block(), (5,), None, []),
    (Block(), (), None, []),
    (nn.LSTM(2, 2), (7, 5, 2), 2, [0]),
    (nn.LSTM(2, 2, batch_first=True), (5, 7, 2), 2, [1]),
    (nn.TransformerEncoderLayer(2, 1), (7, 5, 2), 2, [0]),
)


@pytest.mark.parametrize(("module", "shape", "channel", "spatial"), CASES, ids=lambda value: str(value)[:20])
def test_dimensions(module, shape, channel, spatial):
    tensor = torch.empty(shape)
    assert channel_dim(module, tensor) == channel and spatial_dims(module, tensor) == spatial


def test_the_caller_may_know_better():
    assert spatial_dims(Block(), torch.empty(5, 4, 4, 2), -1) == [1, 2]
    assert spatial_dims(Block(), torch.empty(5, 2, 7), 1) == [2]


def test_stats_of_the_finite_part():
    found = compute_stats(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert found.pop("shape") == [4]
    assert found == pytest.approx({"mean": 3.0, "std": math.sqrt(14 / 3), "min": 1.0, "max": 6.0})
    found = compute_stats(torch.tensor([1.0, 3.0, math.nan, math.inf, -math.inf]))
    assert found.pop("shape") == [5]
    whole = {"mean": 2.0, "std": math.sqrt(2), "min": 1.0, "max": 3.0, "nan_count": 1, "inf_count": 2}
    assert found == pytest.approx(whole)
    nothing = {"mean": None, "std": None, "min": None, "max": None}
    assert compute_stats(torch.empty(0, 3)) == {**nothing, "shape": [0, 3]}
    assert compute_stats(torch.tensor([math.nan])) == {**nothing, "shape": [1], "nan_count": 1}


def test_numbers_are_wide_enough():
    assert to_real_numbers(torch.ones(2, dtype=torch.bfloat16)).dtype is torch.float32
    assert to_real_numbers(torch.tensor([2**40 + 1])).tolist() == [2**40 + 1]
    assert to_real_numbers(torch.tensor([3 + 4j])).tolist() == [5]
    assert to_real_numbers(torch.tensor([True])).tolist() == [1]


def test_the_first_tensor_and_the_others():
    x, y = torch.zeros(2), torch.ones(3)
    found = each_tensor("l", {"a": (None, x), "b": [y]}, lambda tensor: {"n": tensor.numel()})
    assert found == {"layer_name": "l", "n": 2, "others": {"b.0": {"n": 3}}}
    assert each_tensor("l", "text", lambda tensor: {}) == {
        "layer_name": "l",
        "note": "the output holds no tensor: str",
    }
