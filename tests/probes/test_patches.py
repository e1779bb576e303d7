"""Wrappers of several owners on one function, taken away in any order."""

import warnings
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tdbg.runtime.patches import Patches


class Base:
    def plain_method(self) -> str:
        return "plain"

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__

    @staticmethod
    def static() -> str:
        return "static"


class Child(Base):
    pass


def make_wrapper(name: str) -> Any:
    def wrap_original(original: Any) -> Any:
        def wrapper(*args: Any) -> str:
            return f"{name}({original(*args)})"

        return wrapper

    return wrap_original


@pytest.mark.parametrize("owner", [Base, Child])
@pytest.mark.parametrize("name", ["plain_method", "of_class", "static"])
@pytest.mark.parametrize("order", permutations(range(3)))
def test_nothing_is_left_whatever_the_order(owner: type[Base], name: str, order: tuple[int, ...]) -> None:
    before, plain = dict(vars(owner)), getattr(owner(), name)()
    owners = [Patches() for _ in range(3)]
    for index, patches in enumerate(owners):
        patches.wrap_attribute(owner, name, make_wrapper(str(index)))
    assert getattr(owner(), name)() == f"2(1(0({plain})))"
    for index in order:
        owners[index].restore()
    assert dict(vars(owner)) == before
    assert getattr(owner(), name)() == plain


def test_a_wrapper_of_the_programs_own_stays() -> None:
    ours, again = Patches(), Patches()
    original = Base.plain_method
    ours.wrap_attribute(Base, "plain_method", make_wrapper("ours"))
    below = Base.plain_method
    Base.plain_method = theirs = lambda self: f"theirs({below(self)})"  # type: ignore[method-assign]
    try:
        ours.restore()
        assert Base.plain_method is theirs
        again.wrap_attribute(Base, "plain_method", make_wrapper("again"))
        again.restore()
        assert Base.plain_method is theirs
    finally:
        Base.plain_method = original  # type: ignore[method-assign]


def list_warnings() -> list[tuple[str, int, str]]:
    """Where the warnings come from, as Python says, that a short training causes."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for (x,) in DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=8, pin_memory=True):
            nn.functional.mse_loss(model(x), torch.zeros(8)).backward()
            nn.utils.clip_grad_norm_(iter(()), 1.0)
            optimizer.step()
            schedule.step(3)
        nn.functional.softmax(torch.randn(3, 3))
    return [(warning.filename, warning.lineno, str(warning.message)) for warning in found]


@pytest.mark.parametrize("settings", [{}, {"level": "extreme"}, {"flags": {"LOSS": True}}])
def test_a_warning_names_the_place_that_it_names_without_tdbg(start_watch: Any, settings: dict[str, Any]) -> None:
    """Else a filter of the program's for a module does not fit, and with -W error the program ends."""
    plain = list_warnings()
    assert {"dataloader.py", "test_patches.py"} <= {place.rpartition("/")[2] for place, *_ in plain}
    watched = start_watch(**settings)
    assert list_warnings() == plain and watched.monitor.step == 2
