"""Modes that a program puts around its training see its own operations and none of tdbg's."""

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


def train(mode: Any, steps: int, bad_step: int = 0) -> list[str]:
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
def test_a_mode_sees_the_program_alone(watch: Callable[..., Watch], kind: Any, level: str) -> None:
    without = train(kind(), 12)
    running = watch(level=level, flags=EVERY_FLAG if level == "extreme" else {})
    assert train(kind(), 12) == without
    assert running.steps


@pytest.mark.parametrize("kind", [Functions, Operations])
def test_nor_does_it_see_a_batch_that_runs_again(watch: Callable[..., Watch], kind: Any) -> None:
    without = train(kind(), 6, bad_step=4)
    running = watch()
    assert train(kind(), 6, bad_step=4) == without
    assert [(event.step, event.phase) for event in running.bad] == [(4, "input")]


@pytest.mark.parametrize("kind", [Functions, Operations])
def test_nor_a_stretch_that_is_hardly_watched(watch: Callable[..., Watch], kind: Any) -> None:
    without = train(kind(), 300)
    watch(max_overhead=0.5)
    assert train(kind(), 300) == without


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
