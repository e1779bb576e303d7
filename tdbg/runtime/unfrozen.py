"""Parameters that were frozen earlier in the run and are no longer: somebody means to train them."""

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor


class FrozenParameters:
    """Parameters that were frozen at one of the looks, over the whole run. Cost: a tenth of a microsecond each."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Tensor]] = {}
        self.reported: list[weakref.ref[Tensor]] = []  # those that were told of as held by no optimizer

    def add_frozen(self, parameters: Iterable[Tensor]) -> None:
        """Remember those of them that are frozen now."""
        known = self._known
        for one in parameters:
            if not one.requires_grad and (id(one) not in known or known[id(one)]() is not one):
                known[id(one)] = weakref.ref(one)

    def list_unfrozen(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Those that want a gradient now, and were frozen before."""
        known = self._known
        return [one for one in parameters if one.requires_grad and id(one) in known and known[id(one)]() is one]


_OF_RUNS: "weakref.WeakKeyDictionary[Monitor, FrozenParameters]" = weakref.WeakKeyDictionary()


def frozen_parameters_of(monitor: "Monitor") -> FrozenParameters:
    """What is known of a run: it outlasts the probes that look at it now and then."""
    return _OF_RUNS.setdefault(monitor, FrozenParameters())
