"""Pair the datapoints of two captures by key. Standard library alone."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tdbg.core.errors import TdbgError
from tdbg.pages.read.datapoint import Datapoint, Tensor
from tdbg.pages.read.page_set import PageSet

WAITING = 500_000  # datapoints of a side that have not met their partner


class Entry(NamedTuple):
    """A datapoint of a side. name: what its partner has to have too. place: when it was captured; they sort."""

    name: tuple[Any, ...]
    place: tuple[int, ...]
    datapoint: Datapoint

    def select_tensors(self, whole: bool = True) -> dict[str, Tensor]:
        """Its tensors by path. whole: False for what is its own alone: of a row what is split, without the batch."""
        found, row = self.datapoint.tensors, self.datapoint.row
        if whole:
            return dict(found)
        if row is not None:
            return {path: found[path] for path in self.datapoint.split if path in found}
        return {path: tensor.row(0) if tensor.shape[:1] == (1,) else tensor for path, tensor in found.items()}


class CaptureSide:
    """The datapoints of one side of a comparison: all that is at a path, or one epoch or rank of it.

    order: True if the first belongs to the first, and so on, whatever their keys.
    """

    def __init__(
        self, pages: PageSet, *, epoch: int | None = None, rank: int | None = None, order: bool = False
    ) -> None:
        self.pages, self.epoch, self.rank, self.order = pages, epoch, rank, order
        self.count = 0

    def __iter__(self) -> Iterator[Entry]:
        met: Counter[tuple[object, ...]] = Counter()
        order: Counter[int] = Counter()
        for datapoint in self.pages:
            epoch = datapoint.epoch
            if (self.epoch is not None and epoch != self.epoch) or (
                self.rank is not None and datapoint.rank != self.rank
            ):
                continue
            self.count += 1
            order[datapoint.rank] += 1
            place = (-1 if epoch is None else epoch, order[datapoint.rank], datapoint.rank, 0)
            name = self._build_match_key(datapoint, epoch)
            met[name] += 1
            yield Entry((*name, met[name]), place, datapoint)

    def _build_match_key(self, datapoint: Datapoint, epoch: int | None) -> tuple[object, ...]:
        where = (None if self.epoch is not None else epoch, None if self.rank is not None else datapoint.rank)
        if self.order:
            return where
        keys = datapoint.keys
        return (*where, datapoint.phase, str(datapoint.key), None if keys is None else tuple(map(str, keys)))

    def iter_row_entries(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Each row of batches as an entry of its own, named by its key alone; batches may be made up in another way."""
        met: Counter[tuple[object, ...]] = Counter()
        for entry in entries:
            for number, row in enumerate(entry.datapoint.rows()):
                name = (None if self.epoch is not None else entry.place[0], row.phase, str(row.key))
                met[name] += 1
                yield Entry((*name, met[name]), (*entry.place[:-1], number), row)


class DatapointPairs:
    """The entries of two sides that belong together, as soon as both were met.

    only_a, only_b: those without a partner, when all is read. Memory: what waits for its partner, some 1.5 KB each;
    almost nothing where both sides captured in one order. Raises TdbgError where more than `WAITING` of a side wait.
    """

    def __init__(self, a: Iterable[Entry], b: Iterable[Entry]) -> None:
        self._a, self._b = iter(a), iter(b)
        self._waiting: tuple[dict[object, Entry], dict[object, Entry]] = ({}, {})

    def __iter__(self) -> Iterator[tuple[Entry, Entry]]:
        open_a = open_b = True
        while open_a or open_b:
            one, other = next(self._a, None), next(self._b, None)
            open_a, open_b = one is not None, other is not None
            if one is not None and other is not None and one.name == other.name:
                yield one, other
                continue
            if one is not None and (found := self._match_entry(one, 0)):
                yield one, found
            if other is not None and (found := self._match_entry(other, 1)):
                yield found, other

    def _match_entry(self, entry: Entry, side: int) -> Entry | None:
        found = self._waiting[1 - side].pop(entry.name, None)
        if found is None:
            self._waiting[side][entry.name] = entry
            if len(self._waiting[side]) > WAITING:
                raise TdbgError(
                    f"more than {WAITING:,} datapoints of one side have no partner on the other",
                    "compare with --pair-by order, or one epoch or rank at a time",
                )
        return found

    @property
    def only_a(self) -> list[Entry]:
        """What A alone has; once all was read."""
        return list(self._waiting[0].values())

    @property
    def only_b(self) -> list[Entry]:
        """What B alone has; once all was read."""
        return list(self._waiting[1].values())
