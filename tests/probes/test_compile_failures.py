"""What torch.compile gives up in the course of a run: told when it is new, with the count as it is in the end."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_watch, list_observations
from torch import Tensor, nn

from tdbg.core.observations.compilation import CompilerGaveUp


def refuse_graph(graph: object, inputs: object) -> Any:
    raise RuntimeError("planted: no such backend")


def make_function(number: int) -> Any:
    """A function of a line of its own."""
    place: dict[str, Any] = {}
    exec(compile("\n" * number + f"def function_{number}(x): return x + {number}", __file__, "exec"), place)
    return place[f"function_{number}"]


def call_compiled(numbers: range, backend: Any) -> None:
    for number in numbers:
        torch.compile(make_function(number), backend=backend)(torch.ones(2))


def read_counters(watched: Any) -> None:
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    watched.monitor.find_probe("compilation").run_ends()


@pytest.fixture(autouse=True)
def forget_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    with torch._dynamo.config.patch(suppress_errors=True):
        yield


@pytest.mark.parametrize("between", [0, 70])
def test_a_failure_is_told_whatever_was_compiled_before_it(start_watch: Any, tmp_path: Path, between: int) -> None:
    """The compiler remembers 64 compilations."""
    watched = start_watch()
    call_compiled(range(3), refuse_graph)
    read_counters(watched)
    call_compiled(range(100, 100 + between), "eager")
    read_counters(watched)
    call_compiled(range(10, 11), refuse_graph)
    read_counters(watched)
    first, second = list_observations(watched, "compilation", CompilerGaveUp.PART)
    assert len(first.values["failed"]) == 3 and len(second.values["failed"]) == 4
    (finding,) = [one for one in judge_watch(watched, tmp_path) if one.code == "TD-P005"]
    assert "could not compile function_0" in finding.title and "and 3 further functions, rank 0" in finding.title
    assert len(finding.evidence) == 4 and finding.first_step == first.step


def test_what_failed_once_is_told_once(start_watch: Any) -> None:
    watched = start_watch()
    call_compiled(range(2), refuse_graph)
    for _ in range(3):
        read_counters(watched)
        call_compiled(range(200, 205), "eager")
    assert len(list_observations(watched, "compilation", CompilerGaveUp.PART)) == 1


def break_once(x: Tensor) -> Tensor:
    print("one")
    return x + 1


def break_twice(x: Tensor) -> Tensor:
    print("one")
    x = x * 2
    print("two")
    return x + 1


def test_graph_breaks_are_counted_to_the_end(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch()
    for function in (break_once, break_twice):
        torch.compile(function, backend="eager")(torch.ones(2))
        read_counters(watched)
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    (finding,) = [one for one in judge_watch(watched, tmp_path) if one.code == "TD-P006"]
    assert breaks > 1 and finding.title.startswith(f"torch.compile breaks its graph in {breaks} places")
    assert finding.first_step == 1 and "again" not in " ".join(finding.evidence)
