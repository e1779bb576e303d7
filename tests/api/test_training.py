"""TrainingDebugger: what a step looked like, and what the whole training came to."""

import json
import math

import pytest
import torch
from torch import nn

from tdbg import DebugLevel, StepInfo, TrainingDebugger

from .conftest import small_model

SUMMARY = {
    "total_steps",
    "anomaly_steps",
    "gradient_explosions",
    "gradient_vanishing",
    "loss_anomalies",
    "anomaly_rate",
    "loss_anomaly_rate",
    "gradient_explosion_rate",
    "gradient_vanishing_rate",
}


def run_step(model: nn.Module, scale: float = 1.0) -> torch.Tensor:
    model.zero_grad()
    loss = model(torch.randn(6, 8)).pow(2).mean() * scale
    loss.backward()
    return loss


def test_a_healthy_training():
    debugger, model = TrainingDebugger(), small_model()
    for number in range(1, 41):
        loss = run_step(model)
        info = debugger.monitor_training_step(model, loss, number)
        assert isinstance(info, StepInfo) and info.healthy, info.anomalies
    assert (info.step, info.loss) == (40, pytest.approx(loss.item(), rel=1e-6))
    total = math.sqrt(sum(p.grad.norm().item() ** 2 for p in model.parameters()))
    assert info.grad_norm == pytest.approx(total, rel=1e-5)
    assert info.gradients["params_with_grad"] == 4
    assert (info.parameters, info.memory) == ({}, {}), "basic reads loss and gradients alone"
    summary = debugger.get_training_summary()
    assert set(summary) == SUMMARY
    assert summary == {**dict.fromkeys(SUMMARY, 0), "total_steps": 40}
    json.dumps(info.as_dict())


def test_every_anomaly_is_counted():
    debugger, model = TrainingDebugger(), small_model()
    for number in range(1, 41):
        debugger.monitor_training_step(model, run_step(model), number)
    exploded = debugger.monitor_training_step(model, run_step(model, 1e6), 41)
    assert exploded.loss_anomaly and set(exploded.exploding) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert exploded.anomalies[0].startswith("loss ") and "the median of the last 40 is" in exploded.anomalies[0]
    vanished = debugger.monitor_training_step(model, run_step(model, 1e-12), 42)
    assert not vanished.loss_anomaly and len(vanished.vanishing) == 4
    assert vanished.anomalies == ["4 gradient norms below 1e-06"]
    loss = run_step(model)
    model[0].weight.grad[0, 0] = math.nan
    bad = debugger.monitor_training_step(model, loss, 43)
    assert bad.gradients["params_with_nan_grad"] == 1 and bad.exploding == ["0.weight"]
    nan = debugger.monitor_training_step(model, run_step(model) * math.nan, 44)
    assert nan.loss_anomaly and nan.anomalies == ["loss nan"]
    summary = debugger.get_training_summary()
    assert summary["total_steps"] == 44 and summary["anomaly_steps"] == 4
    assert summary["gradient_explosions"] == 2 and summary["gradient_vanishing"] == 1
    assert summary["loss_anomalies"] == 2 and summary["loss_anomaly_rate"] == pytest.approx(2 / 44)
    assert summary["anomaly_rate"] == pytest.approx(4 / 44)
    kinds = [entry["kind"] for entry in debugger.debug_history]
    assert sorted(kinds) == ["explosion", "explosion", "loss", "loss", "non-finite", "vanishing"]


def test_bounds_can_be_set():
    debugger, model = TrainingDebugger(explosion=1e-9, vanishing=1e-12), small_model()
    assert len(debugger.monitor_training_step(model, run_step(model), 1).exploding) == 4


def test_a_loss_that_is_a_number_and_a_model_without_gradients():
    info = TrainingDebugger().monitor_training_step(small_model(), 0.5, 1)
    assert (info.loss, info.grad_norm, info.healthy) == (0.5, None, True)


def test_a_loss_of_several_elements_is_refused():
    with pytest.raises(ValueError, match="6 elements"):
        TrainingDebugger().monitor_training_step(small_model(), torch.ones(6), 1)


def test_loss_and_gradients_come_with_one_copy(monkeypatch):
    debugger, model = TrainingDebugger(), small_model()
    loss, copies = run_step(model), []
    real = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: (copies.append(1), real(self))[1])
    for name in ("item", "__float__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, lambda self: pytest.fail("a copy of one value"))
    debugger.monitor_training_step(model, loss, 1)
    assert len(copies) == 1


def test_what_the_levels_add():
    model = small_model()
    loss = run_step(model)
    advanced = TrainingDebugger(DebugLevel.ADVANCED).monitor_training_step(model, loss, 1)
    assert set(advanced.parameters) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert advanced.memory["parameters"] == advanced.memory["gradients"] == 4 * 212
    assert advanced.gradient_infos == {}
    debugger = TrainingDebugger(DebugLevel.EXTREME)
    extreme = debugger.monitor_training_step(model, loss, 1)
    gradient = model[0].weight.grad
    assert extreme.gradient_infos["0.weight"].max_value == pytest.approx(gradient.max().item(), rel=1e-6)
    assert {"0.weight", "0.weight.grad"} <= set(debugger.tensor_history)
    json.dumps(extreme.as_dict())
    off = TrainingDebugger(DebugLevel.OFF)
    assert off.monitor_training_step(model, loss, 1).loss is None
    assert off.get_training_summary()["total_steps"] == 0


def test_details_keep_to_their_share():
    debugger, model = TrainingDebugger(DebugLevel.ADVANCED), small_model()
    loss = run_step(model)
    detailed = [bool(debugger.monitor_training_step(model, loss, number).parameters) for number in range(1, 101)]
    assert all(detailed[:8]) and not any(detailed[20:]), "100 steps without any work in between afford no details"


def test_all_can_be_forgotten():
    debugger, model = TrainingDebugger(), small_model()
    debugger.monitor_training_step(model, run_step(model, 1e9), 1)
    debugger.clear_debug_history()
    assert debugger.get_training_summary() == dict.fromkeys(SUMMARY, 0)
    assert debugger.get_debug_summary()["total_anomalies"] == 0


def test_training_is_the_same_with_it():
    def weights(watched: bool) -> list[torch.Tensor]:
        debugger, model = TrainingDebugger(DebugLevel.EXTREME), small_model()
        optimizer = torch.optim.Adam(model.parameters())
        for number in range(5):
            loss = run_step(model)
            if watched:
                debugger.monitor_training_step(model, loss, number)
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    for one, other in zip(weights(True), weights(False), strict=True):
        assert torch.equal(one, other)
