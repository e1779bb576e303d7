"""Models that are separate from the one that is trained, and what becomes of their gradients."""

import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from tdbg.runtime.criteria import is_criterion
from tdbg.runtime.identity_keys import IdentityKeys
from tdbg.runtime.unregistered import ValueWatch

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor

MAX_MODULES = 64  # that are remembered of a step
MAX_WATCHED = 16
ReadLate = Callable[[Tensor, Callable[..., None]], None]


class SeparateHistory:
    """What is known of a run: it outlasts the probes that look at it now and then.

    Parameters that some optimizer held, or that were loaded while the probe was there: a model that was trained or loaded
    earlier may be used without an optimizer on purpose. Cost: a tenth of a microsecond each.
    """

    def __init__(self) -> None:
        self._trained: dict[int, weakref.ref[Tensor]] = {}
        self.reported: IdentityKeys[nn.Module, None] = IdentityKeys()
        self.reported_count = 0
        self.unreached: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # reported: no gradient reaches its model
        self.unreached_count = 0  # with those that are gone

    def add_trained(self, parameters: Iterable[Tensor]) -> None:
        """Remember these as trained or loaded."""
        known = self._trained
        for one in parameters:
            if id(one) not in known or known[id(one)]() is not one:
                known[id(one)] = weakref.ref(one)

    def was_trained(self, parameter: Tensor) -> bool:
        """True if it was held by an optimizer, or loaded."""
        known = self._trained.get(id(parameter))
        return known is not None and known() is parameter


_OF_RUNS: "weakref.WeakKeyDictionary[Monitor, SeparateHistory]" = weakref.WeakKeyDictionary()


def separate_history_of(monitor: "Monitor") -> SeparateHistory:
    """What is known of a run so far."""
    return _OF_RUNS.setdefault(monitor, SeparateHistory())


class ForgottenModule(NamedTuple):
    """A model whose gradients nothing uses."""

    module: nn.Module
    parameters: Sequence[Tensor]
    since: int  # the step in which the gradients were seen first


class SeparateModels:
    """Which roots were called in training mode with gradients enabled, and which of them nothing trains."""

    def __init__(self, history: SeparateHistory) -> None:
        self._history = history
        self._called: IdentityKeys[nn.Module, None] = IdentityKeys()
        self._called_before: IdentityKeys[nn.Module, None] = IdentityKeys()
        self._watches: IdentityKeys[nn.Module, ValueWatch] = IdentityKeys()

    def add_call(self, module: nn.Module) -> None:
        """A root is called with gradients enabled."""
        if module.training and len(self._called) < MAX_MODULES:
            self._called[module] = None

    def end_step(self) -> None:
        """The main optimizer has updated. Another one may update after it, by calls of this step."""
        if self._called or self._called_before:
            self._called_before, self._called = self._called, IdentityKeys()

    def find_called(self, held: Collection[int]) -> nn.Module | None:
        """A model called lately all of whose trainable parameters, and there are some, are among the held ones."""
        for module in [*self._called, *self._called_before]:
            trainable = [p for p in module.parameters() if p.requires_grad]
            if trainable and all(id(p) in held for p in trainable):
                return module
        return None

    def follow_forgotten(
        self,
        roots: Iterable[nn.Module],
        of_trained: Collection[int],
        step: int,
        least_steps: int,
        read_late: ReadLate,
    ) -> list[ForgottenModule]:
        """The models beside the trained ones that get gradients, and that nothing has changed for some steps.

        roots: of these the losses with parameters of their own are added, whose calls are not seen. of_trained: ids of
        the parameters of trained models and of those that optimizers hold. Each model is given once in a run.
        """
        criteria = [root for root in roots if root.training and is_criterion(root, (), {})]
        found = []
        for module in {id(one): one for one in [*self._called, *criteria]}.values():
            if module in self._history.reported:
                continue
            parameters = [p for p in module.parameters() if p.requires_grad]
            graded = [p for p in parameters if p.grad is not None]
            if not graded or any(id(p) in of_trained or self._history.was_trained(p) for p in parameters):
                self._watches.pop(module, None)
                continue
            watch = self._watches.get(module)
            if watch is None or not watch.is_of(parameters):
                if watch is not None or len(self._watches) < MAX_WATCHED:
                    self._watches[module] = ValueWatch(parameters, step)
                continue
            watch.compare(parameters, step, read_late)
            if watch.is_changed or watch.compared - watch.step < least_steps:
                continue
            self._watches.pop(module, None)
            self._history.reported[module] = None
            found.append(ForgottenModule(module, graded, watch.step))
        return found
