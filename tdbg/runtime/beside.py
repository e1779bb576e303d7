"""Models that are called beside the one that is trained, and what becomes of their gradients."""

import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from tdbg.runtime.identity_keys import IdentityKeys
from tdbg.runtime.unregistered import ValueWatch

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor

MAX_MODULES = 16  # of a step: a program that calls more roots than these is none that trains one beside another
MAX_WATCHED = 4
READ_LATE = Callable[[Tensor, Callable[..., None]], None]


class TrainedParameters:
    """The parameters that some optimizer held, or that were loaded, at one of the looks of the whole run.

    Who trained a model before, or loaded it, may run it further without an optimizer on purpose. Cost: a tenth of a
    microsecond each.
    """

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Tensor]] = {}

    def add(self, parameters: Iterable[Tensor]) -> None:
        """Remember these."""
        known = self._known
        for one in parameters:
            if id(one) not in known or known[id(one)]() is not one:
                known[id(one)] = weakref.ref(one)

    def __contains__(self, parameter: Tensor) -> bool:
        known = self._known.get(id(parameter))
        return known is not None and known() is parameter


_OF_RUNS: "weakref.WeakKeyDictionary[Monitor, TrainedParameters]" = weakref.WeakKeyDictionary()


def trained_parameters_of(monitor: "Monitor") -> TrainedParameters:
    """What is known of a run: it outlasts the probes that look at it now and then."""
    return _OF_RUNS.setdefault(monitor, TrainedParameters())


class ForgottenModule(NamedTuple):
    """A model whose gradients nothing uses."""

    module: nn.Module
    parameters: Sequence[Tensor]
    since: int  # the step in which the gradients were seen first


class ModulesBeside:
    """Which roots were called in training mode with gradients on, and which of them nothing trains."""

    def __init__(self, trained: TrainedParameters) -> None:
        self._trained = trained
        self._called: IdentityKeys[nn.Module, None] = IdentityKeys()
        self._called_before: IdentityKeys[nn.Module, None] = IdentityKeys()
        self._watches: IdentityKeys[nn.Module, ValueWatch] = IdentityKeys()

    def add_call(self, module: nn.Module) -> None:
        """A root is called with gradients on."""
        if module.training and len(self._called) < MAX_MODULES:
            self._called[module] = None

    def end_step(self) -> None:
        """The main optimizer has updated. Another one may update after it, by calls of this step."""
        self._called_before, self._called = self._called, IdentityKeys()

    def find_called(self, held: Collection[int]) -> nn.Module | None:
        """A model called lately all of whose trainable parameters are among the held ones, which are not empty."""
        for module in [*self._called, *self._called_before]:
            trainable = [p for p in module.parameters() if p.requires_grad]
            if trainable and all(id(p) in held for p in trainable):
                return module
        return None

    def follow_forgotten(
        self, of_trained: Collection[int], step: int, least_steps: int, read_late: READ_LATE
    ) -> list[ForgottenModule]:
        """The models beside the trained ones that get gradients, and that nothing has changed for some steps.

        of_trained: ids of the parameters of trained models and of those that optimizers hold.
        """
        found = []
        for module in list(self._called):
            parameters = [p for p in module.parameters() if p.requires_grad]
            graded = [p for p in parameters if p.grad is not None]
            if not graded or any(id(p) in of_trained or p in self._trained for p in parameters):
                self._watches.pop(module, None)
                continue
            watch = self._watches.get(module)
            if watch is None or not watch.is_of(graded):
                if watch is not None or len(self._watches) < MAX_WATCHED:
                    self._watches[module] = ValueWatch(graded, step)
                continue
            watch.compare(graded, step, read_late)
            if not watch.is_changed and watch.compared - watch.step >= least_steps:
                found.append(ForgottenModule(module, graded, watch.step))
        return found
