"""Range, mean and deviation of the float inputs of batches. Numbers only: no tensor is kept."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from tdbg.core.observations.data_splits import InputRow
from tdbg.probes.dataloader import batch_contents
from tdbg.probes.dataloader.batch_contents import LABEL_WORDS, SIDE_WORDS, Part
from tdbg.probes.forward import round_number
from tdbg.runtime import tensors

SAMPLE = 1024  # elements of a batch
MAX_INPUTS = 4
MIN_ROW = 4  # elements a sample: fewer are a time, a weight, a noise level
MIN_DISTINCT = 3  # values: two are a mask or a flag


@dataclass(slots=True)
class Figures:
    """One input over all batches looked at."""

    dtype: str
    looks: int = 0
    low: float = math.inf
    high: float = -math.inf
    least_mean: float = math.inf
    most_mean: float = -math.inf
    least_std: float = math.inf
    most_std: float = -math.inf

    def add_batch(self, low: float, high: float, mean: float, std: float) -> None:
        """One more batch."""
        self.looks += 1
        self.low, self.high = min(low, self.low), max(high, self.high)
        self.least_mean, self.most_mean = min(mean, self.least_mean), max(mean, self.most_mean)
        self.least_std, self.most_std = min(std, self.least_std), max(std, self.most_std)

    def build_row(self, name: str) -> InputRow:
        """As an observation carries it."""
        return InputRow(
            name=name,
            dtype=self.dtype,
            looks=self.looks,
            low=round_number(self.low),
            high=round_number(self.high),
            least_mean=round_number(self.least_mean),
            most_mean=round_number(self.most_mean),
            least_std=round_number(self.least_std),
            most_std=round_number(self.most_std),
        )


def inputs_of(parts: list[Part]) -> list[Part]:
    """The tensors of a batch that may be a float input: no labels, masks, weights, nor what stands last in a tuple."""
    return [part for part in parts if _is_input(part, parts)][:MAX_INPUTS]


def _is_input(part: Part, parts: list[Part]) -> bool:
    tensor = part.tensor
    if not tensor.is_floating_point() or tensor.dim() < 2 or tensor.layout != torch.strided or tensor.is_quantized:
        return False
    if part.last_word in LABEL_WORDS or any(word in part.last_word for word in SIDE_WORDS):
        return False
    is_target = len(parts) > 1 and part is parts[-1] and part.path.isdigit()
    return not is_target and tensor.numel() >= MIN_ROW * tensor.shape[0] > 0


def sample_input(tensor: Tensor) -> Tensor | None:
    """A part of the elements of a float tensor on the host; None where they say nothing of its scale."""
    if not batch_contents.is_readable(tensor):
        return None
    sample = batch_contents.sample_elements(tensor, SAMPLE).to(torch.float64)
    sample = sample[sample.isfinite()]
    return sample if torch.unique(sample).numel() >= MIN_DISTINCT else None


def measure_sample(sample: Tensor) -> Tensor:
    """Least and greatest element, mean and deviation; on the tensor's own device."""
    return torch.stack([sample.amin(), sample.amax(), sample.mean(), sample.std(correction=0)])


def find_given(inputs: Iterable[Tensor], numel: int) -> Tensor | None:
    """The float tensor of so many elements among what a model is called with: reshaped, moved or cast, but whole."""
    for tensor in inputs:
        if tensor.is_floating_point() and not tensors.has_no_data(tensor) and tensor.numel() == numel:
            return tensor if tensor.layout == torch.strided and not tensors.is_sharded(tensor) else None
    return None
