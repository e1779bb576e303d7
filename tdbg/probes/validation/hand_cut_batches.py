"""Evaluation on batches that the program cuts itself: told by the losses it computes, as no DataLoader tells it."""

import itertools
import weakref
from collections.abc import Callable, Iterator
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
LOOKS = 8  # backward passes after which a model that began none of them at one of its numbers returns no loss
SCALINGS = ("MulBackward0", "DivBackward0", "MeanBackward0", "SumBackward0", "ToCopyBackward0", "CloneBackward0")
InputSample = tuple[torch.Size, Tensor]
MAX_SCALINGS = 6  # between the number and what backward is called with


class LossRoots:
    """Which models return their loss from calls in training, and where in it: it is one in evaluation, too.

    Other numbers that models return (a part of the loss, a temperature, a value) are made whether a loss is wanted or
    not: a loss is the one at which backward begins.
    """

    def __init__(self, known: IdentityKeys[nn.Module, str | None]) -> None:
        self._known = known
        self._returned: IdentityKeys[nn.Module, list[tuple[str, weakref.ref[Tensor]]]] = IdentityKeys()
        self._looks: IdentityKeys[nn.Module, int] = IdentityKeys()

    def record_call(self, module: nn.Module, output: object) -> None:
        """A root was called in train mode with gradients. Cost: 1 us, once it is known what it returns."""
        root = unwrap_module(module)
        if root not in self._known:
            self._returned[root] = [
                (path, weakref.ref(one)) for path, one in _iter_numbers(output) if one.requires_grad
            ]

    def record_backward(self, losses: object) -> None:
        """Backward begins at these tensors."""
        if not self._returned:
            return
        loss = next(iter(losses), None) if isinstance(losses, list | tuple) and len(losses) == 1 else losses
        returned, self._returned = self._returned, IdentityKeys()
        for root, numbers in returned.items():
            self._looks[root] = self._looks.get(root, 0) + 1
            found = [path for path, one in numbers if type(loss) is Tensor and _comes_from(loss, one())]
            if found or self._looks[root] >= LOOKS:
                self._known[root] = found[0] if found else None

    def find_place(self, module: nn.Module) -> str | None:
        """Where in its output a model returns its loss; None for one that was not seen to return any."""
        return self._known.get(unwrap_module(module))


class HandCutBatches:
    """Losses and inputs of the first calls of a pass, in train mode and without gradients, of a model that trains.

    Rollouts, sampling, targets and recalibration compute no loss. One that torch's functions compute of an output is
    seen where nothing was compiled: they are stood in front of between these calls alone.
    Cost: 50 us a call for the functions, 10 us for the input.
    """

    def __init__(self, loss_place: str | None) -> None:
        self.losses = 0  # calls that a loss was made of
        self._loss_place = loss_place
        self._inputs: list[InputSample | None] = []
        self._is_counted = False  # the loss of the last call
        self._thread = get_ident()
        self._patches = Patches()

    def end_call(self, call: Call, output: object) -> None:
        """A call has returned."""
        self.end_watch()
        if len(self._inputs) >= MAX_CALLS:
            return
        self._inputs.append(sample_first_input(call))
        self._is_counted = False
        if self._loss_place is not None and any(path == self._loss_place for path, _ in _iter_numbers(output)):
            self._count_loss()
        elif not is_anything_compiled():
            for owner, name in iter_targets("loss-computed"):
                self._patches.wrap_attribute(owner, name, self._wrap_loss)

    def end_watch(self) -> None:
        """Put the functions back."""
        if len(self._patches):
            self._patches.restore()

    @property
    def first_input(self) -> "InputSample | None":
        """Shape and some elements of what the first call got; None where that is not known."""
        return self._inputs[0] if self._inputs else None

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


def sample_first_input(call: Call) -> InputSample | None:
    """Shape and some elements of the first tensor that a call was given; None where they are not known."""
    given = next((tensor for _, tensor in tensors.iter_tensors((call.args, call.kwargs))), None)
    return None if given is None or tensors.has_no_data(given) else (tensors.shape_of(given), sample_elements(given))


def _iter_numbers(output: object) -> Iterator[tuple[str, Tensor]]:
    """The tensors without dimensions in what a call returned, with their places."""
    for path, tensor in itertools.islice(tensors.iter_tensors(output), MAX_OUTPUTS):
        if type(tensor) is Tensor and tensor.ndim == 0 and tensor.is_floating_point():
            yield path, tensor


def _comes_from(loss: Tensor, number: Tensor | None) -> bool:
    """True where the loss is this number, or a multiple of it (accumulation, a scaler)."""
    if number is None or number.grad_fn is None:
        return False
    node, place = loss.grad_fn, loss.output_nr
    for _ in range(MAX_SCALINGS):
        if node is None or (node is number.grad_fn and place == number.output_nr):
            return node is not None
        before = [one for one in node.next_functions if one[0] is not None]
        if node.name() not in SCALINGS or len(before) != 1:
            return False
        ((node, place),) = before
    return False
