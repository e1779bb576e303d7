"""Series and curves of runs that go on, kept so that a look at them reads only the rows that were appended since."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tdbg.metrics.rows.growing_rows import GrowingReading, OutdatedError
from tdbg.metrics.rows.row_files import RowsFile
from tdbg.metrics.rows.row_reader import Batch, Counts

MAX_KEPT = 4
MAX_NUMBERS = 2_000_000  # that take as much memory as all of them: some 40 MB
Files = tuple[RowsFile, ...]


class Collector(Protocol):
    """What takes rows and says how many numbers it holds."""

    def add_batch(self, batch: Batch) -> None:
        """Take rows."""

    def count_numbers(self) -> int:
        """How many numbers take as much memory as it does, about."""


@dataclass(slots=True)
class _Kept:
    """A collector with what it has read. numbers: that it holds. lock: held while it is brought up to date and described."""

    reading: GrowingReading
    collector: Any
    numbers: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class GrowingMetrics:
    """The collectors of the questions that were asked last of runs that go on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Files, Hashable], _Kept] = OrderedDict()

    def describe(
        self,
        files: Files,
        question: Hashable,
        make: Callable[[], Collector],
        describe: Callable[[Any, Counts], dict[str, Any]],
    ) -> dict[str, Any] | None:
        """What is known of these files now; None where all of them are to be read anew.

        make: an empty collector for the question. describe: called with the collector and what was read.
        """
        with self._lock:
            kept = self._kept.pop((files, question), None) or _Kept(GrowingReading(files), make())
            self._kept[files, question] = kept  # the last to be given up
        with kept.lock:
            try:
                for batch in kept.reading.iter_batches():
                    kept.collector.add_batch(batch)
            except (OutdatedError, OSError):
                self._give_up(files, question)
                return None
            kept.numbers = kept.collector.count_numbers()
            self._make_room()
            if kept.reading.has_rest:  # a line that is whole but for its end counts too, once nothing follows
                return None
            return describe(kept.collector, kept.reading.counts)

    def _make_room(self) -> None:
        with self._lock:
            while len(self._kept) > MAX_KEPT or sum(one.numbers for one in self._kept.values()) > MAX_NUMBERS:
                self._kept.popitem(last=False)

    def _give_up(self, files: Files, question: Hashable) -> None:
        with self._lock:
            self._kept.pop((files, question), None)

    def __len__(self) -> int:
        return len(self._kept)
