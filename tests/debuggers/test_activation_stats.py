"""ActivationStats against sums worked out here."""

import math

import pytest
import torch
from torch import nn

from tdbg.debuggers import ActivationStats
from tests.debuggers.conftest import Gives

KEYS = {
    "shape",
    "nan_count",
    "inf_count",
    "mean",
    "std",
    "min",
    "max",
    "l1_norm",
    "l2_norm",
    "sparsity",
    "positive_ratio",
    "saturation_low",
    "saturation_high",
    "channel_means",
    "channel_stds",
}


def run_debugger(value, **how):
    model, debugger = Gives(), ActivationStats("layer", **how)
    with debugger.attach(model):
        model(value)
        return debugger({}, model)


def test_every_key_by_hand():
    found = run_debugger(torch.tensor([[0.0, -3.0], [4.0, 0.0], [1.0, -1.0]]))
    assert set(found) == {"layer_name", "module_type", "activation_stats", "sample_values"}
    assert (found["layer_name"], found["module_type"]) == ("layer", "Identity")
    assert found["sample_values"].tolist() == [0, -3, 4, 0, 1, -1]
    stats = found["activation_stats"]
    assert set(stats) == KEYS
    mean = 1 / 6
    squares = sum((value - mean) ** 2 for value in (0, -3, 4, 0, 1, -1))
    plain = {key: value for key, value in stats.items() if key != "shape" and not key.startswith("channel")}
    assert stats["shape"] == [3, 2]
    assert plain == pytest.approx(
        {
            "nan_count": 0,
            "inf_count": 0,
            "mean": mean,
            "std": math.sqrt(squares / 5),
            "min": -3.0,
            "max": 4.0,
            "l1_norm": 9 / 6,
            "l2_norm": math.sqrt(27),
            "sparsity": 2 / 6,
            "positive_ratio": 2 / 6,
            "saturation_low": 2 / 6,
            "saturation_high": 2 / 6,
        }
    )
    assert stats["channel_means"].tolist() == pytest.approx([5 / 3, -4 / 3])
    assert stats["channel_stds"].tolist() == pytest.approx([math.sqrt(13 / 3), math.sqrt(7 / 3)])


@pytest.mark.parametrize(
    ("shape", "channel", "dims"), (((2, 3, 4, 5), None, (0, 2, 3)), ((2, 4, 3), None, (0, 1)), ((2, 3, 7), 1, (0, 2)))
)
def test_channels(shape, channel, dims):
    x = torch.randn(shape)
    stats = run_debugger(x, channel_dim=channel)["activation_stats"]
    torch.testing.assert_close(stats["channel_means"], x.mean(dims))
    torch.testing.assert_close(stats["channel_stds"], x.std(dims))


def test_what_is_not_finite_is_counted_and_left_out():
    x = torch.tensor([[1.0, math.nan], [3.0, math.inf], [-math.inf, math.nan]])
    stats = run_debugger(x)["activation_stats"]
    assert (stats["nan_count"], stats["inf_count"]) == (2, 2)
    clean = run_debugger(torch.tensor([1.0, 3.0]))["activation_stats"]
    for key in KEYS - {"shape", "nan_count", "inf_count", "channel_means", "channel_stds"}:
        assert stats[key] == pytest.approx(clean[key]), key
    assert stats["channel_means"][0] == 2 and stats["channel_stds"][0] == pytest.approx(math.sqrt(2))
    assert stats["channel_means"][1].isnan() and stats["channel_stds"][1].isnan()


def test_nothing_finite_and_nothing_at_all():
    for x in (torch.tensor([math.nan]), torch.empty(0, 4)):
        stats = run_debugger(x)["activation_stats"]
        assert {stats[key] for key in ("mean", "std", "l1_norm", "l2_norm", "sparsity", "positive_ratio")} == {None}
        assert stats["channel_means"].numel() == 0
    assert run_debugger(torch.empty(0, 4))["sample_values"].numel() == 0


def test_half_precision_is_worked_out_in_float32():
    x = torch.full((300, 1000), 300.0, dtype=torch.float16)  # the sum of squares is 2.7e10, float16 ends at 65,504
    stats = run_debugger(x)["activation_stats"]
    assert stats["l2_norm"] == pytest.approx(300 * math.sqrt(300_000)) and stats["mean"] == pytest.approx(300)
    assert stats["l1_norm"] == pytest.approx(300) and stats["std"] == pytest.approx(0, abs=1e-3)
    torch.testing.assert_close(stats["channel_means"], torch.full((1000,), 300.0))


def test_large_float32():
    stats = run_debugger(torch.full((8, 2), 3e38))["activation_stats"]
    assert stats["l1_norm"] == pytest.approx(3e38) and stats["mean"] == pytest.approx(3e38)
    assert stats["l2_norm"] == pytest.approx(3e38 * 4)


@pytest.mark.parametrize("dtype", (torch.int64, torch.uint8, torch.bool))
def test_integers(dtype):
    stats = run_debugger(torch.tensor([0, 1, 1, 1]).to(dtype))["activation_stats"]
    assert (stats["mean"], stats["sparsity"], stats["saturation_high"]) == (0.75, 0.25, 0.75)


def test_one_hundred_samples():
    found = run_debugger(torch.arange(1000.0).view(10, 100))["sample_values"]
    assert found.tolist() == list(range(100)) and found.untyped_storage().nbytes() == 400


def test_several_tensors():
    found = run_debugger((torch.zeros(2), torch.ones(2)))
    assert found["activation_stats"]["mean"] == 0 and found["others"]["1"]["activation_stats"]["mean"] == 1


def test_a_convolution_keeps_its_kind():
    model, debugger = nn.Sequential(nn.Conv1d(2, 3, 1)), ActivationStats("0")
    x_BCL = torch.randn(4, 2, 9)
    with debugger.attach(model), torch.no_grad():
        out_BCL = model(x_BCL)
        found = debugger({}, model)
    assert found["module_type"] == "Conv1d"
    torch.testing.assert_close(found["activation_stats"]["channel_means"], out_BCL.mean((0, 2)))
