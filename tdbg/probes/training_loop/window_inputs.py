"""What models were called with between two updates: tells batches apart where no DataLoader hands them out."""

import itertools

import torch
from torch import Tensor

from tdbg.runtime import tensors
from tdbg.runtime.rerun import Call

ELEMENTS = 16  # of each tensor, spread over it: two batches that agree in all of them count as one
MAX_TENSORS = 4  # of a call
MAX_PASSES = 16  # of a window


class WindowInputs:
    """Samples of the inputs of each backward pass since the last update.

    Inputs that require a gradient are no batch of their own (attacks, gradient penalties): nothing is said of a window
    that has some. Neither is it where a model is called without a tensor.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """An update has been made: the next window begins."""
        self._shapes: list[torch.Size] = []
        self._calls: list[Tensor] = []
        self._passes: list[tuple[list[torch.Size], Tensor]] = []
        self._is_known = True

    def add_call(self, call: Call) -> None:
        """A root module was called with gradients. Cost: some 10 us a tensor, of which no more than a few are read."""
        found = [tensor for _, tensor in tensors.iter_tensors((call.args, call.kwargs))][:MAX_TENSORS]
        if not found or any(tensor.requires_grad or tensors.has_no_data(tensor) for tensor in found):
            self._is_known = False
        elif len(self._passes) < MAX_PASSES:
            self._shapes += map(tensors.shape_of, found)
            self._calls += map(sample_elements, found)

    def end_pass(self) -> None:
        """A backward pass is over: what was called since the one before belongs to it."""
        if self._calls and len({sample.device for sample in self._calls}) == 1:
            self._passes.append((self._shapes, torch.cat(self._calls)))
        else:
            self._is_known = False
        self._shapes, self._calls = [], []

    def count_equal_pairs(self, passes: int) -> Tensor | None:
        """How many pairs of so many passes had the same inputs, on their device; None where that is not known."""
        if not self._is_known or not 1 < len(self._passes) == passes:
            return None
        pairs = itertools.combinations(self._passes, 2)
        alike = [
            (one == two).all()
            for (shapes, one), (others, two) in pairs
            if shapes == others and one.shape == two.shape and one.device == two.device
        ]
        return torch.stack(alike).sum().float().reshape(1) if alike else torch.zeros(1)


def sample_elements(tensor: Tensor) -> Tensor:
    """Some elements, spread over the tensor, as float64: they tell one batch from another."""
    flat = tensors.local_elements(tensor.detach()).flatten()
    return flat[:: max(flat.numel() // ELEMENTS, 1)][:ELEMENTS].double()
