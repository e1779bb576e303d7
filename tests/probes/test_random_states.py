"""Random states are the same after a second pass, of every device: there is no accelerator here, so one is made up."""

import math
import random
import types
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tdbg.debuggers.gradcam import GradCAM
from tdbg.runtime import random_states
from tdbg.runtime.random_states import device_states, same_random_states, set_device_states

from .conftest import Watch

Start = Callable[..., Watch]
OF_TORCH = ("cuda", "xpu", "mtia", "mps")


class Accelerator:
    """Two devices whose generators are of the host: what torch's own modules for devices offer, and no more."""

    def __init__(self) -> None:
        self.generators = [torch.Generator().manual_seed(seed) for seed in (5, 6)]
        self.initialized = True

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return 2

    def get_rng_state(self, device: int) -> Tensor:
        assert self.initialized, "to ask for its state brings a backend up"
        return self.generators[device].get_state()

    def set_rng_state(self, state: Tensor, device: int) -> None:
        self.generators[device].set_state(state)

    def manual_seed_all(self, seed: int) -> None:
        """Not of these: each test has its own."""

    def _is_in_bad_fork(self) -> bool:
        return False

    def draw_numbers(self) -> list[float]:
        """The next number of each device."""
        return [torch.rand((), generator=generator).item() for generator in self.generators]


@pytest.fixture
def fake_accelerator(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    """A backend from outside of torch."""
    made = Accelerator()
    monkeypatch.setattr(torch, torch._C._get_privateuse1_backend_name(), made, raising=False)
    return made


class Noisy(nn.Module):
    """Draws from every generator there is, and counts its calls."""

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self.accelerator = accelerator
        self.layer = nn.Conv2d(1, 4, 1)
        self.drawn: list[list[float]] = []

    def forward(self, x_BCHW: Tensor) -> Tensor:
        self.drawn.append([*self.accelerator.draw_numbers(), torch.rand(()).item()])
        random.random()
        np.random.rand()
        features: Tensor = self.layer(x_BCHW)
        return features.mean((2, 3)) + sum(self.drawn[-1])


def draw_all(accelerator: Accelerator) -> list[float]:
    """What comes next from each generator."""
    return [*accelerator.draw_numbers(), torch.rand(()).item(), random.random(), float(np.random.rand())]


def seed_all() -> None:
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)


def draw_undisturbed() -> list[float]:
    """What comes next where nothing was drawn."""
    seed_all()
    return draw_all(Accelerator())


@pytest.mark.parametrize("raises", (False, True))
def test_all_generators_go_on_as_if_nothing_had_been_drawn(fake_accelerator: Accelerator, raises: bool) -> None:
    seed_all()
    try:
        with same_random_states():
            draw_all(fake_accelerator)
            if raises:
                raise ArithmeticError
    except ArithmeticError:
        assert raises
    assert draw_all(fake_accelerator) == draw_undisturbed()


@pytest.mark.parametrize("kind", OF_TORCH)
def test_every_backend_of_torch_is_asked_once_it_is_up(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    made, module = Accelerator(), getattr(torch, kind)
    for name in ("device_count", "get_rng_state", "set_rng_state"):
        monkeypatch.setattr(module, name, getattr(made, name))
    monkeypatch.setattr(module, "is_available" if kind == "mps" else "is_initialized", made.is_initialized)
    states = device_states()
    assert list(states) == [(kind, 0), (kind, 1)]
    drawn = made.draw_numbers()
    set_device_states(states)
    assert made.draw_numbers() == drawn


def test_a_backend_that_is_not_in_use_stays_so(monkeypatch: pytest.MonkeyPatch, fake_accelerator: Accelerator) -> None:
    """To bring CUDA up takes seconds and memory, and no process may be forked afterwards."""
    fake_accelerator.initialized = False
    for kind in OF_TORCH[:3]:
        monkeypatch.setattr(getattr(torch, kind), "_lazy_init", lambda: pytest.fail("brought up"))
    with same_random_states():
        assert device_states() == {}


def test_a_backend_without_generators_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = types.SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 1)
    monkeypatch.setattr(torch, torch._C._get_privateuse1_backend_name(), bare, raising=False)
    assert device_states() == {}


def test_one_device_that_fails_keeps_no_other_from_being_put_back(fake_accelerator: Accelerator) -> None:
    states, drawn = device_states(), fake_accelerator.draw_numbers()
    last = list(states)[1]
    with pytest.raises((RuntimeError, TypeError)):
        set_device_states({**states, last: torch.zeros(1)})
    assert fake_accelerator.draw_numbers()[0] == drawn[0]


@pytest.mark.parametrize("watched", (True, False))
def test_a_batch_that_is_run_again_draws_the_same_and_leaves_no_trace(
    start_watch: Start, fake_accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    """Also where the step was not watched, whose call is kept without the states of devices."""
    seen = start_watch()
    model = Noisy(fake_accelerator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seed_all()
    fake_accelerator.generators = Accelerator().generators
    if not watched:
        model(torch.ones(2, 1, 3, 3)).mean().backward()  # the monitor begins to watch at the first call
        optimizer.step()
        monkeypatch.setattr(seen.monitor.plan, "watch", False)
    before = len(model.drawn)
    loss = model(torch.ones(2, 1, 3, 3)).mean() * math.nan
    loss.backward()
    optimizer.step()
    again = model.drawn[before:]
    assert len(again) == 2, "the batch did run a second time"
    assert again[0][2] == again[1][2]
    assert (again[0] == again[1]) is watched
    after = draw_all(fake_accelerator)
    fresh = Accelerator()
    seed_all()
    for _ in range(before + 1):
        draw_all(fresh)
    assert after == draw_all(fresh)


def test_a_pass_of_a_debugger_leaves_no_trace(fake_accelerator: Accelerator) -> None:
    """Where neither the model nor its inputs are on the device that the forward pass draws from."""
    model = Noisy(fake_accelerator).eval()
    seed_all()
    GradCAM("layer")({"inputs": torch.ones(2, 1, 3, 3)}, model)
    assert model.drawn and draw_all(fake_accelerator) == draw_undisturbed()


def test_there_is_one_implementation() -> None:
    from tdbg.debuggers import second_pass
    from tdbg.runtime import rerun

    assert rerun.same_random_states is second_pass.same_random_states is random_states.same_random_states
