"""Tensor subclasses of the program's own see its operations in ``__torch_function__``, and none of tdbg's."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tdbg.core.flags import FLAGS
from tdbg.core.guard import Guard
from tests.e2e.conftest import build_environment

from .conftest import Watch

FLAGGED = {flag.name: True for flag in FLAGS if flag.leaf not in ("PROFILER", "AUTOGRAD_ANOMALY")}
MAX_RUNS = 3  # second runs of a batch: for the module, without what is bad in the input, for the operation
KINDS = ("input", "parameter", "buffer", "output", "loss", "rate")


class Counted(Tensor):
    """Keeps the name of every function of torch that it is given to; raises at the first that was not expected."""

    seen: ClassVar[list[str]] = []
    expected: ClassVar[list[str] | None] = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if cls.expected is not None and cls.expected[len(cls.seen) : len(cls.seen) + 1] != [name]:
            raise ZeroDivisionError(f"the program does not call {name} here")
        cls.seen.append(name)
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)
        if kind == "parameter":
            self.first.weight = nn.Parameter(torch.randn(8, 4).as_subclass(Counted))
        scale = torch.ones(8)
        self.register_buffer("scale", scale.as_subclass(Counted) if kind == "buffer" else scale)

    def forward(self, x_NF: Tensor) -> Tensor:
        y: Tensor = self.last(self.first(x_NF).relu() * self.scale)
        return y.as_subclass(Counted) if self.kind == "output" else y


def train_subclass(kind: str, steps: int = 12, bad_step: int = 0) -> list[str]:
    """What the subclass sees of a training in which one thing is of its kind."""
    Counted.seen.clear()
    torch.manual_seed(0)
    net = Net(kind)
    rate = torch.tensor(0.05)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate.as_subclass(Counted) if kind == "rate" else rate)
    for step in range(1, steps + 1):
        x_NF = torch.randn(6, 4)
        if step == bad_step:
            x_NF[0, 0] = float("nan")
        loss: Tensor = net(x_NF.as_subclass(Counted) if kind == "input" else x_NF).pow(2).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss.as_subclass(Counted) if kind == "loss" else loss)
        total = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        total.item()
        optimizer.step()
        if step % 6 == 0:
            with torch.no_grad():
                net(x_NF.as_subclass(Counted) if kind == "input" else x_NF)
    return list(Counted.seen)


@pytest.fixture(params=[False, True], ids=["counts", "raises"])
def train_watched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """`train_subclass` under a watch; the subclass counts, or raises at what the program does not call."""

    def run_kind(kind: str, without: list[str], **more: int) -> list[str]:
        monkeypatch.setattr(Counted, "expected", without if request.param else None)
        return train_subclass(kind, **more)

    return run_kind


@pytest.mark.parametrize("level", ["basic", "advanced", "extreme"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_subclass_sees_the_program_alone(
    start_watch: Callable[..., Watch], train_watched: Callable[..., list[str]], kind: str, level: str
) -> None:
    without = train_subclass(kind)
    running = start_watch(level=level, max_overhead=100.0, flags=FLAGGED if level == "extreme" else {})
    assert train_watched(kind, without) == without and without
    assert len(running.train_steps) >= 8


@pytest.mark.parametrize("kind", KINDS)
def test_nor_a_stretch_that_is_hardly_watched(
    start_watch: Callable[..., Watch], train_watched: Callable[..., list[str]], kind: str
) -> None:
    without = train_subclass(kind, steps=300)
    start_watch(max_overhead=0.5)
    assert train_watched(kind, without, steps=300) == without


@pytest.mark.parametrize("kind", ["input", "parameter", "buffer"])
def test_a_batch_that_runs_again_is_the_program(start_watch: Callable[..., Watch], kind: str) -> None:
    """The second run of the model has its subclasses in force, and what looks at the tensors of that run has not."""
    without = train_subclass(kind, steps=5, bad_step=4)
    running = start_watch()
    again = train_subclass(kind, steps=5, bad_step=4)
    assert [(event.step, event.phase) for event in running.bad_values] == [(4, "input")]
    assert {*again} == {*without}, "no function that the program does not call itself"
    assert len(without) < len(again) <= len(without) + MAX_RUNS * len(without) // 5


def test_below_a_guard_and_back_again(start_watch: Callable[..., Watch]) -> None:
    from tdbg.runtime.torch_compat import with_subclass

    start_watch()
    Counted.seen.clear()
    x = torch.ones(2).as_subclass(Counted)

    def own_work() -> Any:
        x.sum()
        before = len(Counted.seen)
        with with_subclass():
            x.sum()
        return before, len(Counted.seen), Guard("inner").call_guarded(lambda: (x.sum(), len(Counted.seen))[1])

    assert Guard("outer").call_guarded(own_work) == (0, 1, 1)
    x.sum()
    assert len(Counted.seen) == 2

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    with Mode():
        before = len(Counted.seen)
        assert Guard("outer").call_guarded(lambda: (x.sum(), len(Counted.seen))[1]) == before
        x.sum()
        assert len(Counted.seen) > before


PROGRAM = """
import sys, torch
from tests.probes.test_subclasses_of_the_program import Counted, train_subclass
for kind in sys.argv[1:]:
    print(kind, len(train_subclass(kind)))
"""


@pytest.mark.parametrize("how", [["run", "--capture", "**:output,grad"], ["profile"]], ids=["capture", "profile"])
def test_with_capture_and_profile(tmp_path: Path, how: list[str]) -> None:
    program = [sys.executable, "-c", PROGRAM, *KINDS]
    env = build_environment({"PYTHONPATH": str(Path(__file__).parents[2])})
    without = subprocess.run(program, env=env, capture_output=True, text=True, timeout=120, check=True)
    words = [sys.executable, "-m", "tdbg", how[0], "--run-dir", str(tmp_path / "run"), *how[1:], "--", *program]
    watched = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=True)
    assert watched.stdout == without.stdout and len(without.stdout.splitlines()) == len(KINDS)
