"""Whether a batch holds as many samples as were fetched for it. Shapes and lengths alone: no value is read."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import accumulate
from operator import mul
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from tdbg.core.guard import guarded
from tdbg.runtime.tensors import PLAIN

LEAST_FETCHED = 4  # samples a batch: shorter tuples of inputs and targets are as long
LEAST_LOOKS = 4  # batches, and
SHARE = 0.75  # this part of them, before a shortfall is no chance
MAX_LOOKS = 64
MAX_ITEMS = 512  # of one batch: what holds more is not judged
MAX_DEPTH = 6


@dataclass(slots=True)
class RowCounts:
    """The batches of one loader, and those of them that hold fewer samples than were fetched."""

    looked: int = 0
    short: int = 0
    fetched: int = 0  # for the short ones
    held: int = 0

    def add_batch(self, fetched: int, held: int | None) -> None:
        """One more batch. held: the rows of one that is short, else None."""
        self.looked += 1
        if held is not None:
            self.short += 1
            self.fetched += fetched
            self.held += held

    @property
    def is_due(self) -> bool:
        """True where most batches are short, after 4, 8, 16, 32 and 64 of them."""
        is_round = self.looked >= LEAST_LOOKS and self.looked.bit_count() == 1
        return is_round and self.short >= SHARE * self.looked


@dataclass(slots=True)
class _Layout:
    """Where the samples of a batch may lie."""

    rows: list[int] = field(default_factory=list)  # leading dimensions,
    lengths: list[int] = field(default_factory=list)  # and lengths of lists and tuples
    shapes: defaultdict[object, list[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(list))
    items: int = 0

    def add_item(self, item: Any, depth: int = 0) -> bool:
        """Take in one part of a batch; False where it is not understood."""
        self.items += 1
        if item is None or isinstance(item, PLAIN):
            return True
        if depth > MAX_DEPTH or self.items > MAX_ITEMS:
            return False
        if isinstance(item, Tensor | PackedSequence) or type(item).__module__ == "numpy":
            self._add_array(item)
            return True
        inner = _list_inner(item)
        if inner is None:
            return False
        if isinstance(item, list | tuple):
            self.lengths.append(len(item))
        return all(self.add_item(one, depth + 1) for one in inner)

    def _add_array(self, item: Any) -> None:
        if isinstance(item, PackedSequence):
            shape: tuple[int, ...] = (int(item.batch_sizes[0]),)
        elif getattr(item, "is_nested", False):
            shape = (int(item.size(0)),)
        else:
            shape = tuple(int(size) for size in item.shape)
        if shape:
            self.rows.append(shape[0])
            self.shapes[getattr(item, "dtype", None), shape[1:]].append(shape)

    def has_samples(self, count: int) -> bool:
        """True if so many samples, or more, may lie in it: one below the other, in another dimension, or in parts."""
        every = [shape for shapes in self.shapes.values() for shape in shapes]
        in_dimension = any(count in shape or count in accumulate(shape, mul) for shape in every)
        in_parts = any(_has_sum(shapes, count) for shapes in self.shapes.values())
        return max([*self.rows, *self.lengths]) >= count or in_dimension or in_parts


def count_rows(batch: object, fetched: int) -> int | None:
    """How many samples a batch holds that has fewer than were fetched for it; None where none is missing, as far as known.

    The samples may lie along any dimension (time first), in several (ways and shots), or in several tensors of one kind
    (support and query). Objects of the program's own are not judged.
    """
    layout, is_known = _Layout(), False
    with guarded("an object of the program's own may raise anything", program_code=True):
        is_known = layout.add_item(batch)
    if not is_known or not layout.shapes or layout.has_samples(fetched):
        return None
    return max(layout.rows or layout.lengths)


def _list_inner(item: Any) -> Iterable[object] | None:
    """What a container holds; None for any other object."""
    if isinstance(item, list | tuple):
        return item
    if isinstance(item, Mapping):
        return list(item.values())
    if is_dataclass(item) and not isinstance(item, type):
        return [getattr(item, one.name, None) for one in fields(item)]
    return None


def _has_sum(shapes: list[tuple[int, ...]], count: int) -> bool:
    """True if some of these tensors have so many rows together."""
    sums = {0}
    for shape in shapes:
        sums |= {one + shape[0] for one in sums if one + shape[0] <= count}
    return count in sums
