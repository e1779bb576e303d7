"""A rank's own gradients, looked at before they are reduced; and weights that no gradient explains."""

import gc
import math
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from .conftest import Watch

Start = Callable[..., Watch]


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone: DDP reduces, and there is nobody to reduce with."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


def train_model(
    seen: Watch, model: nn.Module, steps: int = 30, act: Callable[[int, str], None] = lambda step, at: None
) -> None:
    """Train; ``act`` is told of each step before its forward pass, and between backward and update."""
    seen.monitor.world_size = 2  # as if there were another rank
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, steps + 1):
        seen.monitor.world_size = 2
        seen.monitor.plan.full = seen.monitor.plan.small = False  # the budget pays for no look at gradients
        act(step, "begin")
        time.sleep(0.002)  # of steps shorter still not each is looked at
        optimizer.zero_grad()
        model(torch.randn(6, 8)).square().mean().backward()
        act(step, "reduced")
        optimizer.step()


def ruin_gradient(parameter: nn.Parameter, on: list[bool]) -> None:
    parameter.register_hook(lambda grad: grad * math.inf if on[0] else grad)


@pytest.mark.parametrize("views", [None, False, True])
@pytest.mark.usefixtures("process_group")
def test_a_gradient_that_is_bad_before_the_reduction_is_this_ranks(start_watch: Start, views: bool | None) -> None:
    """In a step that the budget pays no look at gradients for."""
    seen, model, on = start_watch(), make_net(), [False]
    ruin_gradient(model[2].weight, on)
    wrapped = model if views is None else DistributedDataParallel(model, gradient_as_bucket_view=views)

    def act(step: int, at: str) -> None:
        on[0] = step == 21

    train_model(seen, wrapped, act=act)
    event = seen.bad_values[0]
    assert (event.step, event.origin, event.phase, event.parameter) == (21, "here", "gradient", "2.weight")
    assert event.weights == "intact" and event.own_finite == 20


def test_a_gradient_that_turns_bad_in_the_reduction_is_another_ranks(start_watch: Start) -> None:
    seen, model = start_watch(), make_net()

    def act(step: int, at: str) -> None:
        if step == 21 and at == "reduced":
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.fill_(math.nan)

    train_model(seen, model, act=act)
    event = seen.bad_values[0]
    assert (event.step, event.origin, event.weights, event.own_finite) == (21, "other-rank", "updated", 21)


@pytest.mark.usefixtures("process_group")
def test_where_gradients_are_views_one_hook_is_left_and_none_after_the_end(start_watch: Start) -> None:
    seen, model = start_watch(), make_net()
    train_model(seen, DistributedDataParallel(model, gradient_as_bucket_view=True), steps=3)
    hooks = [p for p in model.parameters() if p._post_accumulate_grad_hooks]
    assert len(hooks) == 1 and len(seen.monitor.local_gradients) == 1
    seen.monitor.detach()
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.usefixtures("process_group")
def test_a_model_that_the_program_lets_go_is_gone(start_watch: Start, views: bool) -> None:
    seen, model = start_watch(), make_net()
    weight = weakref.ref(model[0].weight)
    train_model(seen, DistributedDataParallel(model, gradient_as_bucket_view=views), steps=3)
    del model
    gc.collect()
    assert weight() is None


@pytest.mark.usefixtures("process_group")
def test_nothing_grows_where_no_gradient_can_be_read(start_watch: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator a value is not waited for."""
    monkeypatch.setattr("tdbg.runtime.tensors.on_host", lambda tensor: False)
    seen, model = start_watch(), make_net()
    train_model(seen, DistributedDataParallel(model, gradient_as_bucket_view=True), steps=6)
    assert len(seen.monitor.local_gradients) == 0
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.usefixtures("process_group")
def test_torch_numbers_the_programs_own_hooks_as_without_tdbg(start_watch: Start, views: bool) -> None:
    """A module that is saved holds the numbers of its hooks."""
    seen, model = start_watch(), make_net()
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=views)
    before = RemovableHandle.next_id
    train_model(seen, wrapped, steps=4)
    assert RemovableHandle.next_id == before


def test_without_other_ranks_nothing_is_looked_at_before_the_update(start_watch: Start) -> None:
    seen, model = start_watch(), make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(torch.randn(6, 8)).sum().backward()
        optimizer.step()
    assert seen.monitor.local_gradients.finite_at == 0
    assert (
        "local_gradients" not in seen.monitor.build_cost().by_part
        or seen.monitor.build_cost().by_part["local_gradients"] < 5
    )


def train_overwritten(seen: Watch, make: Any, *, clip: bool, at: int = 12) -> None:
    model = make_net()
    optimizer = make(model.parameters())
    for step in range(1, at + 4):
        if step == at:
            model[2].weight.data[0, 0] = math.nan
        optimizer.zero_grad()
        seen.monitor.plan.full = seen.monitor.plan.small = False
        model(torch.randn(6, 8)).square().mean().backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@pytest.mark.parametrize(
    ("make", "clip", "why"),
    [
        (lambda parameters: torch.optim.AdamW(parameters), True, "the total gradient norm of step 11 was finite"),
        (lambda parameters: torch.optim.AdamW(parameters), False, "exp_avg in the optimizer is finite after step 11"),
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1), True, "the total gradient norm of step 11 was finite"),
        (
            lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
            False,
            "momentum_buffer in the optimizer",
        ),
    ],
    ids=["adamw-clip", "adamw", "sgd-clip", "momentum"],
)
def test_a_weight_that_is_overwritten_is_no_gradients_fault(
    start_watch: Start, make: Any, clip: bool, why: str
) -> None:
    seen = start_watch()
    train_overwritten(seen, make, clip=clip)
    event = seen.bad_values[0]
    assert (event.step, event.phase, event.parameter, event.count) == (12, "weights", "2.weight", 1)
    assert why in event.note and "no update wrote it" in event.note


def test_where_no_record_refutes_a_gradient_the_report_says_that_none_was_read(start_watch: Start) -> None:
    seen = start_watch()
    train_overwritten(seen, lambda parameters: torch.optim.SGD(parameters, lr=0.1), clip=False)
    event = seen.bad_values[0]
    assert (event.step, event.phase) == (11, "gradient")
    assert event.note == "seen one step late: the gradients were not read at this step"
