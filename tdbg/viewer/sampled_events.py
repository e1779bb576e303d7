"""A few of the events of a long file, in order: its beginning, its end, and a step record at equal distances between."""

import os
from collections.abc import Iterator
from typing import IO

from tdbg.core import events
from tdbg.core.events import Event, Step
from tdbg.core.files import open_regular
from tdbg.core.rundir import EVENTS, ProcessDir

WHOLE_BYTES = 2 << 20  # a file up to this size is read whole
END_BYTES = 256 << 10  # read of each end of a longer one
SAMPLES = 1_200  # step records between them
READ_BYTES = 16 << 10  # in which a step record is looked for


def read_sampled_events(process: ProcessDir) -> Iterator[Event]:
    """All events of a short file; of a longer one those that a curve needs. Cost: some 30 ms, however long it is.

    Raises OSError.
    """
    path = process.path / EVENTS
    size = path.stat().st_size
    if size <= WHOLE_BYTES:
        yield from process.iter_events()
        return
    with open_regular(path) as file:
        yield from _decode_lines(file.read(END_BYTES).split(b"\n")[:-1])
        distance = (size - 2 * END_BYTES) // SAMPLES
        for number in range(SAMPLES):
            found = _find_step(file, END_BYTES + number * distance)
            if found is not None:
                yield found
        file.seek(size - END_BYTES)
        yield from _decode_lines(file.read(END_BYTES).split(b"\n")[1:])


def _find_step(file: IO[bytes], at: int) -> Event | None:
    """The first whole step record behind an offset, if one is near."""
    data = os.pread(file.fileno(), READ_BYTES, at)
    for line in data.split(b"\n")[1:-1]:
        if b'"step"' in line[:40]:
            event = events.decode(line)
            if isinstance(event, Step):
                return event
    return None


def _decode_lines(lines: list[bytes]) -> Iterator[Event]:
    for line in lines:
        event = events.decode(line)
        if event is not None:
            yield event
