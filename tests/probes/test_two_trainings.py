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


def train_turns(turns: list[int]) -> None:
    """Two models in turns of so many steps."""
    models = [nn.Linear(4, 1), nn.Linear(4, 2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    for turn, steps in enumerate(turns):
        for _ in range(steps):
            optimizers[turn % 2].zero_grad()
            models[turn % 2](torch.ones(4, 4)).square().mean().backward()
            optimizers[turn % 2].step()


@pytest.mark.parametrize("max_overhead", [50.0, 1.0, 1e-6])
def test_of_optimizers_that_take_turns_nearly_every_step_is_counted(
    start_watch: Callable[..., Watch], max_overhead: float
) -> None:
    watched = start_watch(max_overhead=max_overhead)
    train_turns([40] * 12)
    assert watched.monitor.step == 12 * 40 - 2 * OTHER_OPTIMIZER_TAKES_OVER - 9 * NEXT_TAKES_OVER


@pytest.mark.parametrize("turn", [1, 2, 5])
def test_after_long_turns_short_ones_leave_the_count_with_one_optimizer(
    start_watch: Callable[..., Watch], turn: int
) -> None:
    """As a GAN, both parts of which were trained alone before."""
    watched = start_watch(max_overhead=50.0)
    train_turns([40, 40, 40])
    before = watched.monitor.step
    train_turns([1, turn] * 100)
    assert watched.monitor.step - before >= 100
