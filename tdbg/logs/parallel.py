"""Filtering files side by side: worker processes take units in turn and write in order, so that any number of them
gives the same bytes.

A worker keeps what it found until it is its turn, at most `HELD_BYTES`; then it waits for the turn. The turn is one byte
in a ring of pipes. A worker that dies breaks the ring, and the whole fails instead of leaving something out.
"""

import contextlib
import os
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tdbg.errors import TdbgError
from tdbg.logs.engine import Filter
from tdbg.logs.formats import Format, sniff
from tdbg.logs.query import Matcher, Query
from tdbg.logs.sources import Source, total_bytes

UNIT_BYTES = 8 << 20
SMALL_BYTES = 64 << 20  # below that one process is faster than several
HELD_BYTES = 8 << 20
SNIFF_BYTES = 1 << 16
MAX_PIECES = 512  # of one writev
MAX_JOBS = 16
PIPE_CLOSED, RING_BROKEN, FAILED = 32, 33, 34  # exit codes of workers


class Unit(NamedTuple):
    """A part of a file: the records that start in it."""

    source: Source
    format: type[Format]
    begin: int = 0
    end: int | None = None


class Output:
    """Writes to a file descriptor, in pieces; ``wait`` is called once, before the first byte."""

    def __init__(self, handle: int, wait: Callable[[], None] | None = None) -> None:
        self._handle = handle
        self._wait = wait
        self._held: list[bytes | memoryview] = []
        self._size = 0

    def emit(self, view: memoryview) -> None:
        """Take over some bytes; the buffer behind them may change afterwards."""
        self._held.append(view if view.readonly else bytes(view))
        self._size += len(view)
        if self._size >= HELD_BYTES or (self._wait is None and self._size >= SNIFF_BYTES):
            self.flush()

    def flush(self) -> None:
        """Write what is held, once it is this writer's turn."""
        if self._wait is not None:
            self._wait()
            self._wait = None
        while self._held:
            pieces, self._held = self._held[:MAX_PIECES], self._held[MAX_PIECES:]
            _write(self._handle, pieces)
        self._size = 0


def _write(handle: int, pieces: list[bytes | memoryview]) -> None:
    done = os.writev(handle, pieces)
    left = sum(map(len, pieces)) - done
    if left:  # a pipe took a part
        rest = memoryview(b"".join(pieces))[done:]
        while rest:
            rest = rest[os.write(handle, rest) :]


def units_of(sources: Sequence[Source], known: type[Format] | None = None) -> list[Unit]:
    """The parts of all files, in order. known: the format, where somebody named it."""
    units = []
    for source in sources:
        found = known or sniffed(source)
        if not source.seekable or source.size <= UNIT_BYTES:
            units.append(Unit(source, found))
            continue
        starts = range(0, source.size, UNIT_BYTES)
        units += [Unit(source, found, at, at + UNIT_BYTES if at + UNIT_BYTES < source.size else None) for at in starts]
    return units


def sniffed(source: Source) -> type[Format]:
    with contextlib.closing(source.open()) as stream:
        try:
            return sniff(stream.read(SNIFF_BYTES) or b"")
        except (OSError, EOFError, zlib.error):
            return sniff(b"")


class Readable:
    """A packed stream up to where it is damaged: that counts as its end, and is told afterwards."""

    def __init__(self, stream: Any) -> None:
        self._read = stream.readinto
        self.error: Exception | None = None

    def readinto(self, into: memoryview) -> int | None:
        """As the stream's own."""
        try:
            found: int | None = self._read(into)
        except (EOFError, zlib.error) as error:
            self.error = error
            return 0
        return found

    def complain(self, path: str) -> None:
        """TdbgError if it was damaged."""
        if self.error is not None:
            what = f"{path} is damaged: {self.error}"
            raise TdbgError(what, "what could be read before the damage was filtered; what follows is lost")


def run_unit(unit: Unit, query: Query, output: Output, *, each: bool = False) -> int:
    """Filter one unit; returns how many records counted. each: see `Filter`."""
    matcher = Matcher(query, unit.format, unit.source.rank)
    if not matcher.possible:
        return 0
    with contextlib.closing(unit.source.open()) as stream:
        if unit.begin:
            stream.seek(unit.begin - 1)
        readable = Readable(stream)
        taken = Filter(matcher, output.emit, begin=unit.begin, end=unit.end, each=each).run(readable)
    if readable.error is not None:
        output.flush()
    readable.complain(unit.source.path)
    return taken


def run(
    sources: Sequence[Source],
    query: Query,
    handle: int,
    jobs: int,
    known: type[Format] | None = None,
    *,
    each: bool = False,
) -> int:
    """Filter all files into a file descriptor; returns how many records counted (exactly so with ``each``)."""
    units = units_of(sources, known)
    jobs = min(jobs, len(units), MAX_JOBS)
    alone = jobs <= 1 or total_bytes(sources) < SMALL_BYTES or any(unit.source.path == "-" for unit in units)
    if not alone:
        return _Ring(units, query, handle, jobs, each=each).run()
    output = Output(handle)
    taken = sum(run_unit(unit, query, output, each=each) for unit in units)
    output.flush()
    return taken


class _Ring:
    """Workers in a ring: unit k belongs to worker k modulo their number, and is written k-th."""

    def __init__(self, units: Sequence[Unit], query: Query, handle: int, jobs: int, *, each: bool) -> None:
        self.units, self.query, self.handle, self.jobs, self.each = units, query, handle, jobs, each

    def run(self) -> int:
        turns = [os.pipe() for _ in range(self.jobs)]
        counts = os.pipe()
        os.write(turns[0][1], b"t")
        sys.stdout.flush()
        sys.stderr.flush()
        pids = []
        for number in range(self.jobs):
            pid = os.fork()
            if pid == 0:
                self._work(number, turns, counts)
            pids.append(pid)
        for ends in turns:
            for end in ends:
                os.close(end)
        os.close(counts[1])
        return self._gather(pids, counts[0])

    def _work(self, number: int, turns: list[tuple[int, int]], counts: tuple[int, int]) -> None:
        """The whole life of a worker; never returns."""
        code = FAILED
        try:
            mine, following = turns[number][0], turns[(number + 1) % self.jobs][1]
            for ends in turns:
                for end in ends:
                    if end not in (mine, following):
                        os.close(end)
            taken = 0
            for place in range(number, len(self.units), self.jobs):
                output = Output(self.handle, lambda: _await(mine))
                taken += run_unit(self.units[place], self.query, output, each=self.each)
                output.flush()
                if place + 1 < len(self.units):
                    os.write(following, b"t")
            os.write(counts[1], struct.pack("<q", taken))
            code = 0
        except BrokenPipeError:
            code = PIPE_CLOSED
        except _RingBroken:
            code = RING_BROKEN
        except TdbgError as error:
            os.write(2, f"tdbg: {error}\n".encode())
        finally:
            os._exit(code)

    def _gather(self, pids: list[int], counts: int) -> int:
        with os.fdopen(counts, "rb") as file:
            found = file.read()
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        if PIPE_CLOSED in codes:
            raise BrokenPipeError
        if any(codes):
            raise TdbgError("a worker of the filter failed", "what it printed is incomplete; --jobs 1 may tell more")
        return int(sum(value for (value,) in struct.iter_unpack("<q", found)))


class _RingBroken(Exception):
    """The worker before this one is gone."""


def _await(turn: int) -> None:
    if not os.read(turn, 1):
        raise _RingBroken
