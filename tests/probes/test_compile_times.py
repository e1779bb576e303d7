"""When torch.compile compiled, and for how long, as the probe `compilation` passes it on."""

import time
from typing import Any

import pytest
import torch
from probes.judging import list_observations
from torch import Tensor, nn

from tdbg.core.observations.compilation import CompileTime
from tdbg.runtime.torch_compat import list_compilations


def compile_slowly(graph: Any, inputs: object) -> Any:
    """A backend that takes its time."""
    time.sleep(0.6)
    return graph.forward


def run_updates(steps: int, backend: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    compiled = torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss: Tensor = compiled(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()


@pytest.fixture(autouse=True)
def forget_compiled() -> None:
    torch._dynamo.reset()


def test_what_is_compiled_is_told_once_with_its_time(start_watch: Any) -> None:
    began = time.time()
    watched = start_watch()
    run_updates(4, compile_slowly)
    watched.monitor.dispatcher.dispatch("run_ends")
    took_s = time.time() - began
    [told] = list_observations(watched, "compilation", CompileTime.PART)
    new = [(t, s) for t, s in zip(told.values["began"], told.values["took_s"], strict=True) if t >= began - 0.01]
    assert len(new) == 1 and 0.6 <= new[0][1] <= took_s and new[0][0] + new[0][1] <= time.time()


def test_the_list_is_sorted_and_in_seconds() -> None:
    began = time.time()
    run_updates(1, compile_slowly)
    found = list_compilations()
    assert found == sorted(found)
    assert began - 0.01 <= found[-1][0] <= time.time() and 0.6 <= found[-1][1] < 60


def test_what_was_compiled_before_is_not_told(start_watch: Any) -> None:
    """In a notebook, or under `debug_context`: the compiler's list is that of the process."""
    run_updates(2, compile_slowly)
    watched = start_watch()
    watched.monitor.dispatcher.dispatch("run_ends")
    assert list_observations(watched, "compilation", CompileTime.PART) == []
