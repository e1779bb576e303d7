"""The page being filled, and how it is sealed. Standard library alone."""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tdbg.core import run_files
from tdbg.pages.format import disk, header
from tdbg.pages.format.file_format import ALIGN, PAGE_NAME, page_name
from tdbg.pages.format.header import Entries, Placed
from tdbg.pages.format.layout import Layout

AHEAD_BYTES = 8_000_000  # of disk, that are asked for at a time


class OpenPage(disk.OwnFile):
    """An open ``.part`` file: room for a header, then datapoints.

    data: where tensors begin. end: where the next datapoint goes. header_bytes: the most its header will take.
    limit_bytes: up to where disk may be asked for ahead of time.
    """

    def __init__(self, path: Path, number: int, data: int, about: Mapping[str, object], limit_bytes: int = 0) -> None:
        """Create the file. Raises FileExistsError if there is one of this name."""
        super().__init__(path)
        self.number = number
        self.data = self.end = data
        self._reserved, self._limit_bytes = data, limit_bytes
        self.placed: list[Placed] = []
        self._about = about
        self._entries: dict[int, Entries] = {}
        self.recorded = False  # the journal knows of it
        self.header_bytes = least_header_bytes(about)

    @classmethod
    def create(
        cls, folder: Path, rank: int, data: int, about: Mapping[str, object], limit_bytes: int = 0
    ) -> "OpenPage":
        """A page of the next number that is free in the folder, whoever else writes there at this moment."""
        number = 1 + max((page for owner, page, _ in pages(folder) if owner == rank), default=-1)
        while True:
            path = folder / page_name(rank, number, sealed=False)
            try:
                made = cls(path, number, data, about, limit_bytes)
            except FileExistsError:
                number += 1
                continue
            # Whoever had this number before us has sealed it by now: a .part and its sealed page are never both there.
            if not path.with_suffix(".safetensors").exists():
                return made
            made.discard()
            number += 1

    def bound_header_growth(self, entries: Entries, layout: Layout, body: bytes) -> int:
        """The most bytes that one more datapoint adds to the header."""
        return header.bound_header_growth(entries, body) + (0 if layout.id in self._entries else entries.layout_bytes)

    def write_datapoint(self, pieces: Sequence[memoryview], length: int, *, durable: bool = False) -> None:
        """The ``length`` bytes of one datapoint, at ``end``. Raises OSError; the next try takes the same place."""
        self.check_ownership()
        if self.end + length > self._reserved:
            self._reserve_ahead(length)
        try:
            disk.write_at(self._fd, pieces, self.end)
        except OSError:
            self.give_back()  # with what half a datapoint took of a full disk
            raise
        if durable:
            disk.sync(self._fd)

    def _reserve_ahead(self, length: int) -> None:
        """Ask for disk ahead of time, for a datapoint of so many bytes and some more; once refused, never again."""
        start = max(self.end, self._reserved)
        stop = min(start + max(length, AHEAD_BYTES), self._limit_bytes)
        if stop >= self.end + length:
            self._reserved = stop
            if not disk.reserve_blocks(self._fd, start, stop - start):
                self._limit_bytes = 0

    def give_back(self) -> bool:
        """Give back the disk that was asked for and not written; False if there was none. None is asked for again."""
        had, self._limit_bytes, self._reserved = self._limit_bytes > 0, 0, 0
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, max(self.end, self.data))
        return had

    def record_placed(self, placed: Placed, entries: Entries) -> None:
        """Count a datapoint that is written, before its record is: its place is never given to another."""
        self.end = placed.base + placed.layout.length
        self.header_bytes += self.bound_header_growth(entries, placed.layout, placed.body)
        self._entries[placed.layout.id] = entries
        self.placed.append(placed)

    def withdraw_last(self) -> None:
        """The record of the last datapoint could not be written: it does not count, and its place stays empty."""
        self.placed.pop()

    def seal(self, *, durable: bool = False) -> int:
        """Write the header and give the file its final name; returns its size. It is closed then, whatever happens.

        Raises OSError; the page stays a ``.part``, which the journal describes.
        """
        try:
            self.check_ownership()
            start = header.build_header(self.placed, self._entries, self._about, self.data, self.end)
            finish_page(self._fd, self.path, start, self.end, durable=durable)
        finally:
            self.close()
        return self.end

    def discard(self) -> None:
        """Take the file away: it holds nothing that counts."""
        if self.is_ours():
            self.path.unlink(missing_ok=True)
        self.close()


def finish_page(fd: int, path: Path, start: bytes, size: int, *, durable: bool) -> None:
    """Make a safetensors file of a ``.part``: its header, its size, its name. Raises OSError."""
    os.ftruncate(fd, size)  # first: what was asked for behind the end may be the last there is of the disk
    disk.write_at(fd, [memoryview(start)], 0)
    if durable:
        disk.sync(fd)
    run_files.rename_file(path, path.with_suffix(".safetensors"))
    if durable:
        disk.sync_folder(path.parent)


def least_header_bytes(about: Mapping[str, object]) -> int:
    """The header of a page that holds nothing, with room for its alignment."""
    return header.LENGTH_BYTES + len(header.build_header([], {}, about, 1 << 40, 1 << 40)) + ALIGN


def pages(folder: Path) -> Iterable[tuple[int, int, str]]:
    """(rank, number, "part" or "safetensors") of each page in a folder."""
    for name in os.listdir(folder):
        found = PAGE_NAME.fullmatch(name)
        if found:
            yield int(found[1]), int(found[2]), found[3]
