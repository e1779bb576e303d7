"""The loss of the last step, whatever the budget had recorded."""

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from streams import Stream
from torch import Tensor, nn

from tdbg.core.events import End, Step
from tdbg.runtime.duty_cycle import RARITIES


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def train_plain(steps: int) -> float:
    net, told = make_model(), 0.0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        told = loss.item()
    return told


def train_accumulated(steps: int) -> float:
    net, told = make_model(), 0.0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(steps):
        told = 0.0
        for _ in range(3):
            loss = net(torch.randn(4, 8)).square().mean() / 3
            loss.backward()
            told += loss.item()
        optimizer.step()
        optimizer.zero_grad()
    return told


def train_with_closures(steps: int) -> float:
    net, told = make_model(), []
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)
    x = torch.randn(32, 8)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (net(x) - x[:, :4]).square().mean()
        loss.backward()
        told.append(loss.item())
        return loss

    first = 0
    for _ in range(steps):
        first = len(told)
        optimizer.step(closure)
    return told[first]


def train_scaled(steps: int) -> float:
    net, told = make_model(), 0.0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(torch.randn(4, 8)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        told = loss.item()
    return told


def two_optimizers(steps: int) -> float:
    maker, judge, told = make_model(), nn.Linear(4, 1), 0.0
    ours, theirs = (torch.optim.SGD(part.parameters(), lr=0.01) for part in (maker, judge))
    for _ in range(steps):
        ours.zero_grad()
        loss = judge(maker(torch.randn(4, 8))).square().mean()
        loss.backward()
        ours.step()
        told = loss.item()
        theirs.zero_grad()
        (judge(maker(torch.randn(4, 8)).detach()).square().mean() + 100.0).backward()
        theirs.step()
    return told


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("program", [train_plain, train_accumulated, train_with_closures, train_scaled, two_optimizers])
def test_it_is_that_of_the_last_step(start_watch: Any, program: Callable[[int], float], every: int) -> None:
    watched = start_watch(every=every, max_overhead=1e6)
    told = program(12)
    last = watched.monitor.losses.last
    assert (last.step, last.read_loss()) == (12, pytest.approx(told, rel=1e-6))


def test_steps_that_the_budget_passes_over_count_too(start_watch: Any) -> None:
    watched = start_watch(max_overhead=0.001)
    watched.monitor.budget.allowance_s = math.inf  # which pays for the check of each loss
    told = train_plain(200)
    last = watched.monitor.losses.last
    assert len(watched.train_steps) < 200
    assert (last.step, last.read_loss()) == (200, pytest.approx(told, rel=1e-6))


def test_of_steps_that_are_not_checked_the_last_loss_is_some_steps_old(start_watch: Any) -> None:
    watched = start_watch(max_overhead=0.001)
    train_plain(200)
    assert 200 - RARITIES[-1].check_every < watched.monitor.losses.last.step <= 200


def test_nothing_of_the_program_is_kept_alive(start_watch: Any) -> None:
    watched = start_watch(max_overhead=1e6)
    net = make_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    out = net(torch.randn(4, 8))
    loss = out.square().mean()
    kept = weakref.ref(loss)
    loss.backward()
    optimizer.step()
    del loss, out
    gc.collect()
    assert kept() is None and watched.monitor.losses.last.read_loss() is not None


def test_a_device_that_is_not_known_to_be_idle_is_not_waited_for() -> None:
    from tdbg.runtime.last_loss import LastLoss

    class Elsewhere(Tensor):
        """A number on a device of which nothing is known."""

        @property
        def device(self) -> torch.device:  # type: ignore[override]
            return torch.device("xpu")

    last = LastLoss()
    last.add_loss(torch.ones(()).as_subclass(Elsewhere))
    last.end_step(1)
    assert last.step == 1 and last.read_loss() is None


@pytest.mark.parametrize(
    ("loss_step", "told"), [(100, "loss 0.25"), (60, "loss 0.25 at step 60"), (0, "loss 2 at step 40")]
)
def test_the_verdict_tells_it(tmp_path: Any, loss_step: int, told: str) -> None:
    run = Stream(tmp_path / "run")
    rank = run.begin_rank()
    run.emit_events(rank, Step(step=40, loss=2.0, lr=[0.1], grad_norm=1.0, finite=True))
    run.emit_events(rank, End(step=100, loss=0.25 if loss_step else None, loss_step=loss_step))
    (line,) = [line for line in run.judge_stream().format_page() if line.startswith("  rank 0")]
    assert line == f"  rank 0: step 100, ended, {told}"
    assert f"1 rank, 100 steps, {told}; exit 0" in run.judge_stream().format_summary()[0]


@pytest.mark.parametrize("overhead", [1e-9, 50.0, None])
def test_the_losses_of_the_last_steps_are_those_of_the_program(
    start_watch: Callable[..., Any], overhead: float | None
) -> None:
    seen = start_watch(max_overhead=overhead)
    seen.monitor.budget.allowance_s = math.inf  # which pays for the check of each loss
    net, told = make_model(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(300):
        optimizer.zero_grad()
        loss = net(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        told.append(loss.item())
    assert seen.monitor.losses.last.read_recent() == list(enumerate(told, 1))[-100:]
