"""Modes that a program puts around its training see its own operations and none of tdbg's."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .conftest import Watch

EVERY_FLAG = {"GRADIENTS": True, "FORWARD": True, "BACKWARD": True, "OPTIMIZER": True, "DATALOADER": True}


class Functions(TorchFunctionMode):
    """Keeps the name of every function of torch that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    """Keeps the name of every operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def train_in_mode(mode: Any, steps: int, bad_step: int = 0) -> list[str]:
    """What the mode sees of a training."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen: list[str] = mode.seen
    with mode:
        for step in range(1, steps + 1):
            batch = torch.ones(4, 4)
            if step == bad_step:
                batch[0, 0] = float("nan")
            loss: Tensor = model(batch).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return seen


@pytest.mark.parametrize("level", ["basic", "extreme"])
@pytest.mark.parametrize("kind", [Functions, Operations])
def test_a_mode_sees_the_program_alone(start_watch: Callable[..., Watch], kind: Any, level: str) -> None:
    without = train_in_mode(kind(), 12)
    running = start_watch(level=level, flags=EVERY_FLAG if level == "extreme" else {})
    assert train_in_mode(kind(), 12) == without
    assert running.train_steps


@pytest.mark.parametrize("kind", [Functions, Operations])
def test_nor_does_it_see_a_batch_that_runs_again(start_watch: Callable[..., Watch], kind: Any) -> None:
    without = train_in_mode(kind(), 6, bad_step=4)
    running = start_watch()
    assert train_in_mode(kind(), 6, bad_step=4) == without
    assert [(event.step, event.phase) for event in running.bad_values] == [(4, "input")]


@pytest.mark.parametrize("kind", [Functions, Operations])
def test_nor_a_stretch_that_is_hardly_watched(start_watch: Callable[..., Watch], kind: Any) -> None:
    without = train_in_mode(kind(), 300)
    start_watch(max_overhead=0.5)
    assert train_in_mode(kind(), 300) == without


def test_the_default_device_stays() -> None:
    from tdbg.runtime.torch_compat import active_modes

    with torch.device("meta"):
        assert active_modes() is None
        with Functions() as mode:
            aside = active_modes()
            assert aside is not None
            with aside:
                assert torch.ones(1).is_meta
            assert mode.seen == []
            torch.ones(1)
            assert len(mode.seen) == 1


class Saturating(TorchDispatchMode):
    """Emulates a format with a small range: what the program computes depends on the mode."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.relu.default and self.is_small:
            found = torch.where(found > 0, float("inf"), found)
        return found

    is_small = False


def test_a_value_that_the_mode_makes_is_told_with_the_mode(start_watch: Callable[..., Watch]) -> None:
    running = start_watch()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Saturating() as mode:  # type: ignore[no-untyped-call]
        for step in range(1, 7):
            mode.is_small = step == 4
            loss: Tensor = model(torch.ones(4, 4)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    (event,) = running.bad_values
    assert event.step == 4 and "without the program's own modes (Saturating)" in event.note


def test_modes_are_whole_after_an_exception_at_any_point() -> None:
    """Whatever a signal handler raises, and wherever it strikes, the program finds its modes as they were."""
    from tdbg.runtime import torch_compat

    def count_lines(function: Callable[[], None], raise_at: int) -> int:
        lines = 0

        def trace(frame: Any, event: str, arg: object) -> Any:
            nonlocal lines
            if frame.f_code.co_filename != torch_compat.__file__ or frame.f_code.co_name in ("__enter__", "__exit__"):
                return None  # the first line of these two belongs to nobody's `try`
            if event == "line":
                lines += 1
                if lines == raise_at:
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            function()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        return lines

    def work() -> None:
        aside = torch_compat.active_modes()
        assert aside is not None
        with aside:
            torch.ones(1)

    def in_force() -> list[object]:
        found = torch_compat._Modes.in_force()
        return [*found.functions, *found.dispatches]

    with torch.device("cpu"), Functions() as functions, Operations() as operations:
        before = in_force()
        assert functions in before and operations in before
        for raise_at in range(1, count_lines(work, 0) + 1):
            count_lines(work, raise_at)
            assert in_force() == before, raise_at
            assert not torch_compat.modes_set_aside()


def test_a_mode_that_guarded_code_leaves_entered_stays() -> None:
    from tdbg.runtime.torch_compat import _Modes, active_modes

    left = Functions()
    with torch.device("meta"), Functions() as own:
        aside = active_modes()
        assert aside is not None
        with aside:
            left.__enter__()
        now = _Modes.in_force().functions
        assert [type(mode).__name__ for mode in now] == ["DeviceContext", "Functions", "Functions"]
        assert now[1:] == [own, left]
        left.__exit__(None, None, None)


@pytest.mark.parametrize("method", ["__enter__", "__exit__"])
def test_modes_come_back_though_setting_them_aside_or_leaving_failed(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The compiler traces below a mode of its own, and does not go on without it."""
    from tdbg.core.guard import Guard, set_guard_contexts
    from tdbg.runtime import torch_compat

    set_guard_contexts(torch_compat.active_modes, torch_compat.subclasses_aside)
    real = getattr(torch_compat._ModesAside, method)
    failed: list[str] = []

    def fail_once(self: Any, *args: object) -> None:
        if not failed:
            failed.append(method)
            raise RuntimeError(method)
        real(self, *args)

    monkeypatch.setattr(torch_compat._ModesAside, method, fail_once)
    guard = Guard("part", lambda part, error: failed.append(f"{part}: {error}"))
    with Functions() as functions, Operations() as operations:
        guard.call_guarded(torch.ones, 1)
        now = torch_compat._Modes.in_force()
    assert failed == [method, f"part: {method}"]
    assert (functions in now.functions, operations in now.dispatches) == (True, True)
    assert torch_compat.modes_set_aside() == []
