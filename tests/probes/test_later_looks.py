"""Looks at doubling intervals after the opening steps: a fault that begins late is named, a healthy twin is not."""

import copy
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_codes, list_observations
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from tdbg.core.events import Observation
from tdbg.runtime.inspection import FIRST_LATER_STEP, OPENING_STEPS
from tdbg.runtime.listener import LATER_STEPS

FEATURES, CLASSES, BATCH = 16, 4, 8
PASS_STEPS = 12  # over a loader: a pass begins in each look
LOOKS = 6  # one of them is long enough, on a machine however busy
PAID = 1e5  # percent: every look is paid for when it is due


class Net(nn.Module):
    """Two branches, of which one can be cut off, and an inner region without autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.aux = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)
        self.head = nn.Linear(FEATURES, CLASSES)
        self.is_cut = self.is_uncast = False

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False) if self.is_uncast else nullcontext():
            hidden = self.body(x).relu()
            aux = self.aux(hidden)
            return self.head(hidden) + (aux.detach() if self.is_cut else aux)


class Loop:
    """A training whose parts a fault can change in the middle."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = Net()
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.other: torch.optim.Optimizer | None = None
        self.target = torch.randn(FEATURES, CLASSES)
        self.autocast = False
        self.clears = True
        self.loss: Callable[[Tensor, Tensor], Tensor] = lambda z, x: functional.cross_entropy(z, self.label(x))

    def label(self, x: Tensor) -> Tensor:
        return (x @ self.target).argmax(1)

    def take_step(self, x: Tensor) -> None:
        if self.clears:
            self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if self.autocast else nullcontext():
            z = self.net(x)
        self.loss(z.float(), x).backward()
        self.optimizer.step()
        if self.other is not None:
            self.other.step()

    def run_steps(self, steps: int, rest_s: float = 0.0) -> None:
        for _ in range(steps):
            self.take_step(torch.randn(BATCH, FEATURES))
            if rest_s:
                time.sleep(rest_s)


def put_softmax_before_loss(loop: Loop) -> None:
    loop.loss = lambda z, x: functional.cross_entropy(z.softmax(-1), loop.label(x))


def broadcast_loss(loop: Loop) -> None:
    loop.loss = lambda z, x: (z[:, :1] - x[:, 0]).square().mean()


def ignore_autocast(loop: Loop) -> None:
    loop.net.is_uncast = True


def cut_branch(loop: Loop) -> None:
    loop.net.is_cut = True


def train_copy(loop: Loop) -> None:
    loop.optimizer = torch.optim.SGD(copy.deepcopy(loop.net).parameters(), lr=0.05)


def update_twice(loop: Loop) -> None:
    loop.other = torch.optim.SGD(loop.net.head.parameters(), lr=0.001)


def forget_zero_grad(loop: Loop) -> None:
    loop.clears = False


FAULTS: dict[Callable[[Loop], None], tuple[str, str]] = {
    put_softmax_before_loss: ("TD-C023", "backward"),
    broadcast_loss: ("TD-C024", "backward"),
    ignore_autocast: ("TD-C026", "forward"),
    cut_branch: ("TD-G003", "gradient-report"),
    train_copy: ("TD-S011", "optimizer"),
    update_twice: ("TD-S006", "optimizer"),
    forget_zero_grad: ("TD-C013", "training-loop"),
}


def watch_loop(start_watch: Any, fault: Callable[[Loop], None] | None, max_overhead: float | None = PAID) -> Any:
    watched = start_watch(max_overhead=max_overhead)
    watched.monitor.inspection.begin_inspection(1.0)
    loop = Loop()
    loop.autocast = fault is ignore_autocast
    return watched, loop


@pytest.mark.parametrize("start", [60, 150, 700])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_that_begins_late_is_named(
    start_watch: Any, tmp_path: Path, fault: Callable[[Loop], None], start: int
) -> None:
    watched, loop = watch_loop(start_watch, fault)
    loop.run_steps(start - 1)
    assert judge_codes(watched, tmp_path / "before") == []
    fault(loop)
    due = FIRST_LATER_STEP
    while due < start:
        due *= 2
    loop.run_steps(due + LATER_STEPS + 1 - start)
    assert FAULTS[fault][0] in judge_codes(watched, tmp_path)
    names = {event.probe for event in watched.events if isinstance(event, Observation) and event.step > due}
    assert FAULTS[fault][1] in names


def keep_training(loop: Loop) -> None:
    pass


def train_another_head(loop: Loop) -> None:
    """A second optimizer, on parameters of its own."""
    head = nn.Linear(FEATURES, 1)
    loop.other = torch.optim.SGD(head.parameters(), lr=0.01)
    loss, other = loop.loss, loop.other

    def add_losses(z: Tensor, x: Tensor) -> Tensor:
        other.zero_grad()
        return loss(z, x) + head(x).square().mean()

    loop.loss = add_losses


def use_autocast(loop: Loop) -> None:
    loop.autocast = True


def change_loss(loop: Loop) -> None:
    loop.loss = lambda z, x: functional.multi_margin_loss(z, loop.label(x))


def freeze_branch(loop: Loop) -> None:
    loop.net.aux.requires_grad_(False)


HEALTHY = [keep_training, train_another_head, use_autocast, change_loss, freeze_branch]


@pytest.mark.parametrize("change", HEALTHY, ids=lambda change: change.__name__)
def test_healthy_trainings_are_no_finding(start_watch: Any, tmp_path: Path, change: Callable[[Loop], None]) -> None:
    watched, loop = watch_loop(start_watch, None)
    loop.run_steps(90)
    change(loop)
    loop.run_steps(4 * FIRST_LATER_STEP + LATER_STEPS - 85)
    assert judge_codes(watched, tmp_path) == []
    looked = {event.step for event in list_observations(watched, "gradient-report") if event.step > FIRST_LATER_STEP}
    assert {101, 201, 401} <= looked <= {step + i for step in (100, 200, 400) for i in range(1, 20)}


@pytest.mark.parametrize(
    ("rest_s", "max_overhead"), [(0.0, 40.0), (0.003, 10.0)]
)  # a skipped step of 0.3 ms is booked at 20 % of it
@pytest.mark.parametrize("fault", [cut_branch, put_softmax_before_loss], ids=lambda fault: fault.__name__)
def test_the_budget_pays_in_short_and_in_long_steps(
    start_watch: Any, tmp_path: Path, fault: Callable[[Loop], None], rest_s: float, max_overhead: float
) -> None:
    watched, loop = watch_loop(start_watch, None, max_overhead)
    inspection, budget = watched.monitor.inspection, watched.monitor.budget
    loop.run_steps(OPENING_STEPS + 10)
    fault(loop)
    begun = time.perf_counter()
    for number in range(LOOKS):  # beside other work a look costs more than was saved for it, and is cut short
        while not inspection.is_later_look_open and time.perf_counter() - begun < 60.0:
            loop.run_steps(1, rest_s)
        assert loop.net.training and watched.monitor.step >= FIRST_LATER_STEP
        loop.run_steps(LATER_STEPS + 1, rest_s)
        assert not inspection.is_open
        if FAULTS[fault][0] in judge_codes(watched, tmp_path / str(number)):
            break
    else:
        pytest.fail(f"{FAULTS[fault][0]} was not named in {LOOKS} looks")
    while budget.own_s > budget.earned_by_share_s(time.perf_counter()) and time.perf_counter() - begun < 90.0:
        loop.run_steps(1, rest_s)
    assert budget.own_s <= budget.earned_by_share_s(time.perf_counter()), "what was spent is earned again"


def test_what_cannot_be_paid_is_not_looked_at(start_watch: Any) -> None:
    watched, loop = watch_loop(start_watch, None, 1e-3)
    loop.run_steps(2 * FIRST_LATER_STEP)
    assert not {event.step for event in list_observations(watched, "gradient-report") if event.step > OPENING_STEPS}


# loaders


class Samples(Dataset[Any]):
    """Samples of four classes, drawn when they are asked for."""

    def __init__(self, *, in_order: bool = False, as_bytes: bool = False) -> None:
        self.in_order, self.as_bytes = in_order, as_bytes

    def __len__(self) -> int:
        return PASS_STEPS * BATCH

    def __getitem__(self, index: int) -> Any:
        sample = torch.rand(FEATURES) * 255.0 if self.as_bytes else torch.randn(FEATURES)
        return sample, index * CLASSES // len(self) if self.in_order else index % CLASSES


def seed_alike(worker: int) -> None:
    torch.manual_seed(7)


def make_loader(fault: str) -> DataLoader[Any]:
    data = Samples(in_order=fault == "order", as_bytes=fault == "bytes")
    if fault.startswith("workers"):
        init = seed_alike if fault == "workers alike" else None
        return DataLoader(data, batch_size=BATCH, num_workers=2, shuffle=True, worker_init_fn=init)
    return DataLoader(data, batch_size=BATCH, shuffle=fault != "order")


def train_on(loop: Loop, loader: DataLoader[Any], steps: int) -> None:
    """Pass after pass over a loader."""
    done = 0
    while done < steps:
        for x, y in loader:
            loop.loss = lambda z, _, y=y: functional.cross_entropy(z, y)  # type: ignore[misc]
            loop.take_step(x)
            done += 1
            if done == steps:
                break


@pytest.mark.parametrize(
    ("before", "fault", "code"),
    [
        ("", "order", "TD-D013"),
        ("", "bytes", "TD-D014"),
        ("workers", "workers alike", "TD-D012"),
        ("", "", ""),
        ("workers", "workers", ""),
    ],
)
def test_data_that_becomes_bad_late_is_named(
    start_watch: Any, tmp_path: Path, before: str, fault: str, code: str
) -> None:
    watched, loop = watch_loop(start_watch, None)
    train_on(loop, make_loader(before), 60)
    assert judge_codes(watched, tmp_path / "before") == []
    train_on(loop, make_loader(fault), FIRST_LATER_STEP + LATER_STEPS - 55)
    assert [found for found in judge_codes(watched, tmp_path) if found.startswith("TD-D")] == ([code] if code else [])
