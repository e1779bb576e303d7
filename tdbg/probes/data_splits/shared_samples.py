"""Which samples of an evaluated loader were seen in training: by content, and by the indices of subsets."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tdbg.core.guard import guarded
from tdbg.probes.dataloader import batch_contents
from tdbg.probes.dataloader.batch_contents import Part
from tdbg.probes.dataloader.feeds import CHAIN, find_parent_dataset, get_length, to_parent_indices
from tdbg.runtime.checksums import checksum_rows
from tdbg.runtime.sampling import select_evenly

ELEMENTS = 64  # of a sample
LEAST_ELEMENTS = 8  # of a sample: smaller ones are equal by chance
MAX_SAMPLES = 8192  # remembered of a loader
MAX_ROWS = 256  # of a batch
MAX_INDICES = 200_000  # of a subset; larger ones are compared by content alone
COMPARED_INDICES = 512


@dataclass(slots=True)
class Samples:
    """Checksums of the samples that a loader has given."""

    found: set[int] = field(default_factory=set)
    in_pass: set[int] = field(default_factory=set)
    count: int = 0
    repeats: int = 0  # in one pass

    def begin_pass(self) -> None:
        """A pass over the loader begins, in which no sample should come twice."""
        self.in_pass = set()

    def add_checksums(self, checksums: list[int]) -> None:
        """Samples of one batch."""
        for checksum in checksums:
            if len(self.found) < MAX_SAMPLES:
                self.count += 1
                self.repeats += checksum in self.in_pass
                self.in_pass.add(checksum)
                self.found.add(checksum)

    @property
    def are_distinct(self) -> bool:
        """True if equal checksums mean equal samples: hardly two of a pass are alike."""
        return self.count > 0 and self.repeats <= 0.02 * self.count


def main_samples(parts: list[Part]) -> Tensor | None:
    """The samples of a batch, a row of at most 64 numbers each; None where none can be read, or all are small."""
    able = [part for part in parts if part.tensor.dim() >= 2 and batch_contents.is_readable(part.tensor)]
    floats = [part for part in able if part.tensor.is_floating_point()]
    main = max(floats or able, key=lambda part: part.tensor.numel(), default=None)
    if main is None or not main.tensor.is_contiguous():
        return None
    rows_NE = main.tensor.detach().as_subclass(Tensor).view(main.tensor.shape[0], -1)
    if rows_NE.shape[1] < LEAST_ELEMENTS:
        return None
    stride = max((rows_NE.shape[1] // ELEMENTS - 1) | 1, 1)
    return rows_NE[:MAX_ROWS, ::stride][:, :ELEMENTS]


def checksum_samples(rows_NE: Tensor) -> list[int]:
    """A checksum of each sample, without those that hold one value all over: of an empty image nothing is known."""
    varies_N = (rows_NE != rows_NE[:, :1]).any(dim=1)
    return checksum_rows(rows_NE[varies_N])


def compare_indices(trained: Any, evaluated: Any) -> tuple[int, int] | None:
    """Of two subsets of one dataset: indices of the second that were compared, and those that the first has as well."""
    lengths = get_length(trained), get_length(evaluated)
    if _find_root_dataset(trained) is not _find_root_dataset(evaluated) or None in lengths or (trained is evaluated):
        return None
    if find_parent_dataset(trained) is None and find_parent_dataset(evaluated) is None:
        return None
    if max(length for length in lengths if length is not None) > MAX_INDICES:
        return None
    ours = select_evenly(list(range(lengths[1] or 0)), COMPARED_INDICES)
    with guarded("the program's own class may hold anything as indices"):
        theirs = set(to_parent_indices(trained, list(range(lengths[0] or 0))))
        return len(ours), sum(index in theirs for index in to_parent_indices(evaluated, ours))
    return None


def _find_root_dataset(dataset: Any) -> Any:
    """The dataset that a chain of subsets is taken from."""
    for _ in range(CHAIN):
        parent = find_parent_dataset(dataset)
        if parent is None:
            break
        dataset = parent
    return dataset
