"""A program that trains one model after another, each with an optimizer of its own: both are counted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tdbg.runtime.optimizers import NEXT_TAKES_OVER, OTHER_OPTIMIZER_TAKES_OVER

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


def train_phases(phases: int, steps: int, *, both: bool = False) -> None:
    """Two models in turns, for many steps each; with ``both`` the second takes two steps for each of the first."""
    models = [nn.Linear(4, 1), nn.Linear(4, 2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    for phase in range(phases):
        for _ in range(steps):
            for at in (0, 1, 1) if both else (phase % 2,):
                optimizers[at].zero_grad()
                models[at](torch.ones(4, 4)).square().mean().backward()
                optimizers[at].step()


@pytest.mark.parametrize("max_overhead", [50.0, 1.0, 1e-6])
def test_of_optimizers_that_take_turns_nearly_every_step_is_counted(
    start_watch: Callable[..., Watch], max_overhead: float
) -> None:
    watched = start_watch(max_overhead=max_overhead)
    train_phases(12, 40)
    assert watched.monitor.step == 12 * 40 - 2 * OTHER_OPTIMIZER_TAKES_OVER - 9 * NEXT_TAKES_OVER


def test_a_second_optimizer_of_each_step_is_not_counted(start_watch: Callable[..., Watch]) -> None:
    watched = start_watch(max_overhead=50.0)
    train_phases(2, 40, both=True)
    assert watched.monitor.step == 80
