"""Evaluation of one or two calls: too few to be judged alone, and known by what comes again."""

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tdbg.probes.validation.hand_cut_batches import InputSample

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor

ENOUGH = 3  # so many in a row, and they are evaluation


@dataclass(slots=True)
class ShortPasses:
    """Short passes in a row, each of which computed a loss of every call.

    They outlast the probe: at the default level it is there in the first passes alone, and not in between.
    """

    count: int = 0
    trained: InputSample | None = None  # the first batch of training that was seen
    _first: InputSample | None = None  # what the first call of the first pass got
    _refuted: list[Tensor] = field(default_factory=list)  # whether the input of a later one differs

    @property
    def are_enough(self) -> bool:
        """True once they may be judged."""
        return self.count >= ENOUGH

    @property
    def wants_another(self) -> bool:
        """True if one more pass would tell more."""
        return 0 < self.count < ENOUGH

    def add_pass(self, given: InputSample | None) -> None:
        """Another pass is over. given: what its first call got; None for a pass that is no such evaluation."""
        if given is None:
            self.count, self._first = 0, None
        elif self._first is None or not _are_comparable(self._first, given):
            self.count, self._first, self._refuted = 1, given, []
        else:
            self.count += 1
            self._refuted.append((given[1] != self._first[1]).any())

    def count_refutations(self) -> Tensor:
        """How much speaks against evaluation: data that differ from pass to pass, or that are trained on."""
        refuted = list(self._refuted)
        if self._first is not None and self.trained is not None and _are_comparable(self._first, self.trained):
            refuted.append((self._first[1] == self.trained[1]).all())
        return torch.stack(refuted).sum().float().reshape(1)


_OF_MONITOR: "weakref.WeakKeyDictionary[Monitor, ShortPasses]" = weakref.WeakKeyDictionary()


def short_passes_of(monitor: "Monitor", *, anew: bool = False) -> ShortPasses:
    """Those that a process has had so far. anew: forget them."""
    if anew:
        _OF_MONITOR.pop(monitor, None)
    return _OF_MONITOR.setdefault(monitor, ShortPasses())


def _are_comparable(one: InputSample, other: InputSample) -> bool:
    return one[0] == other[0] and one[1].device == other[1].device
