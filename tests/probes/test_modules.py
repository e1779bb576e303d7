"""The look at all modules: right figures, hooks only for one pass, and nothing of the program's changed."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tdbg.events import Observation
from tdbg.probes import tensors
from tdbg.probes.spread import SAMPLE, sampled
from tests.probes.conftest import Watch

FLAGS = {"FORWARD": True, "BACKWARD": True}


def observed(watch: Watch, probe: str) -> list[Observation]:
    return [event for event in watch.events if isinstance(event, Observation) and event.probe == probe]


def train(model: nn.Module, inputs: Tensor, steps: int = 2) -> list[Tensor]:
    """Train for a few steps; returns the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def test_figures_against_hooks_of_ones_own(watch: Callable[..., Watch]) -> None:
    one = watch(flags=FLAGS)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    inputs = torch.randn(32, 8)
    own_rms, own_flow = [], {}

    def keep_flow(place: int) -> Callable[..., None]:
        return lambda module, into, out: own_flow.update({place: out[0].norm().item()})

    for place, module in enumerate(model):
        module.register_forward_hook(lambda _, __, out: own_rms.append(out.detach().square().mean().sqrt().item()))
        module.register_full_backward_hook(keep_flow(place))
    train(model, inputs, steps=1)
    (forward,) = observed(one, "forward")
    (backward,) = observed(one, "backward")
    assert forward.values["modules"] == ["0", "1", "2", ""]
    assert forward.values["rms"][:3] == pytest.approx(own_rms, rel=1e-3)
    assert backward.values["flow"][:3] == pytest.approx([own_flow[0], own_flow[1], own_flow[2]], rel=1e-3)
    assert forward.values["zero_share"][1] == pytest.approx(0.5, abs=0.2)
    assert forward.step == backward.step == 1


def test_no_hook_is_left_and_no_value_differs(watch: Callable[..., Watch]) -> None:
    inputs = torch.randn(16, 8)

    def losses() -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(8, 2))
        found = train(model, inputs, steps=6)
        assert not any(module._forward_hooks for module in model.modules() if module is not model)
        return found

    bare = losses()
    one = watch(flags=FLAGS, level="extreme")
    assert torch.equal(torch.stack(losses()), torch.stack(bare))
    assert len(observed(one, "forward")) == 6


def test_names_are_told_once_and_again_when_shapes_change(watch: Callable[..., Watch]) -> None:
    one = watch(flags=FLAGS)
    model = nn.Linear(4, 4)
    train(model, torch.randn(8, 4), steps=2)
    train(model, torch.randn(6, 4), steps=1)
    assert ["modules" in event.values for event in observed(one, "forward")] == [True, False, True]


def test_a_forward_that_raises_leaves_no_hook(watch: Callable[..., Watch]) -> None:
    one = watch(flags=FLAGS)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 4))
    good = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    train(good, torch.randn(2, 4))
    assert one.monitor.modules.count() == 0
    assert not model[0]._forward_hooks
    assert observed(one, "forward")


def test_non_finite_and_zero_outputs_are_named(watch: Callable[..., Watch]) -> None:
    one = watch(flags=FLAGS)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].bias.fill_(-1e4)
        model[2].bias[0] = math.inf
    model(torch.randn(8, 4)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.0).step()
    (seen,) = observed(one, "forward")
    assert seen.values["dead"] == ["1"]
    assert seen.values["bad"][0] == "2"


def test_selected_steps_only(watch: Callable[..., Watch]) -> None:
    one = watch(flags=FLAGS, steps="3:4,6", level="basic")
    train(nn.Linear(4, 4), torch.randn(8, 4), steps=8)
    assert [event.step for event in observed(one, "forward")] == [3, 4, 6]
    other = watch(flags=FLAGS, every=3)
    train(nn.Linear(4, 4), torch.randn(8, 4), steps=8)
    assert [event.step for event in observed(other, "forward")] == [3, 6]


def test_another_rank_is_not_looked_at(watch: Callable[..., Watch]) -> None:
    one = watch(flags=FLAGS, ranks="1-3")
    train(nn.Linear(4, 4), torch.randn(8, 4))
    assert not observed(one, "forward")


def test_on_an_accelerator_the_figures_come_a_step_late(
    watch: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "on_host", lambda tensor: False)
    one = watch(flags=FLAGS)
    train(nn.Linear(4, 4), torch.randn(8, 4), steps=4)
    one.monitor.finish()
    assert [event.step for event in observed(one, "forward")] == [1, 2, 3, 4]


def test_a_compiled_model_is_run_eagerly_for_the_look(watch: Callable[..., Watch]) -> None:
    one = watch(flags={"FORWARD": True}, steps="3")
    torch._dynamo.reset()
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), backend="eager")
    train(model, torch.randn(8, 4), steps=6)
    (seen,) = observed(one, "forward")
    assert seen.values["modules"] == ["0", "1", "2", ""]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()


@pytest.mark.parametrize("shape", [(128, 256), (3, 5), (1024,), (1025,), (64, 64, 8)])
def test_samples_cover_the_tensor(shape: tuple[int, ...]) -> None:
    values = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    sample = sampled(values)
    assert sample.shape == (SAMPLE,)
    assert sample.mean().item() == pytest.approx(values.mean().item(), rel=0.15, abs=1.0)
    if values.dim() == 2 and values.numel() > SAMPLE:
        assert len({int(value) % shape[1] for value in sample}) > shape[1] // 2, "all columns have a chance"
    transposed = sampled(values.transpose(0, -1))
    assert transposed.mean().item() == pytest.approx(values.mean().item(), rel=0.15, abs=1.0)
