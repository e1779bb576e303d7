"""What one batch holds: shapes, ranges, whether it is finite, equal samples, a fingerprint, the labels."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tdbg.runtime import tensors

SAMPLE = 1024  # elements a tensor for its range
PRINTED = 4096  # elements a tensor for the fingerprint: smaller tensors are printed whole
MAX_TENSORS = 8
FULL_PASS = 16_000_000  # elements; of larger tensors only the sample is checked for NaN and Inf
LABEL_WORDS = ("label", "labels", "target", "targets", "y", "class", "classes")
SIDE_WORDS = ("mask", "weight", "length", "position", "token_type", "pad", "valid", "attention", "segment")
MASKS = (0.0, 1.0)  # what a mask holds all over where nothing is masked: added, or multiplied
MUCH_LARGER = 4  # than all that varies in its batch: a tensor is no companion of it then
MIN_ELEMENTS = 32  # of a batch, and
MIN_DISTINCT = 8  # so many values in it, before equal fingerprints mean anything
MAX_ROWS = 8


@dataclass(slots=True)
class Part:
    """One tensor of a batch. The figures are those of a sample; None where nothing was read (accelerators)."""

    path: str
    tensor: Tensor
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    bad: tensors.Bad | None = None
    constant: bool = False  # every element is the same
    alike: bool = False  # every sample is the same

    @property
    def kind(self) -> str:
        """``float32[8, 3, 32, 32]``, with the device where that is not the host."""
        shape = ", ".join(map(str, self.tensor.shape))
        where = "" if tensors.on_host(self.tensor) else f" on {self.tensor.device}"
        return f"{str(self.tensor.dtype).removeprefix('torch.')}[{shape}]{where}"

    @property
    def last_word(self) -> str:
        """The last part of the path, in lower case."""
        return self.path.rpartition(".")[2].lower()

    def describe(self) -> str:
        """The tensor in a few words, for the log."""
        if self.bad is not None:
            return f"{self.path} {self.kind} {self.bad.count} not finite"
        if self.low is None:
            return f"{self.path} {self.kind}"
        return f"{self.path} {self.kind} {self.low:.4g} to {self.high:.4g}, mean {self.mean:.4g}"


def parts_of(batch: object) -> list[Part]:
    """The first tensors of a batch, not yet looked at."""
    found = []
    for path, tensor in tensors.iter_tensors(batch):
        found.append(Part(path, tensor))
        if len(found) == MAX_TENSORS:
            break
    return found


def is_readable(tensor: Tensor) -> bool:
    """True if values can be read at once: plain numbers on the host."""
    plain = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_complex() or tensor.is_nested)
    return plain and tensors.on_host(tensor) and tensor.numel() > 0


def sample_elements(tensor: Tensor, count: int) -> Tensor:
    """About ``count`` elements, flat and evenly spread, without a copy of the whole."""
    data = tensor.detach().as_subclass(Tensor)
    if data.is_contiguous():
        step = max(math.ceil(data.numel() / count), 1)
        while step > 1 and math.gcd(step, data.shape[-1]) > 1:  # else one column would stand for all
            step += 1
        return data.view(-1)[::step]
    factor = math.ceil(data.numel() / count)
    slices = [slice(None)] * data.dim()
    for dim in sorted(range(data.dim()), key=lambda dim: -data.shape[dim]):
        step = min(data.shape[dim], max(factor, 1))
        slices[dim] = slice(None, None, step)
        factor = math.ceil(factor / step)
    return data[tuple(slices)].reshape(-1)[:count]  # the steps were rounded


def measure_part(part: Part) -> None:
    """Fill in the figures of one tensor on the host. Cost: a sample, one sum, and more only where suspicious."""
    tensor = part.tensor
    if not is_readable(tensor):
        return
    sample = sample_elements(tensor, SAMPLE).to(torch.float64)
    if tensor.is_floating_point():
        part.bad = _find_bad_values(tensor, sample)
        sample = sample[sample.isfinite()]
    if sample.numel() == 0:
        return
    low, high = torch.aminmax(sample)
    part.low, part.high, part.mean = float(low), float(high), float(sample.mean())
    part.constant = tensor.numel() > 1 and part.low == part.high and part.bad is None and _all_equal(tensor)
    part.alike = part.bad is None and _same_samples(tensor)


def _find_bad_values(tensor: Tensor, sample: Tensor) -> tensors.Bad | None:
    if tensor.numel() > FULL_PASS or tensor.element_size() == 1:
        suspicious = not bool(sample.isfinite().all())
    else:
        wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        suspicious = not math.isfinite(float(tensor.detach().sum(dtype=wide)))
    return tensors.find_bad_values(tensor) if suspicious else None


def _to_signed(data: Tensor) -> Tensor:
    """The same numbers in a dtype that can be compared: the wide unsigned ones have few operators."""
    return data.to(torch.int64) if data.dtype in (torch.uint16, torch.uint32, torch.uint64) else data


def _all_equal(tensor: Tensor) -> bool:
    data = tensor.detach()
    if data.element_size() == 1 and data.is_floating_point():
        data = data.to(torch.float32)
    low, high = torch.aminmax(_to_signed(data))
    return bool(low == high)


def _same_samples(tensor: Tensor) -> bool:
    """True if a batch of two samples or more holds one sample over and over."""
    if tensor.dim() < 2 or tensor.shape[0] < 2 or tensor[0].numel() < 2:
        return False
    data = tensor.detach().as_subclass(Tensor)
    first, last = sample_elements(data[0], 256), sample_elements(data[-1], 256)
    if not torch.equal(first, last):
        return False
    return bool((data == data[:1]).all())


def find_bad_rows(tensor: Tensor) -> list[int]:
    """Positions in the batch whose sample is not finite, at most eight. Cost: one pass."""
    if tensor.dim() == 0:
        return []
    good = torch.isfinite(tensor.detach()).reshape(tensor.shape[0], -1).all(dim=1)
    rows: list[int] = (~good).nonzero().flatten()[:MAX_ROWS].tolist()
    return rows


def find_outside_rows(labels: Tensor, width: int) -> list[int]:
    """Positions in the batch of labels below 0 or not below ``width``, at most eight. Cost: one pass."""
    out = ((labels < 0) | (labels >= width)).reshape(labels.shape[0], -1).any(dim=1)
    rows: list[int] = out.nonzero().flatten()[:MAX_ROWS].tolist()
    return rows


def main_input(parts: list[Part]) -> Part | None:
    """The tensor that carries the samples: the largest with floats, else the largest with integers."""
    able = _list_input_candidates(parts)
    floats = [part for part in able if part.tensor.is_floating_point()]
    return max(floats or able, key=lambda part: part.tensor.numel(), default=None)


def constant_input(parts: list[Part]) -> Part | None:
    """The main input, if it is the same in all samples and nothing beside it says that this is meant.

    A mask that masks nothing is constant beside the input that it is for, and so is a grid of coordinates beside the
    values on it. What cannot be read becomes 0 far more often than 1.
    """
    main = main_input(parts)
    if main is None or not (main.constant or main.alike):
        return None
    able = _list_input_candidates(parts)
    varying = [part for part in able if not (part.constant or part.alike)]
    for other in varying:
        comes_after = able.index(main) > able.index(other)
        if main.constant and main.low in MASKS and (main.low == 1.0 or comes_after) and _is_mask_of(main, other):
            return None
        if not _is_last_of_tuple(other, parts) and main.tensor.numel() < MUCH_LARGER * other.tensor.numel():
            return None
    return main


def _list_input_candidates(parts: list[Part]) -> list[Part]:
    """Those that may carry samples."""
    return [p for p in parts if p.tensor.dim() >= 2 and p.low is not None and not _is_side(p)]


def _is_mask_of(mask: Part, other: Part) -> bool:
    """True if a tensor of this shape can be a mask of the other: (B, T), (B, 1, T, T) of (B, T) or (B, T, C)."""
    lengths = set(other.tensor.shape[1:])
    return mask.tensor.shape[0] == other.tensor.shape[0] and set(mask.tensor.shape[1:]) <= {1, *lengths}


def _is_last_of_tuple(part: Part, parts: list[Part]) -> bool:
    """True where targets usually stand."""
    return part is parts[-1] and len(parts) > 1 and part.path.isdigit()


def _is_side(part: Part) -> bool:
    return part.last_word in LABEL_WORDS or any(word in part.last_word for word in SIDE_WORDS)


def find_labels(parts: list[Part]) -> Part | None:
    """The integer tensor that holds the targets: by its name, or last in a tuple of inputs and targets."""
    whole = [p for p in parts if not p.tensor.is_floating_point() and not p.tensor.is_complex()]
    whole = [part for part in whole if part.tensor.dtype != torch.bool and is_readable(part.tensor)]
    named = [part for part in whole if part.last_word in LABEL_WORDS]
    if named:
        return named[0]
    last = whole[-1] if whole and len(parts) > 1 and whole[-1] is parts[-1] else None
    return last if last is not None and last.path.isdigit() and last.path != "0" else None


def label_range(tensor: Tensor) -> tuple[int, int]:
    """Smallest and largest label. Cost: one pass over the labels."""
    low, high = torch.aminmax(_to_signed(tensor.detach()))
    return int(low), int(high)


def width_for(target: Tensor, output: object) -> int | None:
    """The number of classes of a model whose output fits these labels, as cross-entropy would take them.

    target: (N) with an output of (N, C), (N, ...) with (N, C, ...) or (N, ..., C). None where nothing fits.
    """
    for _, found in tensors.iter_tensors(output):
        if found.dim() != target.dim() + 1 or not found.is_floating_point() or found.shape[0] != target.shape[0]:
            continue
        if found.shape[2:] == target.shape[1:]:
            return int(found.shape[1])
        if found.shape[:-1] == target.shape:
            return int(found.shape[-1])
    return None


class Prints:
    """Fingerprints of batches: equal content gives equal ones, whatever the position in memory."""

    def __init__(self) -> None:
        place = torch.arange(1, PRINTED + 1, dtype=torch.float64, device="cpu")
        self._weights = torch.frac(torch.sin(place * 12.9898) * 43758.5453)

    def compute_fingerprint(self, parts: list[Part]) -> tuple[Any, ...] | None:
        """The fingerprint of a batch, None where it cannot be read. Cost: about 10 us a tensor."""
        if not parts or not all(is_readable(part.tensor) for part in parts):
            return None
        found: list[Any] = []
        for part in parts:
            sample = sample_elements(part.tensor, PRINTED).to(torch.float64)
            sample = sample.nan_to_num(nan=0.5, posinf=1e9, neginf=-1e9)
            value = float(sample @ self._weights[: sample.numel()])
            found.append((tuple(part.tensor.shape), value))
        return tuple(found)

    @staticmethod
    def means_something(parts: list[Part]) -> bool:
        """True if two batches with this fingerprint would hardly be equal by chance."""
        elements = sum(part.tensor.numel() for part in parts)
        distinct: set[float] = set()
        for part in parts:
            distinct.update(sample_elements(part.tensor, PRINTED).to(torch.float64).tolist())
        return elements >= MIN_ELEMENTS and len(distinct) >= MIN_DISTINCT
