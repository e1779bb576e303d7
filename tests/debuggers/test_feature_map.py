"""FeatureMap against what the layer put out."""

import pytest
import torch
from torch import nn

from tdbg.debuggers import FeatureMap
from tests.debuggers.conftest import Gives, small_cnn


def run_debugger(value, model=None, layer="layer"):
    model, debugger = model or Gives(), FeatureMap(layer)
    with debugger.attach(model):
        model(value)
        return debugger({}, model)


def test_a_convolution_worked_out_by_hand():
    model = nn.Sequential(nn.Conv2d(1, 2, 2, bias=False), nn.ReLU(inplace=True))
    model[0].weight.data = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]], [[[0.0, -1.0], [0.0, 0.0]]]])
    found = run_debugger(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), model, "0")
    assert found["feature_map"].tolist() == [[[[5.0]], [[-2.0]]]], "before the ReLU, which works in place"
    assert found == {
        "layer_name": "0",
        "feature_map": found["feature_map"],
        "stats": {"mean": 1.5, "std": pytest.approx(7 / 2**0.5), "min": -2.0, "max": 5.0, "shape": [1, 2, 1, 1]},
    }


def test_nested_outputs():
    x = torch.arange(4.0)
    found = run_debugger({"hidden": (x, {"deep": x + 1}), "text": "no", "last": [x * 2]})
    assert torch.equal(found["feature_map"], x)
    assert {path: row["feature_map"].tolist() for path, row in found["others"].items()} == {
        "hidden.1.deep": [1, 2, 3, 4],
        "last.0": [0, 2, 4, 6],
    }


def test_an_lstm():
    model = nn.LSTM(2, 3)
    x_TBF = torch.randn(5, 4, 2)
    found = run_debugger(x_TBF, model, "")
    out_TBF, (h, c) = model(x_TBF)
    assert torch.equal(found["feature_map"], out_TBF)
    assert torch.equal(found["others"]["1.0"]["feature_map"], h)
    assert torch.equal(found["others"]["1.1"]["feature_map"], c)


def test_no_tensor():
    assert run_debugger("text") == {"layer_name": "layer", "note": "the output holds no tensor: str"}


def test_autocast():
    model = small_cnn().eval()
    x_BCHW = torch.randn(2, 1, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        found = run_debugger(x_BCHW, model, "0")
        expected = model[0](x_BCHW)
    assert found["feature_map"].dtype is torch.bfloat16 and torch.equal(found["feature_map"], expected)
    assert found["stats"]["mean"] == pytest.approx(expected.float().mean().item(), rel=1e-5)


@pytest.mark.parametrize("tensor", (torch.arange(6), torch.empty(0, 3), torch.tensor(2.0), torch.tensor([True, False])))
def test_odd_outputs(tensor):
    found = run_debugger(tensor)
    assert torch.equal(found["feature_map"], tensor) and found["stats"]["shape"] == list(tensor.shape)


def test_the_models_output_is_the_same():
    model = small_cnn().eval()
    x_BCHW = torch.randn(2, 1, 6, 6)
    expected, debugger = model(x_BCHW), FeatureMap("0")
    with debugger.attach(model):
        assert torch.equal(model(x_BCHW), expected)
