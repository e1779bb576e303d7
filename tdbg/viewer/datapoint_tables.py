"""Tables of the datapoints of runs, kept while the run's journals stay as they are."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from tdbg.pages.read.page_folder import holds_pages
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.selection.datapoint_table import DatapointTable

MAX_TABLES = 1
MAX_FILES = 100_000  # more are not looked at
FRESH_S = 2.0
MOST_SHARE = 10  # a table of a live run is kept for so many times as long as it took to make

Stamp = tuple[tuple[str, int, int], ...]


@dataclass(slots=True)
class _Kept:
    table: DatapointTable
    stamp: Stamp
    made_t: float
    cost_s: float
    _loading: threading.Lock = field(default_factory=threading.Lock)

    def load_numbers(self, open_pages: Callable[[], PageSet], number: str) -> None:
        """See that the table has the values of a number."""
        with self._loading:
            if not self.table.has_numbers(number):
                with open_pages() as pages:
                    self.table.load_numbers(pages, number)


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
        if number:  # outside of the turn: it may take seconds, and others want the table as it is
            kept.load_numbers(open_pages, number)
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
    """Names, sizes and times of the files of pages of a run; another once one of them has changed. Links are not followed."""
    return tuple(sorted(islice(_iter_files(run), MAX_FILES)))


def _iter_files(run: Path) -> Iterator[tuple[str, int, int]]:
    for folder in (*run.glob("rank*/pages"), *run.glob("rank*/*/pages")):
        if _is_linked(run, folder):
            continue
        for where, _, names in os.walk(folder):
            for name in names:
                if not holds_pages([name]):
                    continue
                path = os.path.join(where, name)
                try:
                    status = os.lstat(path)
                except OSError:  # it was sealed meanwhile
                    continue
                yield path, status.st_size, status.st_mtime_ns


def _is_linked(run: Path, folder: Path) -> bool:
    """True if it, or a folder between it and the run, is a link: it may lead to anywhere."""
    while folder != run:
        if folder.is_symlink():
            return True
        folder = folder.parent
    return False
