"""A few of the events of a long file, in order: its beginning, its end, and a step record at equal distances between."""

import os
from collections.abc import Callable, Iterator
from typing import IO

from tdbg.core import events
from tdbg.core.events import Event, Step
from tdbg.core.files import MAX_LINE_BYTES, open_regular
from tdbg.core.rundir import EVENTS, ProcessDir

EVENTS_READ = 8_000  # of all processes together: some 20 us each to draw
END_SHARE = 0.3  # of these, at each end of a file
LEAST_EVENTS = 24  # of a process
EVENT_BYTES = 256  # a step record, about
NORM_BYTES = 8  # the norm of a parameter in it, about
MOST_BYTES = 4 << 10  # of a sample on average: of longer records there are fewer, since decoding takes its time
READ_BYTES = 16 << 10  # in which a step record is looked for
STEP_LINE = b'\n{"type":"step"'


class SampledReader:
    """Reads the events of each of so many processes: all of a short file, of a longer one those that a curve needs.

    Cost: some 100 ms for all of them, however long they are. Raises OSError.
    """

    def __init__(self, processes: int) -> None:
        self._count = max(EVENTS_READ // max(processes, 1), LEAST_EVENTS)
        self._end_bytes = int(self._count * END_SHARE) * EVENT_BYTES
        self._samples = int(self._count * (1 - 2 * END_SHARE))

    def read_events(self, process: ProcessDir) -> Iterator[Event]:
        """The events, in order."""
        path = process.path / EVENTS
        size = path.stat().st_size
        if size <= self._count * EVENT_BYTES:
            yield from process.iter_events()
            return
        with open_regular(path) as file:
            first = file.readline(MAX_LINE_BYTES)  # what began, however long it is
            head = first + file.read(max(self._end_bytes - len(first), 0))
            yield from _decode_lines(head.split(b"\n")[:-1])
            yield from self._iter_samples(file, len(head), size - self._end_bytes)
            file.seek(max(size - self._end_bytes, len(head)))
            yield from _decode_lines(file.read(self._end_bytes).split(b"\n")[1:])

    def _iter_samples(self, file: IO[bytes], begin: int, end: int) -> Iterator[Event]:
        """Step records at equal distances between two offsets, each once."""
        distance = max((end - begin) // self._samples, 1)
        next_at = begin
        for at in range(begin, end, distance):
            if at < next_at:
                continue  # the record that was found last goes beyond, or took the time of several
            event, found_at = find_step_record(file, at)
            next_at = max(found_at, at + _estimate_bytes(event) * (end - begin) // (self._samples * MOST_BYTES))
            if event is not None and found_at < end:
                yield event


def _estimate_bytes(step: Step | None) -> int:
    return NORM_BYTES * len(step.grad_norms or ()) if step is not None else 0


def find_step_record(
    file: IO[bytes], at: int, accepts: Callable[[bytes], bool] = lambda line: True
) -> tuple[Step | None, int]:
    """The first whole step record behind an offset, if one is near, and where it begins; else where to look next.

    accepts: called with a line; others are passed over without being decoded.
    """
    data = os.pread(file.fileno(), READ_BYTES, at)
    if b"\n" not in data:  # amid a line with the norms of thousands of parameters
        at = find_line_end(file, at + len(data))
        data = os.pread(file.fileno(), READ_BYTES, at)
    begin, following = data.find(STEP_LINE), at + READ_BYTES - len(STEP_LINE)
    while begin >= 0:
        end = data.find(b"\n", begin + 1)
        line = data[begin + 1 : end]
        if end < 0:
            end, following = len(data), find_line_end(file, at + len(data))
            line = os.pread(file.fileno(), following - at - begin - 1, at + begin + 1)
        event = events.decode(line) if accepts(line) else None
        if isinstance(event, Step):
            return event, at + begin + 2
        begin = data.find(STEP_LINE, end)
    return None, following


def find_line_end(file: IO[bytes], at: int) -> int:
    """Where the line ends that an offset is in; of one without an end, or too long for one, an offset behind it."""
    for begin in range(at, at + MAX_LINE_BYTES, READ_BYTES):
        data = os.pread(file.fileno(), READ_BYTES, begin)
        end = data.find(b"\n")
        if end >= 0 or len(data) < READ_BYTES or b"\0" in data:  # no line has that: a hole in the file
            return begin + (end if end >= 0 else len(data))
    return at + MAX_LINE_BYTES


def _decode_lines(lines: list[bytes]) -> Iterator[Event]:
    for line in lines:
        event = events.decode(line)
        if event is not None:
            yield event
