"""Logs as they grow: rotated, cut short, and with new ranks' logs coming.

A record is complete when the next one begins, or when nothing came after it for a moment. A log is known by its inode,
so that a part that rotation renamed is not read twice.
"""

import contextlib
import os
import select
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from tdbg.core.errors import TdbgError
from tdbg.logs.formats import Format, detect_format
from tdbg.logs.log_files import STDIN, Source
from tdbg.logs.query import Matcher, Query
from tdbg.logs.records import split_records

POLL_S = 0.1
LOOK_AROUND_S = 1.0  # for new files
SILENCE_S = 0.2  # after which the last record is taken to be complete
READ_BYTES = 1 << 20
LONGEST_BYTES = 4 << 20  # of a record that has not ended yet; then it passes in pieces


class Tail:
    """One growing file, or stdin."""

    def __init__(self, source: Source, query: Query, known: type[Format] | None) -> None:
        self.source = source
        self._query, self._known = query, known
        self._matcher: Matcher | None = None
        self._fd = -1  # of a pipe, which is read as it comes
        self._stream: Any = None
        if source.pipe:
            self._fd = 0 if source.path == STDIN else os.open(source.path, os.O_RDONLY)
        else:
            self._stream = source.open_stream()
        self._held = b""  # the last record, which may go on
        self._verdict: bool | None = None  # of a record that passes in pieces
        self._last = time.monotonic()
        self._at = 0
        self.ended = False

    def iter_new_records(self) -> Iterator[bytes]:
        """The records that fit and have come since."""
        while data := self._read_chunk():
            self._last = time.monotonic()
            yield from self._split_records(data)
        if self._held and (self.ended or time.monotonic() - self._last > SILENCE_S):
            yield from self._release_held()

    def _read_chunk(self) -> bytes:
        if self.source.pipe:
            if not select.select([self._fd], [], [], 0)[0]:
                return b""
            data = os.read(self._fd, READ_BYTES)
            self.ended = not data
            return data
        if self.source.seekable and os.fstat(self._stream.fileno()).st_size < self._at:
            self._stream.seek(0)  # cut short and written anew
            self._at, self._held = 0, b""
        try:
            data = bytes(self._stream.read(READ_BYTES) or b"")
        except (OSError, EOFError, zlib.error):  # a packed part that is damaged, or not yet whole
            self.ended, data = True, b""
        self._at += len(data)
        return data

    def has_moved(self) -> bool:
        """True once the name belongs to another file; what this one still holds is to be read first."""
        if not self.source.seekable:
            return False
        try:
            there = _get_inode(self.source)
        except OSError:
            return False  # between two renames
        mine = os.fstat(self._stream.fileno())
        return there != (mine.st_dev, mine.st_ino)

    def iter_held_records(self) -> Iterator[bytes]:
        """What is held, at the end."""
        if self._held:
            yield from self._release_held()

    def close(self) -> None:
        """Close the file; stdin is not ours to close."""
        if self._stream is not None:
            self._stream.close()
        elif self._fd > 0:
            os.close(self._fd)

    def _split_records(self, data: bytes) -> Iterator[bytes]:
        held = self._held + data
        if self._matcher is None:
            if b"\n" not in held and len(held) < LONGEST_BYTES:
                self._held = held
                return
            self._matcher = Matcher(self._query, self._known or detect_format(held[:65536] + b"\n"), self.source.rank)
        *whole, self._held = split_records(held, self._matcher.format)
        for record in whole:
            yield from self._filter_record(record, goes_on=False)
        if len(self._held) > LONGEST_BYTES:
            cut = self._held.rfind(b"\n") + 1 or len(self._held)
            piece, self._held = self._held[:cut], self._held[cut:]
            yield from self._filter_record(piece, goes_on=True)

    def _release_held(self) -> Iterator[bytes]:
        """The last record, complete as far as one can see. Half a line waits for its other half."""
        if not self._held.endswith(b"\n") and not self.ended and self.source.seekable:
            return
        held, self._held = self._held, b""
        yield from self._filter_record(held, goes_on=True)

    def _filter_record(self, data: bytes, *, goes_on: bool) -> Iterator[bytes]:
        """The record if it fits; what is no header goes on with the one before, and as that was judged."""
        if self._matcher is None:
            self._matcher = Matcher(self._query, self._known or detect_format(data + b"\n"), self.source.rank)
        if self._verdict is None or self._matcher.format.start.match(data):
            self._verdict = self._matcher.possible and self._matcher.accept(data, 0, len(data))
        if self._verdict:
            yield data
        if not goes_on:
            self._verdict = None


def follow_logs(
    find: Callable[[], list[Source]],
    query: Query,
    known: type[Format] | None,
    emit: Callable[[bytes, Source], None],
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Emit the records that fit, as they come, until ``stop`` says so or stdin ends.

    find: the files there are now; asked again once a second. Errors: what it raises the first time.
    """
    tails = _Tails(query, known)
    tails.refresh_tails(find())
    while True:
        ending = stop()
        if ending or tails.age > LOOK_AROUND_S:
            with contextlib.suppress(TdbgError):  # nothing there in this moment
                tails.refresh_tails(find())
        for tail in tails.list_growing_tails():
            moved = tail.has_moved()  # asked before the last read, so that nothing is left behind
            for data in tail.iter_new_records():
                emit(data, tail.source)
            if moved or tail.ended or ending:
                tail.ended = True
                for data in tail.iter_held_records():
                    emit(data, tail.source)
        if ending or not tails.going_on():
            tails.close()
            return
        time.sleep(POLL_S)


class _Tails:
    """Every file by its inode. One that was renamed stays open, lest its inode comes back as another file's."""

    def __init__(self, query: Query, known: type[Format] | None) -> None:
        self._query, self._known = query, known
        self._tails: dict[tuple[int, int], Tail] = {}
        self._looked = 0.0

    @property
    def age(self) -> float:
        """Seconds since the last look around."""
        return time.monotonic() - self._looked

    def list_growing_tails(self) -> list[Tail]:
        """Those that may grow."""
        return [tail for tail in self._tails.values() if not tail.ended]

    def going_on(self) -> bool:
        """False once there is nothing but ended pipes."""
        return any(not (tail.ended and tail.source.pipe) for tail in self._tails.values())

    def refresh_tails(self, sources: list[Source]) -> None:
        """Open what is new, forget what is gone."""
        self._looked = time.monotonic()
        there = set()
        for source in sources:
            with contextlib.suppress(OSError, TdbgError):  # renamed in this moment: it is found under its new name
                inode = _get_inode(source)
                there.add(inode)
                if inode not in self._tails:
                    self._tails[inode] = Tail(source, self._query, self._known)
        for inode, tail in list(self._tails.items()):
            if tail.ended and inode not in there:
                tail.close()
                del self._tails[inode]

    def close(self) -> None:
        """Close all of them."""
        for tail in self._tails.values():
            tail.close()


def _get_inode(source: Source) -> tuple[int, int]:
    if source.path == STDIN:
        return -1, 0
    found = os.stat(source.path)
    return found.st_dev, found.st_ino
