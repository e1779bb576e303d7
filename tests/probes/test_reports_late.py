"""GRADIENTS, OPTIMIZER and AMP on the accelerator's path: the same figures, later, and nothing read on the way."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_codes, list_observations
from torch import nn

from tdbg.runtime import tensors

FLAGS = dict.fromkeys(("GRADIENTS", "OPTIMIZER", "AMP"), True)
STEPS = 10


def train_model(scaler: torch.amp.GradScaler, spoil: int = 0) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, STEPS + 1):
        x = torch.randn(16, 8)
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
        loss = (out.float() - x[:, :4]).square().mean() * (math.nan if step == spoil else 1.0)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def index_values(watched: Any, probe: str) -> dict[int, dict[str, Any]]:
    return {event.step: event.values for event in list_observations(watched, probe)}


def test_late_figures_are_those_of_the_host(start_watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    near = start_watch(flags=FLAGS, max_overhead=1e6)
    train_model(torch.amp.GradScaler("cpu"))
    near.monitor.detach()
    monkeypatch.setattr(tensors, "on_host", lambda tensor: False)
    far = start_watch(flags=FLAGS, max_overhead=1e6)
    train_model(torch.amp.GradScaler("cpu"))
    far.monitor.finish_run()
    for probe, names in (
        ("gradient-report", ("total", "largest", "smallest_name")),
        ("optimizer", ("ratio_median", "ratio_largest", "unmoved_share", "sampled", "state_mb")),
        ("amp", ("dtype", "elements", "zero_share", "faint_share", "largest")),
    ):
        here, there = index_values(near, probe), index_values(far, probe)
        assert len(there) >= STEPS - 2, probe
        for step, values in there.items():
            for name in names:
                wanted = here[step][name]
                exact = isinstance(wanted, str)
                assert values[name] == (wanted if exact else pytest.approx(wanted, rel=1e-3)), (probe, step, name)


def test_scale_and_cause_are_known_a_step_late(
    start_watch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "on_host", lambda tensor: False)
    watched = start_watch(flags={"AMP": True}, max_overhead=1e6)
    train_model(torch.amp.GradScaler("cpu"), spoil=5)
    watched.monitor.finish_run()
    (skip,) = list_observations(watched, "amp", "SKIP")
    assert skip.step == 5 and "loss" not in skip.values and "bad" not in skip.values
    (cause,) = list_observations(watched, "amp", "CAUSE")
    assert (cause.step, cause.values["loss"], cause.values["real"]) == (5, "nan", "loss")
    (scale,) = list_observations(watched, "amp", "SCALE")
    assert (scale.values["before"], scale.values["scale"]) == (65536.0, 32768.0)
    assert "TD-A002" in judge_codes(watched, tmp_path)
