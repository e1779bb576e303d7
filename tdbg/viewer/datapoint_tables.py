"""Tables of the datapoints of runs, kept while the run's journals stay as they are."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tdbg.pages.read.page_set import PageSet
from tdbg.pages.selection.datapoint_table import DatapointTable

MAX_TABLES = 2
FRESH_S = 2.0
MOST_SHARE = 10  # a table of a live run is kept for so many times as long as it took to make

Stamp = tuple[tuple[str, int, int], ...]


@dataclass(slots=True)
class _Kept:
    table: DatapointTable
    stamp: Stamp
    made_t: float
    cost_s: float


@dataclass(slots=True)
class DatapointTables:
    """The tables of the runs that were asked for last."""

    _turn: threading.Lock = field(default_factory=threading.Lock)
    _kept: dict[str, _Kept] = field(default_factory=dict)

    def get_table(self, run: Path, open_pages: Callable[[], PageSet], number: str = "") -> DatapointTable:
        """The table of a run, with the values of one number. open_pages: what it is made from, if it has to be."""
        with self._turn:
            kept = self._kept.pop(str(run), None)
            stamp = read_stamp(run)
            if kept is None or not _is_fresh(kept, stamp):
                kept = _make_table(open_pages, stamp)
            self._kept[str(run)] = kept
            while len(self._kept) > MAX_TABLES:
                del self._kept[next(iter(self._kept))]
            if number and not kept.table.has_numbers(number):
                with open_pages() as pages:
                    kept.table.load_numbers(pages, number)
            return kept.table


def _make_table(open_pages: Callable[[], PageSet], stamp: Stamp) -> _Kept:
    begun = time.monotonic()
    with open_pages() as pages:
        table = DatapointTable(pages)
    now = time.monotonic()
    return _Kept(table, stamp, now, now - begun)


def _is_fresh(kept: _Kept, stamp: Stamp) -> bool:
    age_s = time.monotonic() - kept.made_t
    return kept.stamp == stamp or age_s < max(FRESH_S, MOST_SHARE * kept.cost_s)


def read_stamp(run: Path) -> Stamp:
    """Names, sizes and times of the files of pages of a run; another once one of them has changed."""
    found = []
    for folder in (*run.glob("rank*/pages"), *run.glob("rank*/*/pages")):
        for where, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(where, name)
                try:
                    status = os.lstat(path)
                except OSError:  # it was sealed meanwhile
                    continue
                found.append((path, status.st_size, status.st_mtime_ns))
    return tuple(sorted(found))
