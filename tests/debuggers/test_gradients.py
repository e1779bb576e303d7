"""Gradients against autograd itself, and that the graph goes when it is done with."""

import gc
import weakref

import pytest
import torch
from torch import nn

from tdbg.debuggers import Gradients
from tests.debuggers.conftest import Branches, small_cnn


def run_backward(model, debugger, x, loss=torch.sum):
    with debugger.attach(model):
        loss(model(x)).backward()
    return debugger({}, model)


def test_by_hand():
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False))
    model[0].weight.data, model[1].weight.data = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]])
    found = run_backward(model, Gradients("0"), torch.tensor([[1.0, -1.0]]), lambda y: (y**2).sum())
    # y = 3 * (1 - 2) = -3, dy^2/dh = 2 * -3 * 3 = -18, dh/dw = x
    assert found["output_grad"].tolist() == [[-18.0]]
    assert found["parameter_grads"]["weight"].tolist() == [[-18.0, 18.0]]
    stats = found["parameter_grad_stats"]["weight"]
    assert (stats["norm"], stats["mean"], stats["min"]) == (pytest.approx(18 * 2**0.5), 0.0, -18.0)
    assert found["output_grad_stats"]["norm"] == pytest.approx(18)
    assert set(found) == {
        "layer_name",
        "output_grad",
        "output_grad_stats",
        "parameter_grads",
        "parameter_grad_stats",
    }


def test_an_in_place_operation_behind_the_layer():
    model, x_BCHW = small_cnn().eval(), torch.randn(2, 1, 6, 6)
    found = run_backward(model, Gradients("0"), x_BCHW)
    out = model[0](x_BCHW).detach().requires_grad_()
    (expected,) = torch.autograd.grad(model[2:](out.relu()).sum(), out)
    torch.testing.assert_close(found["output_grad"], expected)
    assert (expected == 0).any() and torch.equal(found["parameter_grads"]["weight"], model[0].weight.grad)


def test_only_figures():
    found = run_backward(small_cnn().eval(), Gradients("0", values=False), torch.randn(2, 1, 6, 6))
    assert not any(isinstance(value, torch.Tensor) for value in found.values()) and "parameter_grads" not in found
    assert found["output_grad_stats"]["shape"] == [2, 4, 6, 6] and set(found["parameter_grad_stats"]) == {
        "weight",
        "bias",
    }


def test_copies():
    model = small_cnn().eval()
    found = run_backward(model, Gradients("6"), torch.randn(2, 1, 6, 6))
    before = found["parameter_grads"]["weight"].clone()
    model.zero_grad(set_to_none=False)
    assert before.abs().sum() > 0 and torch.equal(found["parameter_grads"]["weight"], before)


def test_a_layer_that_runs_twice():
    model, debugger = Branches(), Gradients("shared")
    found = run_backward(model, debugger, torch.randn(3, 4))
    assert torch.equal(found["output_grad"], torch.ones(3, 4))
    torch.testing.assert_close(found["earlier_calls"][0]["output_grad"], torch.ones(3, 4) @ model.shared.weight)
    assert set(found["parameter_grads"]) == {"weight", "bias"}


def test_parts_that_have_none():
    model = small_cnn().eval()
    model[0].bias.requires_grad_(False)
    found = run_backward(model, Gradients(""), torch.randn(2, 1, 6, 6))
    assert found["without_grad"] == ["0.bias"] and "6.weight" in found["parameter_grads"]


def test_without_a_backward():
    model, debugger = small_cnn(), Gradients("0")
    with debugger.attach(model), torch.no_grad():
        model(torch.randn(2, 1, 6, 6))
        found = debugger({}, model)
    assert found["note"].startswith("no gradient available") and found["without_grad"] == ["weight", "bias"]


def test_several_outputs():
    model, debugger = nn.LSTM(2, 3), Gradients("")
    with debugger.attach(model):
        out_TBF, (_, c) = model(torch.randn(5, 4, 2))
        (out_TBF.sum() + 2 * c.sum()).backward()
    found = debugger({}, model)
    assert torch.equal(found["output_grad"], torch.ones(5, 4, 3))
    assert (
        torch.equal(found["others"]["1.1"]["output_grad"], torch.full((1, 4, 3), 2.0)) and "1.0" not in found["others"]
    )


def test_what_is_not_finite():
    model = nn.Sequential(nn.Linear(2, 2))
    found = run_backward(
        model, Gradients("0"), torch.ones(1, 2), lambda y: (y * torch.tensor([float("inf"), 1.0])).sum()
    )
    assert found["output_grad_stats"]["inf_count"] == 1 and found["output_grad_stats"]["max"] == 1


def test_autocast_and_scaled_gradients():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    debugger = Gradients("0")
    with debugger.attach(model):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.ones(1, 2)).sum()
        (loss * 1024).backward()
    found = debugger({}, model)
    assert found["output_grad"].dtype is torch.bfloat16
    torch.testing.assert_close(found["output_grad"].float(), 1024 * model[1].weight.detach(), rtol=1e-2, atol=0)


class Marked(torch.autograd.Function):
    """Tells when its node of the graph is gone."""

    @staticmethod
    def forward(ctx, x, marks):
        ctx.mark = type("Mark", (), {})()
        marks.append(weakref.ref(ctx.mark))
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def test_the_graph_is_not_held(count_hooks):
    marks, debugger = [], Gradients("1")
    before = nn.Identity()
    before.forward = lambda x: Marked.apply(x, marks)
    model = nn.Sequential(before, nn.Linear(2, 2), nn.ReLU())
    hooks = debugger.attach(model)
    loss = model(torch.ones(1, 2, requires_grad=True)).sum()
    assert marks[0]() is not None
    del loss
    gc.collect()
    assert marks[0]() is None and len(debugger.captures) == 1, "though the debugger still waits for the gradient"
    hooks.remove()
    assert count_hooks(model) == 0


def test_a_checkpoint_of_the_newer_kind():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=False)

    found = run_backward(Model(), Gradients("layer"), torch.ones(1, 2))
    assert found["output_grad"].tolist() == [[1, 1]] and "earlier_calls" not in found


def test_a_frozen_model_whose_input_wants_a_gradient():
    model = small_cnn().eval().requires_grad_(False)
    found = run_backward(model, Gradients("0"), torch.randn(2, 1, 6, 6, requires_grad=True))
    assert found["output_grad"].abs().sum() > 0 and found["without_grad"] == ["weight", "bias"] and "note" not in found


def test_a_gradient_that_cannot_be_read_harms_nothing(monkeypatch, caplog):
    def fail(grad):
        raise LookupError("mine")

    model, debugger = small_cnn().eval(), Gradients("0")
    x_BCHW, grads = torch.randn(2, 1, 6, 6), []
    model(x_BCHW).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    monkeypatch.setattr("tdbg.debuggers.gradients._compute_stats", fail)
    with debugger.attach(model):
        for _ in range(2):
            model.zero_grad()
            model(x_BCHW).sum().backward()
            grads.append([p.grad for p in model.parameters()])
    monkeypatch.undo()
    assert all(torch.equal(*pair) for found in grads for pair in zip(found, expected, strict=True))
    assert debugger({}, model)["note"] == "switched off: LookupError: mine"
    assert caplog.messages == ["tdbg switched off its debugger Gradients at '0': LookupError: mine"]
