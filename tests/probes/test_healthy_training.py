"""Ordinary programs under GRADIENTS, OPTIMIZER, LR, SCHEDULING and AMP: results as without, and not a word."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_codes, list_observations
from torch import Tensor, nn
from torch.optim import lr_scheduler

FLAGS = dict.fromkeys(("GRADIENTS", "OPTIMIZER", "LR", "SCHEDULING", "AMP"), True)
STEPS = 50


def make_mlp(*extra: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), *extra, nn.ReLU(), nn.Linear(16, 4))


def run_loop(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any = None, **more: Any) -> nn.Module:
    loss_of = more.get("loss") or (lambda x: (model(x) - x[:, :4]).square().mean())
    for step in range(more.get("steps", STEPS)):
        optimizer.zero_grad()
        for _ in range(more.get("micro", 1)):
            loss_of(torch.randn(16, 8)).backward()
        if "clip" in more:
            nn.utils.clip_grad_norm_(model.parameters(), more["clip"])
        if "spoil" in more:
            more["spoil"](step)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return model


def train_plain_net() -> nn.Module:
    model = make_mlp()
    return run_loop(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), clip=1.0)


def warm_up_from_zero() -> nn.Module:
    model = make_mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return run_loop(model, optimizer, lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 10, 1.0)), micro=4)


def batch_norm() -> nn.Module:
    """The bias before it has a gradient of rounding noise."""
    model = make_mlp(nn.BatchNorm1d(16))
    return run_loop(model, torch.optim.Adam(model.parameters(), lr=1e-2))


class LowRank(nn.Module):
    """LoRA: a frozen layer and two small ones, of which one begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 4).requires_grad_(False)
        self.a, self.b = nn.Linear(8, 2, bias=False), nn.Linear(2, 4, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x))


def adapter() -> nn.Module:
    torch.manual_seed(0)
    model = LowRank()
    return run_loop(model, torch.optim.AdamW(model.parameters(), lr=1e-4))


def embedding() -> nn.Module:
    torch.manual_seed(0)
    table = nn.Embedding(500, 8, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=1e-2)
    return run_loop(table, optimizer, loss=lambda x: table(torch.randint(4, (16,))).square().mean())


def gan() -> nn.Module:
    generator, judge = make_mlp(), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    ours, theirs = torch.optim.Adam(generator.parameters()), torch.optim.Adam(judge.parameters())
    steps = [lr_scheduler.ExponentialLR(optimizer, gamma=0.99) for optimizer in (ours, theirs)]
    for _ in range(STEPS):
        fake = generator(torch.randn(16, 8))
        ours.zero_grad()
        (-judge(fake).mean()).backward()
        ours.step()
        theirs.zero_grad()
        (judge(fake.detach()).mean() - judge(torch.randn(16, 4)).mean()).backward()
        theirs.step()
        for scheduler in steps:
            scheduler.step()
    return generator


def lbfgs() -> nn.Module:
    model = make_mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x = torch.randn(64, 8)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - x[:, :4]).square().mean()
        loss.backward()
        return loss

    for _ in range(15):
        optimizer.step(closure)
    return model


def train_half(dtype: torch.dtype, scaler: torch.amp.GradScaler) -> nn.Module:
    model = make_mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS + 1)
    for _ in range(STEPS):
        x = torch.randn(16, 8)
        with torch.autocast("cpu", dtype=dtype):
            out = model(x)
        optimizer.zero_grad()
        scaler.scale((out.float() - x[:, :4]).square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
    return model


def mixed_fp16() -> nn.Module:
    return train_half(torch.float16, torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=6))


def mixed_bf16() -> nn.Module:
    return train_half(torch.bfloat16, torch.amp.GradScaler("cpu", enabled=False))


def complex_and_double() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(8, 4).to(torch.complex64)
    double = nn.Linear(8, 4).double()
    optimizer = torch.optim.Adam([*model.parameters(), *double.parameters()])
    return run_loop(
        model,
        optimizer,
        loss=lambda x: model(x.to(torch.complex64)).abs().square().mean() + double(x.double()).square().mean(),
    )


def thawed_later() -> nn.Module:
    model = make_mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.05)
    run_loop(model, optimizer, steps=20)
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 1e-3})
    return run_loop(model, optimizer)


def tensor_rate() -> nn.Module:
    model = make_mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-2), capturable=False, foreach=False)
    return run_loop(model, optimizer, lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS))


def learned_to_the_end() -> nn.Module:
    """The loss goes to almost nothing, and so do all gradients."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    return run_loop(model, torch.optim.SGD(model.parameters(), lr=0.5), steps=300)


PROGRAMS = [
    train_plain_net,
    warm_up_from_zero,
    batch_norm,
    adapter,
    embedding,
    gan,
    lbfgs,
    mixed_fp16,
    mixed_bf16,
    complex_and_double,
    thawed_later,
    tensor_rate,
    learned_to_the_end,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_nothing_is_found_and_nothing_is_changed(
    start_watch: Any, tmp_path: Path, program: Callable[[], nn.Module]
) -> None:
    alone = [parameter.detach().clone() for parameter in program().parameters()]
    state = torch.get_rng_state()
    watched = start_watch(flags=FLAGS, max_overhead=1e6)
    observed = list(program().parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one, other) for one, other in zip(alone, observed, strict=True))
    assert judge_codes(watched, tmp_path) == []
    assert list_observations(watched, "optimizer") and list_observations(watched, "gradient-report")


def test_an_update_that_raises_is_the_programs_own(start_watch: Any) -> None:
    watched = start_watch(flags=FLAGS, max_overhead=1e6)
    model = make_mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> float:
        raise KeyError("mine")

    for _ in range(3):
        with pytest.raises(KeyError, match="mine"):
            optimizer.step(closure)
    run_loop(model, optimizer, steps=3)
    assert [event.step for event in list_observations(watched, "optimizer")] == [1, 2, 3]


def test_flags_may_come_and_go_while_the_run_goes_on(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(max_overhead=1e6)
    model = make_mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
    for on in (False, True, False, True):
        watched.monitor.level_overrides.change_now("", dict.fromkeys(FLAGS, on), "api")
        run_loop(model, optimizer, scheduler, steps=10, clip=1.0)
    for probe in ("gradient-report", "optimizer", "schedule"):
        steps = {event.step for part in ("", "STEP") for event in list_observations(watched, probe, part)}
        assert steps <= {*range(11, 21), *range(31, 41)} and steps & {*range(31, 41)}, probe
    assert judge_codes(watched, tmp_path) == []


def test_nothing_beyond_the_budget_and_the_steps_asked_for(start_watch: Any) -> None:
    watched = start_watch(flags=FLAGS, max_overhead=1e6, steps="3:4")
    model = make_mlp()
    run_loop(model, torch.optim.SGD(model.parameters(), lr=0.05))
    assert {
        event.step for probe in ("gradient-report", "optimizer") for event in list_observations(watched, probe)
    } == {3, 4}


def test_bounds_of_what_is_kept(start_watch: Any) -> None:
    watched = start_watch(flags=FLAGS, max_overhead=1e6)
    for _ in range(100):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scheduler = lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
        model(torch.randn(2, 2)).sum().backward()
        optimizer.step()
        scheduler.step()
    schedule, report = watched.monitor.find_probe("schedule"), watched.monitor.find_probe("gradient-report")
    assert len(schedule._courses) <= 64 and len(schedule._unannounced) <= 64
    assert len(report._due) <= 4 and len(report._history) <= 16
    assert math.isfinite(watched.train_steps[-1].loss)
