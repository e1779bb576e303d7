"""Evaluation on batches that the program cuts itself: told by the losses it computes, as no DataLoader tells it."""

import itertools
from collections.abc import Callable
from threading import get_ident

import torch
from torch import Tensor, nn

from tdbg.probes.training_loop.window_inputs import sample_elements
from tdbg.runtime import tensors
from tdbg.runtime.identity_keys import IdentityKeys
from tdbg.runtime.patches import Patches
from tdbg.runtime.rerun import Call
from tdbg.runtime.root_modules import unwrap_module
from tdbg.runtime.root_search import is_anything_compiled
from tdbg.runtime.torch_hooks import iter_targets

MAX_CALLS = 8  # of a pass whose losses are counted, and whose inputs are compared
MAX_OUTPUTS = 8  # of a call


class LossRoots:
    """Which models return a loss from their calls in training: what they return in evaluation is one then, too."""

    def __init__(self, known: IdentityKeys[nn.Module, bool]) -> None:
        self._known = known

    def record_call(self, module: nn.Module, output: object) -> None:
        """A root was called in train mode with gradients; the first call tells. Cost: 1 us."""
        root = unwrap_module(module)
        if root not in self._known:
            self._known[root] = returns_loss(output)

    def is_one(self, module: nn.Module) -> bool:
        """True for a model that returned a loss in training."""
        return self._known.get(unwrap_module(module), False)


class HandCutBatches:
    """Losses and inputs of the first calls of a pass, in train mode and without gradients, of a model that trains.

    Rollouts, sampling, targets and recalibration compute no loss. One that torch's functions compute of an output is
    seen where nothing was compiled: they are stood in front of between these calls alone.
    Cost: 50 us a call for the functions, 10 us for the input.
    """

    def __init__(self, returns_loss: bool) -> None:
        self.losses = 0  # calls that a loss was made of
        self._returns_loss = returns_loss
        self._inputs: list[tuple[torch.Size, Tensor] | None] = []
        self._is_counted = False  # the loss of the last call
        self._thread = get_ident()
        self._patches = Patches()

    def end_call(self, call: Call, output: object) -> None:
        """A call has returned."""
        self.end_watch()
        if len(self._inputs) >= MAX_CALLS:
            return
        taken = [tensor for _, tensor in tensors.iter_tensors((call.args, call.kwargs))][:1]
        is_known = bool(taken) and not tensors.has_no_data(taken[0])
        self._inputs.append((tensors.shape_of(taken[0]), sample_elements(taken[0])) if is_known else None)
        self._is_counted = False
        if self._returns_loss and returns_loss(output, graded=False):
            self._count_loss()
        elif not is_anything_compiled():
            for owner, name in iter_targets("loss-computed"):
                self._patches.wrap_attribute(owner, name, self._wrap_loss)

    def end_watch(self) -> None:
        """Put the functions back."""
        if len(self._patches):
            self._patches.restore()

    @property
    def is_each_a_loss(self) -> bool:
        """True if a loss was made of each call; the last one's may be to come."""
        return self.losses >= len(self._inputs) - 1

    def count_equal_inputs(self) -> Tensor | None:
        """How many pairs of calls got the same input, on its device; None where that is not known."""
        found = [one for one in self._inputs if one is not None]
        if len(found) < len(self._inputs) or len({sample.device for _, sample in found}) != 1:
            return None
        alike = [
            (one == two).all()
            for (shape, one), (other, two) in itertools.combinations(found, 2)
            if shape == other and one.shape == two.shape
        ]
        return torch.stack(alike).sum().float().reshape(1) if alike else torch.zeros(1)

    def _count_loss(self) -> None:
        self.losses += not self._is_counted
        self._is_counted = True

    def _wrap_loss(self, original: Callable[..., object]) -> Callable[..., object]:
        def loss(*args: object, **kwargs: object) -> object:
            result = original(*args, **kwargs)
            if type(result) is Tensor and result.ndim == 0 and get_ident() == self._thread:
                self._count_loss()
            return result

        return loss


def returns_loss(output: object, *, graded: bool = True) -> bool:
    """True where a call returned a number on which training can go backward. graded: it must carry a graph."""
    found = itertools.islice(tensors.iter_tensors(output), MAX_OUTPUTS)
    return any(
        tensor.ndim == 0 and tensor.is_floating_point() and (tensor.requires_grad or not graded) for _, tensor in found
    )
