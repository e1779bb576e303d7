"""Filtering files side by side: worker processes take units in turn and write in order, so that any number of them
gives the same bytes.

A worker keeps what it found until it is its turn, at most `HELD_BYTES`; then it waits for the turn. The turn is one byte
in a ring of pipes. A worker that dies breaks the ring, and the whole fails instead of leaving something out.
"""

import contextlib
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tdbg.core.errors import TdbgError
from tdbg.logs.engine import Filter, Workspace
from tdbg.logs.formats import Format, detect_format
from tdbg.logs.log_files import NotPacked, Source, total_bytes
from tdbg.logs.query import Matcher, Query
from tdbg.logs.untangle import Untangled, is_tangled

UNIT_BYTES = 8 << 20
SMALL_BYTES = 64 << 20  # below that one process is faster than several
HELD_BYTES = 8 << 20
PACKED = 8  # so much smaller are packed logs, about
SNIFF_BYTES = 1 << 16
MAX_PIECES = 512  # of one writev
MAX_JOBS = 16
PIPE_CLOSED, RING_BROKEN, FAILED = 32, 33, 34  # exit codes of workers


class Unit(NamedTuple):
    """A part of a file: the records that start in it. more: another file follows."""

    source: Source
    format: type[Format]
    begin: int = 0
    end: int | None = None
    more: bool = False


class Output:
    """Writes to a file descriptor, in pieces; ``wait`` is called once, before the first byte."""

    def __init__(self, handle: int, wait: Callable[[], None] | None = None) -> None:
        self._handle = handle
        self._wait = wait
        self._held: list[bytes | memoryview] = []
        self._size = 0
        self._last = b"\n"

    def end_line(self) -> None:
        """End the last line, so that what follows from another file is one of its own."""
        if self._last != b"\n":
            self.emit(memoryview(b"\n"))

    def emit(self, view: memoryview) -> None:
        """Take over some bytes; the buffer behind them may change afterwards."""
        self._held.append(view if view.readonly else bytes(view))
        self._size += len(view)
        self._last = view[-1:].tobytes() or self._last
        if self._size >= HELD_BYTES or (self._wait is None and self._size >= SNIFF_BYTES):
            self.flush()

    def flush(self) -> None:
        """Write what is held, once it is this writer's turn."""
        if self._wait is not None:
            self._wait()
            self._wait = None
        while self._held:
            pieces, self._held = self._held[:MAX_PIECES], self._held[MAX_PIECES:]
            _write_all(self._handle, pieces)
        self._size = 0


def _write_all(handle: int, pieces: list[bytes | memoryview]) -> None:
    done = os.writev(handle, pieces)
    left = sum(map(len, pieces)) - done
    if left:  # a pipe took a part
        rest = memoryview(b"".join(pieces))[done:]
        while rest:
            rest = rest[os.write(handle, rest) :]


def units_of(
    sources: Sequence[Source], known: type[Format] | None = None, *, as_it_is: bool = False, whole: bool = False
) -> list[Unit]:
    """The parts of all files, in order.

    known: the format, where somebody named it. as_it_is: mixed lines of several ranks stay mixed.
    whole: a file is one part, since where a record begins depends on what is before it.
    """
    units = []
    for source, found in (look_at(source, known) for source in sources):
        source = source._replace(tangled=source.tangled and not as_it_is)
        if whole or not source.seekable or source.size <= UNIT_BYTES:
            units.append(Unit(source, found))
            continue
        starts = range(0, source.size, UNIT_BYTES)
        units += [Unit(source, found, at, at + UNIT_BYTES if at + UNIT_BYTES < source.size else None) for at in starts]
    return [unit._replace(more=unit.source.path != units[-1].source.path) for unit in units]


def look_at(source: Source, known: type[Format] | None = None) -> tuple[Source, type[Format]]:
    """How a file is written, from its beginning; and whether the lines of several ranks are mixed in it."""
    with contextlib.closing(source.open_stream()) as stream:
        try:
            sample = stream.read(SNIFF_BYTES) or b""
        except (OSError, EOFError, zlib.error):
            sample = b""
    return source._replace(tangled=source.rank is None and is_tangled(sample)), known or detect_format(sample)


def open_untangled(source: Source, form: type[Format]) -> Any:
    """The bytes of a file, each record's lines together."""
    stream = source.open_stream()
    return Untangled(stream, form) if source.tangled else stream


class Readable:
    """A packed stream up to where it is damaged: that counts as its end, and is told afterwards."""

    def __init__(self, stream: Any) -> None:
        self._read = stream.readinto
        self.error: Exception | None = None

    def readinto(self, into: memoryview) -> int | None:
        """As the stream's own."""
        try:
            found: int | None = self._read(into)
        except (EOFError, zlib.error, OSError) as error:
            self.error = error
            return 0
        return found

    def raise_if_damaged(self, path: str) -> None:
        """TdbgError if it was damaged."""
        if isinstance(self.error, NotPacked):
            raise TdbgError(f"{path} {self.error}", "copy the file again, or rename it if it is plain text")
        if self.error is not None:
            what = "cannot be read" if isinstance(self.error, OSError) else "is damaged"
            hint = "the part before the damage was filtered; the rest is lost"
            raise TdbgError(f"{path} {what}: {self.error}", hint)


def run_unit(unit: Unit, query: Query, output: Output, *, each: bool = False, space: Workspace | None = None) -> int:
    """Filter one unit; returns how many records counted. each, space: see `Filter`."""
    matcher = Matcher(query, unit.format, unit.source.rank)
    if not matcher.possible:
        return 0
    with contextlib.closing(open_untangled(unit.source, matcher.format)) as stream:
        if unit.begin:
            stream.seek(unit.begin - 1)
        readable = Readable(stream)
        found = Filter(matcher, output.emit, begin=unit.begin, end=unit.end, each=each, space=space)
        taken = found.filter_stream(readable)
        shorter = unit.end is None and unit.source.seekable and os.fstat(stream.fileno()).st_size < unit.source.size
    if unit.more:
        output.end_line()
    if readable.error is not None or shorter:
        output.flush()
    readable.raise_if_damaged(unit.source.path)
    if shorter:
        raise TdbgError(f"{unit.source.path} became shorter while it was read", "run it again: lines may be missing")
    return taken


def filter_files(
    sources: Sequence[Source],
    query: Query,
    handle: int,
    jobs: int,
    known: type[Format] | None = None,
    *,
    each: bool = False,
) -> int:
    """Filter all files into a file descriptor; returns how many records counted (exactly so with ``each``)."""
    by_context = query.spelled is not None or query.spelled_out is not None
    units = units_of(sources, known, as_it_is=query.everything, whole=by_context)
    jobs = min(jobs, len(units), MAX_JOBS)
    alone = jobs <= 1 or _plain_bytes(sources) < SMALL_BYTES or any(unit.source.pipe for unit in units)
    if not alone:
        return _Ring(units, query, handle, jobs, each=each).run_workers()
    output = Output(handle)
    taken, troubles = _run_units(units, query, output, each=each, space=Workspace())
    output.flush()
    for error in troubles[:-1]:
        _report_error(error)
    if troubles:
        raise troubles[-1]
    return taken


def _run_units(
    units: Iterable[Unit], query: Query, output: Output, *, each: bool, space: Workspace
) -> tuple[int, list[TdbgError]]:
    """How many records counted, and what could not be read: that keeps nobody from reading the rest."""
    taken, troubles = 0, []
    for unit in units:
        try:
            taken += run_unit(unit, query, output, each=each, space=space)
        except TdbgError as error:
            troubles.append(error)
    return taken, troubles


def _report_error(error: Exception) -> None:
    os.write(2, f"tdbg: {error}\n".encode("utf-8", "backslashreplace"))


def _plain_bytes(sources: Sequence[Source]) -> int:
    """How much text there is to look through, about."""
    return total_bytes(sources) + (PACKED - 1) * total_bytes(source for source in sources if source.packed)


class _Ring:
    """Workers in a ring: unit k belongs to worker k modulo their number, and is written k-th."""

    def __init__(self, units: Sequence[Unit], query: Query, handle: int, jobs: int, *, each: bool) -> None:
        self.units, self.query, self.handle, self.jobs, self.each = units, query, handle, jobs, each
        self.parent = os.getpid()

    def run_workers(self) -> int:
        turns = [os.pipe() for _ in range(self.jobs)]
        counts = os.pipe()
        os.write(turns[0][1], b"t")
        sys.stdout.flush()
        sys.stderr.flush()
        pids = []
        for number in range(self.jobs):
            pid = os.fork()
            if pid == 0:
                self._run_worker(number, turns, counts)
            pids.append(pid)
        for ends in turns:
            for end in ends:
                os.close(end)
        os.close(counts[1])
        return self._collect_results(pids, counts[0])

    def _run_worker(self, number: int, turns: list[tuple[int, int]], counts: tuple[int, int]) -> None:
        """The whole life of a worker; never returns."""
        code = FAILED
        try:
            mine, following = turns[number][0], turns[(number + 1) % self.jobs][1]
            for ends in turns:
                for end in ends:
                    if end not in (mine, following):
                        os.close(end)
            taken, failed, space = 0, False, Workspace()
            for place in range(number, len(self.units), self.jobs):
                if os.getppid() != self.parent:
                    return  # nobody waits for this any more
                output = Output(self.handle, lambda: _wait_for_turn(mine))
                found, troubles = _run_units([self.units[place]], self.query, output, each=self.each, space=space)
                output.flush()
                taken, failed = taken + found, failed or bool(troubles)
                for error in troubles:
                    _report_error(error)
                if place + 1 < len(self.units):
                    _pass_on(following)
            os.write(counts[1], taken.to_bytes(8, "little"))
            code = FAILED if failed else 0
        except BrokenPipeError:
            code = PIPE_CLOSED
        except _RingBroken:
            code = RING_BROKEN
        except Exception as error:  # guard: what went wrong is told; a worker has no other way
            _report_error(error)
        finally:
            os._exit(code)

    def _collect_results(self, pids: list[int], counts: int) -> int:
        with os.fdopen(counts, "rb") as file:
            found = file.read()
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        if min(codes) < 0:
            what = f"a filter worker process was killed by signal {-min(codes)}"
            raise TdbgError(what, "the output is incomplete; if memory ran out, use --jobs 1")
        if PIPE_CLOSED in codes:
            raise BrokenPipeError
        if any(codes):
            raise TdbgError("not all logs could be read", "the output is incomplete, for the reasons above")
        return sum(int.from_bytes(found[at : at + 8], "little") for at in range(0, len(found), 8))


class _RingBroken(Exception):
    """The worker before or behind this one is gone."""


def _pass_on(turn: int) -> None:
    try:
        os.write(turn, b"t")
    except BrokenPipeError:  # not that of the output
        raise _RingBroken from None


def _wait_for_turn(turn: int) -> None:
    if not os.read(turn, 1):
        raise _RingBroken
