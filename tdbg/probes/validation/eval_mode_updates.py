"""Updates of a model that is still in eval mode after an evaluation pass, or was in it from the start."""

import weakref
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from tdbg.core.observations.validation import EvalModeUpdates
from tdbg.runtime.identity_keys import IdentityKeys
from tdbg.runtime.root_modules import unwrap_module

LASTING_UPDATES = 3  # in a row
FROM_START_UPDATES = 10
FIRST_STEPS = 3  # an update of these is one of the start
CHECKS = 3  # in a row in which an update had no gradients of a root: it is a teacher, or a frozen part


class LeftInEvalMode:
    """Follows the mode of each root over training calls, evaluation calls and updates.

    trained: the roots that were updated after a call in train mode; they are remembered over the whole run.
    """

    def __init__(self, trained: IdentityKeys[nn.Module, None]) -> None:
        self._trained = trained
        self._evaluated: IdentityKeys[nn.Module, _Stretch] = IdentityKeys()
        self._called: weakref.ref[nn.Module] | None = None  # in train mode with gradients, since the last update
        self._called_in_eval_mode: IdentityKeys[nn.Module, None] = IdentityKeys()  # likewise, each of them
        self._unchanged: IdentityKeys[nn.Module, int] = IdentityKeys()  # updates in a row without gradients of a root
        self._from_start: IdentityKeys[nn.Module, _Stretch] = IdentityKeys()  # never updated in train mode

    def record_call(self, module: nn.Module, *, graded: bool, step: int) -> None:
        """A root is called after so many steps; calls with gradients are not all seen."""
        root = unwrap_module(module)
        if graded and root.training:
            self._called = weakref.ref(root)
            self._evaluated.pop(root, None)
        elif graded:
            self._called_in_eval_mode[root] = None
        elif not root.training and root in self._trained:
            self._evaluated.setdefault(root, _Stretch(step))

    def record_first_updates(self, optimizer: Optimizer, step: int) -> EvalModeUpdates | None:
        """The same for a model that nothing has put into train mode: ten updates from the first steps on."""
        for root in self._called_in_eval_mode:
            if root.training or root in self._trained or self._unchanged.get(root, 0) >= CHECKS:
                self._called_in_eval_mode.pop(root, None)
            elif (found := self._count_first_update(optimizer, root, step)) is not None:
                return found
        return None

    def _count_first_update(self, optimizer: Optimizer, root: nn.Module, step: int) -> EvalModeUpdates | None:
        if root not in self._from_start:
            if step > FIRST_STEPS:
                return None
            self._from_start[root] = _Stretch(0, first=step)
        stretch = self._from_start[root]
        if step == stretch.last or stretch.updates >= FROM_START_UPDATES:
            return None
        if not _has_graded_parameters(optimizer, root):  # another optimizer's, or nobody's: asked again some times
            self._unchanged[root] = self._unchanged.get(root, 0) + 1
            return None
        self._called_in_eval_mode.pop(root, None)
        stretch.last, stretch.updates, self._unchanged[root] = step, stretch.updates + 1, 0
        if stretch.updates < FROM_START_UPDATES:
            return None
        found = _build_observation(root, stretch)
        return _mark_from_start(found) if found is not None and found.dropouts else None

    def record_update(self, optimizer: Optimizer, step: int) -> EvalModeUpdates | None:
        """An optimizer is about to make this step; the observation, once enough of them are in a row."""
        root = self._called() if self._called is not None else None
        self._called = None
        if root is not None and root.training:
            self._trained[root] = None
        for root in self._evaluated:
            stretch = self._evaluated[root]
            if root.training:
                del self._evaluated[root]
            elif step != stretch.last and _has_graded_parameters(optimizer, root):
                stretch.first, stretch.last = stretch.first or step, step
                stretch.updates += 1
                if stretch.updates == LASTING_UPDATES:
                    return _build_observation(root, stretch)
        return None


@dataclass(slots=True)
class _Stretch:
    """Updates of a root since it was evaluated."""

    evaluated: int  # the step after which it was
    first: int = 0
    last: int = 0
    updates: int = 0


def _build_observation(root: nn.Module, stretch: _Stretch) -> EvalModeUpdates | None:
    dropouts, norms = _silenced_layers(root)
    if not dropouts + norms:
        return None
    return EvalModeUpdates(
        root=type(root).__name__,
        since=stretch.first,
        updates=stretch.updates,
        evaluated=stretch.evaluated,
        dropouts=dropouts,
        norms=norms,
    )


def _mark_from_start(found: EvalModeUpdates) -> EvalModeUpdates:
    """The observation as one of a model that was never in train mode."""
    found.from_start = True
    return found


def _has_graded_parameters(optimizer: Optimizer, root: nn.Module) -> bool:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return any(id(p) in held and p.grad is not None for p in root.parameters())


def _silenced_layers(root: nn.Module) -> tuple[int, int]:
    """(dropout layers, batch normalisation layers) that eval mode switches off.

    (0, 0) where a part of the model is in train mode: then somebody has chosen who is in which.
    """
    dropouts = norms = 0
    for layer in root.modules():
        if layer.training:
            return 0, 0
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            dropouts += layer.p > 0
        elif isinstance(layer, nn.modules.batchnorm._BatchNorm):
            norms += bool(layer.track_running_stats)
    return dropouts, norms
