"""GradCAM: the analytic map of a net with a linear head, and that nothing else changes."""

import random
import threading
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from tdbg.core.errors import TdbgError
from tdbg.debuggers import FeatureMap, GradCAM
from tests.debuggers.conftest import small_cnn


class Headed(nn.Module):
    """Convolution, ReLU, global average pooling, linear head: its CAM is relu(sum_C w_kC A_C) / (H W)."""

    def __init__(self, channels=5, classes=3):
        super().__init__()
        self.conv = nn.Conv2d(1, channels, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(channels, classes)

    def forward(self, x_BCHW):
        return self.head(self.act(self.conv(x_BCHW)).mean((2, 3)))


def compute_analytic_cam(model, x_BCHW, classes):
    """Of the activation: Zhou et al. 2016 (CAM), scaled by the number of places."""
    with torch.no_grad():
        a_BCHW = model.conv(x_BCHW).relu()
        weight_BC = model.head.weight[classes]
        return torch.einsum("bc,bchw->bhw", weight_BC, a_BCHW).relu() / a_BCHW[0, 0].numel()


@pytest.fixture
def model():
    return Headed().eval()


@pytest.fixture
def x_BCHW():
    return torch.randn(4, 1, 6, 7)


@pytest.mark.parametrize(
    "mode", (torch.enable_grad, torch.no_grad, torch.inference_mode), ids=lambda mode: mode.__name__
)
@pytest.mark.parametrize("target", (None, 1, [0, 1, 2, 0], torch.tensor([2, 2, 0, 1])))
def test_the_analytic_map(model, mode, target):
    with mode():
        x_BCHW = torch.randn(4, 1, 6, 7)
        predicted = model(x_BCHW).argmax(1)
        found = GradCAM("act", target)({"inputs": x_BCHW}, model)
        assert torch.is_inference_mode_enabled() == (mode is torch.inference_mode)
        assert torch.is_grad_enabled() == (mode is torch.enable_grad)
    classes = predicted if target is None else torch.as_tensor(target).expand(4)
    assert set(found) == {"gradcam", "target_layer", "target_class", "gradcam_stats"}
    assert found["target_layer"] == "act" and found["target_class"].tolist() == classes.tolist()
    expected = compute_analytic_cam(model, x_BCHW, classes)
    assert expected.max() > 0
    torch.testing.assert_close(found["gradcam"], expected)
    assert found["gradcam_stats"]["max"] == pytest.approx(expected.max().item(), rel=1e-5)
    assert found["gradcam_stats"]["shape"] == [4, 6, 7] and not found["gradcam"].is_inference()


def test_the_layer_before_an_in_place_activation(model, x_BCHW):
    """By the formula of the paper, with plain autograd."""
    found = GradCAM("conv", 0)({"inputs": x_BCHW}, model)
    a_BCHW = model.conv(x_BCHW).detach().requires_grad_()
    (grad,) = torch.autograd.grad(model.head(a_BCHW.relu().mean((2, 3)))[:, 0].sum(), a_BCHW)
    expected = (grad.mean((2, 3), keepdim=True) * a_BCHW).sum(1).relu().detach()
    torch.testing.assert_close(found["gradcam"], expected)


def test_a_model_made_in_inference_mode(model, x_BCHW):
    with torch.inference_mode():
        born = Headed().eval()
        born.load_state_dict(model.state_dict())
        assert born.conv.weight.is_inference()
        found = GradCAM("act", 1)({"inputs": x_BCHW}, born)
    torch.testing.assert_close(found["gradcam"], compute_analytic_cam(model, x_BCHW, torch.ones(4, dtype=torch.int64)))


def test_a_frozen_model(model, x_BCHW):
    model.requires_grad_(False)
    found = GradCAM("act", 1)({"inputs": x_BCHW}, model)
    torch.testing.assert_close(found["gradcam"], compute_analytic_cam(model, x_BCHW, torch.ones(4, dtype=torch.int64)))
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_model_in_training_mode_is_looked_at_in_eval_mode(x_BCHW):
    """Without dropout, and with the running statistics."""
    model = small_cnn()
    model[2].running_mean.fill_(-0.5)
    expected = GradCAM("1", 1)({"inputs": x_BCHW}, model.eval())["gradcam"]
    found = GradCAM("1", 1)({"inputs": x_BCHW}, model.train())["gradcam"]
    assert torch.equal(found, expected) and all(module.training for module in model.modules())


def snapshot_state(model):
    """All of a model's state that a pass could change."""
    numpy = np.random.get_state()
    return {
        "buffers": {name: (id(buffer), buffer.clone()) for name, buffer in model.named_buffers()},
        "parameters": {name: (id(p), p.detach().clone(), p.requires_grad) for name, p in model.named_parameters()},
        "versions": [tensor._version for tensor in (*model.parameters(), *model.buffers())],
        "grads": {
            name: None if p.grad is None else (id(p.grad), p.grad.clone()) for name, p in model.named_parameters()
        },
        "modes": [module.training for module in model.modules()],
        "hooks": [len(module._forward_hooks) for module in model.modules()],
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (numpy[1].tolist(), numpy[2]),
        "modes of torch": (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_cache_enabled(),
        ),
    }


def is_same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(is_same(*pair) for pair in zip(one, other, strict=True))
    return one == other


class Restless(nn.Module):
    """Changes whatever a forward pass can change."""

    def __init__(self, fails=False):
        super().__init__()
        self.net, self.fails = small_cnn(), fails
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))

    def forward(self, x_BCHW):
        self.calls += 1
        self.replaced = self.replaced + 1
        x_BCHW.add_(torch.randn(()) + random.random() + np.random.rand())
        y_BK = self.net(x_BCHW)
        if self.fails:
            raise ArithmeticError("mine")
        return y_BK


@pytest.mark.parametrize("fails", (False, True))
@pytest.mark.parametrize("training", (False, True))
def test_all_state_is_restored(fails, training):
    model = Restless()
    model(torch.randn(2, 1, 6, 6)).sum().backward()
    model.train(training)
    model.net[2].train(not training)  # a mixture, as with a frozen BatchNorm
    model.net[0].bias.grad = None
    model.net[6].weight.requires_grad_(False)
    model.fails = fails
    x_BCHW = torch.randn(2, 1, 6, 6)
    before, x_before = snapshot_state(model), x_BCHW.clone()
    if fails:
        with pytest.raises(ArithmeticError, match="mine"):
            GradCAM("net.0")({"inputs": x_BCHW}, model)
    else:
        assert GradCAM("net.0")({"inputs": x_BCHW}, model)["gradcam"].shape == (2, 6, 6)
    after = snapshot_state(model)
    assert [key for key in before if not is_same(before[key], after[key])] == []
    assert torch.equal(x_BCHW, x_before)


def test_a_graph_that_is_in_use_is_not_disturbed():
    """Between forward and backward of a training step."""
    model, x_BCHW, grads = small_cnn(), torch.randn(2, 1, 6, 6), []
    for looks in (False, True):
        model.zero_grad()
        torch.manual_seed(3)
        loss = model(x_BCHW).square().sum()
        if looks:
            GradCAM("0")({"inputs": x_BCHW}, model)
        loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    assert is_same(*grads)


def test_other_debuggers_do_not_see_its_pass(model, x_BCHW):
    other = FeatureMap("conv")
    with other.attach(model), torch.no_grad():
        model(x_BCHW)
        GradCAM("act")({"inputs": x_BCHW + 1}, model)
        found = other({}, model)
    assert "earlier_calls" not in found and torch.equal(found["feature_map"], model.conv(x_BCHW))


def test_autocast_with_inference_mode(x_BCHW):
    """Autocast keeps copies of weights that were made without gradients; they must not be used."""
    model = small_cnn().eval()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        model(x_BCHW)
        found = GradCAM("1", 0)({"inputs": x_BCHW}, model)["gradcam"]
    assert found.dtype is torch.float32
    exact = GradCAM("1", 0)({"inputs": x_BCHW}, model)["gradcam"]
    torch.testing.assert_close(found, exact, rtol=0.05, atol=0.05 * exact.max().item())


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float64))
def test_other_dtypes(dtype, x_BCHW):
    model = Headed().to(dtype).eval()
    found = GradCAM("act", 1)({"inputs": x_BCHW.to(dtype)}, model)["gradcam"]
    exact = compute_analytic_cam(model.float(), x_BCHW, torch.ones(4, dtype=torch.int64))
    torch.testing.assert_close(found, exact, rtol=0.05, atol=0.02 * exact.max().item())


def test_tokens():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x_BTC):
            return self.head(self.block(x_BTC).mean(1))

    model, x_BTC = Model(), torch.randn(2, 5, 3)
    found = GradCAM("block", 1)({"inputs": x_BTC}, model)["gradcam"]
    torch.testing.assert_close(found, (model.block(x_BTC) @ model.head.weight[1]).relu().detach() / 5)


def test_a_layer_that_runs_twice():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 1)

        def forward(self, x):
            return self.conv(self.conv(x)).mean((2, 3))

    model, x = Model(), torch.rand(1, 1, 2, 2) + 1
    model.conv.weight.data.fill_(2.0)
    model.conv.bias.data.zero_()
    found = GradCAM("conv")({"inputs": x}, model)
    torch.testing.assert_close(found["gradcam"], x[0] * 4 / 4)  # gradient 1/4, activation 4 x
    torch.testing.assert_close(found["earlier_calls"][0]["gradcam"], x[0] * 2 * 2 / 4)  # gradient 2/4, activation 2 x


def test_outputs_of_all_kinds(model, x_BCHW):
    expected = GradCAM("act", 1)({"inputs": x_BCHW}, model)["gradcam"]
    kinds = (
        lambda y: {"loss": torch.zeros(()), "logits": y},
        lambda y: OrderedDict(out=y),
        lambda y: (y, None),
        lambda y: y[:, :, None, None].expand(-1, -1, 3, 3),  # per place, as segmentation
    )
    for kind in kinds:

        class Wrapped(nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, x, kind=kind):
                return kind(self.model(x))

        torch.testing.assert_close(GradCAM("model.act", 1)({"inputs": x_BCHW}, Wrapped())["gradcam"], expected)


def test_one_score_for_two_classes(model, x_BCHW):
    model.head = nn.Linear(5, 1)
    expected = compute_analytic_cam(model, x_BCHW, torch.zeros(4, dtype=torch.int64))
    torch.testing.assert_close(GradCAM("act")({"inputs": x_BCHW}, model)["gradcam"], expected)
    model.head = nn.Sequential(model.head, nn.Flatten(0))
    torch.testing.assert_close(GradCAM("act")({"inputs": x_BCHW}, model)["gradcam"], expected)


def test_a_score_of_the_users(model, x_BCHW):
    found = GradCAM("act", score=lambda y_BK: 2 * y_BK[:, 1])({"inputs": x_BCHW}, model)
    torch.testing.assert_close(
        found["gradcam"], 2 * compute_analytic_cam(model, x_BCHW, torch.ones(4, dtype=torch.int64))
    )
    assert found["target_class"].tolist() == [-1] * 4


def test_inputs_of_all_kinds(x_BCHW):
    class Model(nn.Module):
        def __init__(self, takes):
            super().__init__()
            self.net, self.takes = small_cnn().eval(), takes

        def forward(self, image, scale=1.0):
            return self.net(self.takes(image) * scale)

    plain = Model(lambda image: image)
    expected = GradCAM("net.1", 0)({"inputs": x_BCHW * 2}, plain)["gradcam"]
    cases = (
        (plain, (x_BCHW, 2.0)),
        (plain, [x_BCHW, 2.0]),
        (plain, {"image": x_BCHW, "scale": 2.0}),
        (Model(lambda image: image["x"] * 2), {"x": x_BCHW}),
        (Model(lambda image: torch.stack(image) * 2), list(x_BCHW)),
    )
    for model, inputs in cases:
        found = GradCAM("net.1", 0)({"inputs": inputs}, model)["gradcam"]
        torch.testing.assert_close(found, expected)


def test_outputs_of_the_layer_in_structures(model, x_BCHW):
    class Packs(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = model.conv

        def forward(self, x):
            return OrderedDict(extra=[None], maps=(self.conv(x).relu(), "text"))

    class Unpacks(nn.Module):
        def __init__(self):
            super().__init__()
            self.packs, self.head = Packs(), model.head

        def forward(self, x):
            return self.head(self.packs(x)["maps"][0].mean((2, 3)))

    found = GradCAM("packs", 1, channel_dim=1)({"inputs": x_BCHW}, Unpacks())["gradcam"]
    torch.testing.assert_close(found, compute_analytic_cam(model, x_BCHW, torch.ones(4, dtype=torch.int64)))


def test_a_trunk_under_no_grad(model, x_BCHW):
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.act, self.head = model.conv, model.act, model.head

        def forward(self, x):
            with torch.no_grad():
                a = self.act(self.conv(x))
            return self.head(a.mean((2, 3)))

    expected = compute_analytic_cam(model, x_BCHW, torch.ones(4, dtype=torch.int64))
    torch.testing.assert_close(GradCAM("act", 1)({"inputs": x_BCHW}, Frozen())["gradcam"], expected)
    with pytest.raises(TdbgError, match="runs 'conv' under no_grad, and changes its output in place"):
        GradCAM("conv", 1)({"inputs": x_BCHW}, Frozen())
    model.act = nn.ReLU()
    with pytest.raises(TdbgError, match="no gradient reaches 'conv'"):
        GradCAM("conv", 1)({"inputs": x_BCHW}, Frozen())


@pytest.mark.parametrize("mode", (torch.no_grad, torch.inference_mode), ids=lambda mode: mode.__name__)
def test_a_model_that_switches_gradients_off_itself(model, x_BCHW, mode, count_hooks):
    model.forward = mode()(model.forward)
    with pytest.raises(TdbgError, match=r"no gradient reaches 'act'|runs 'act' under inference_mode"):
        GradCAM("act")({"inputs": x_BCHW}, model)
    assert count_hooks(model) == 0


def test_what_cannot_be(model, x_BCHW, count_hooks):
    with pytest.raises(TdbgError, match=r"\[3\], but the model has 3 classes"):
        GradCAM("act", 3)({"inputs": x_BCHW}, model)
    with pytest.raises(TdbgError, match="names 2 classes for 4 datapoints"):
        GradCAM("act", [0, 1])({"inputs": x_BCHW}, model)
    with pytest.raises(TdbgError, match=r"no spatial axes to map: shape \[4, 3\]"):
        GradCAM("head")({"inputs": x_BCHW}, model)
    with pytest.raises(TdbgError, match="no layer is named 'acts'"):
        GradCAM("acts")({"inputs": x_BCHW}, model)
    assert count_hooks(model) == 0


def test_a_layer_that_did_not_run(model, x_BCHW):
    model.unused = nn.Conv2d(1, 1, 1)
    debugger = GradCAM("unused")
    assert debugger({"inputs": x_BCHW}, model) is None
    assert debugger.missing(model) == "not executed: 'unused' did not run"


def test_a_compiled_model(model, x_BCHW):
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter)
    with torch.no_grad():
        compiled(x_BCHW)
        frames = counter.frame_count
        found = GradCAM("act", 1)({"inputs": x_BCHW}, compiled)
        compiled(x_BCHW)
    torch.testing.assert_close(found["gradcam"], compute_analytic_cam(model, x_BCHW, torch.ones(4, dtype=torch.int64)))
    assert counter.frame_count == frames


def test_a_model_with_compiled_parts(model, x_BCHW):
    parts = nn.Sequential(nn.Identity(), model)
    counter = CompileCounter()
    parts[1].compile(backend=counter)
    parts(x_BCHW)
    frames = counter.frame_count
    found = GradCAM("1.act", 1)({"inputs": x_BCHW}, parts)
    parts(x_BCHW)
    assert counter.frame_count == frames > 0
    torch.testing.assert_close(found["gradcam"], compute_analytic_cam(model, x_BCHW, torch.ones(4, dtype=torch.int64)))


def test_inside_data_parallel(model, x_BCHW):
    found = GradCAM("act", 1)({"inputs": x_BCHW}, nn.DataParallel(model))
    torch.testing.assert_close(found["gradcam"], compute_analytic_cam(model, x_BCHW, torch.ones(4, dtype=torch.int64)))


def test_another_thread_passes_by():
    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head, self.found = nn.Conv2d(1, 2, 3), nn.Linear(2, 3), []

        def forward(self, x):
            other = threading.Thread(target=lambda: self.found.append(self.conv(torch.ones(1, 1, 4, 4))))
            other.start()
            other.join()
            return self.head(self.conv(x).mean((2, 3)))

    model = Beside()
    assert GradCAM("conv")({"inputs": torch.ones(1, 1, 4, 4)}, model)["gradcam"].shape == (1, 2, 2)
    assert [type(found.grad_fn).__name__ for found in model.found] == ["ConvolutionBackward0"]
