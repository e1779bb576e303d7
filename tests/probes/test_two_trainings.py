"""A program that trains one model after another, each with an optimizer of its own: both are counted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tdbg.runtime.optimizers import OTHER_OPTIMIZER_TAKES_OVER

from .conftest import Watch


def train_model(steps: int, kind: Any) -> Any:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = kind(model.parameters(), lr=0.01)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 4)).square().mean()
        loss.backward()
        return float(loss.detach())

    for _ in range(steps):
        if kind is torch.optim.LBFGS:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    return optimizer


@pytest.mark.parametrize("first", [torch.optim.LBFGS, torch.optim.SGD])
@pytest.mark.parametrize("max_overhead", [50.0, 1.0, 1e-6])
def test_the_steps_of_the_second_are_counted_whatever_the_budget(
    start_watch: Callable[..., Watch], first: Any, max_overhead: float
) -> None:
    watched = start_watch(max_overhead=max_overhead)
    kept = train_model(40, first)
    train_model(60, torch.optim.Adam)
    assert watched.monitor.step == 40 + 60 - OTHER_OPTIMIZER_TAKES_OVER
    assert watched.notes.count("step-optimizer") == 1
    assert kept.param_groups
