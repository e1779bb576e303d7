"""Keys told apart by identity, whatever their class makes of ``==`` and of a hash."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tdbg.runtime.identity_keys import IdentityKeys


class Odd(nn.Module):
    """As the metrics of torchmetrics: ``==`` makes a module; here both end the program."""

    def __eq__(self, other: object) -> bool:
        raise RecursionError("__eq__ was called")

    def __hash__(self) -> int:
        raise RecursionError("__hash__ was called")


def test_keys_are_held_weakly_and_never_asked() -> None:
    keys: IdentityKeys[Odd, int] = IdentityKeys()
    one, other = Odd(), Odd()
    keys[one], keys[other] = 1, 2
    keys[one] += 10
    assert keys[one] == 11 and one in keys and keys.pop(other) == 2 and other not in keys
    with pytest.raises(KeyError):
        keys[other]
    assert len(keys) == 1 and next(iter(keys)) is one
    del one
    gc.collect()
    assert len(keys) == 0 and list(keys) == []


@pytest.mark.parametrize("level", ["basic", "advanced", "extreme"])
def test_a_model_with_such_a_module_trains(start_watch: Callable[..., Any], level: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.metric = nn.Linear(2, 1), nn.ModuleDict({"a": Measure()})

        def forward(self, x: torch.Tensor) -> Any:
            return self.linear(x)

    class Measure(nn.Module):
        def __eq__(self, other: object) -> Any:
            return Measure()

        def __hash__(self) -> int:
            return 1

    seen = start_watch(level=level)
    seen.monitor.inspection.begin_inspection(1.0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).pow(2).mean().backward()
        optimizer.step()
    assert [record.step for record in seen.train_steps] == [1, 2, 3]
