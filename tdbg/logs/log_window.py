"""A part of the records that a query takes, and where to go on: at most so many, after looking at so many bytes.

Files are read in units, so that a place in them is three numbers and nothing is kept between two parts. For those who
show records page by page, however long the logs.
"""

import contextlib
from typing import Any, NamedTuple

from tdbg.core.errors import TdbgError
from tdbg.core.files import parse_json
from tdbg.logs.engine import Filter, Stream
from tdbg.logs.formats import Format
from tdbg.logs.log_files import Source
from tdbg.logs.query import Matcher
from tdbg.logs.records import Record, split_records
from tdbg.logs.run_filter import Job, as_json

UNIT_BYTES = 4 << 20
OVERHANG_BYTES = 4 << 20  # that a record may reach beyond its unit; what is longer is cut
SHOWN_BYTES = 64 << 10  # of a record
SEPARATOR = "."


class Place(NamedTuple):
    """Where to go on: which file, which unit of it, how many of its records have been given."""

    file: int = 0
    unit: int = 0
    given: int = 0

    def as_text(self) -> str:
        """``0.12.50``."""
        return SEPARATOR.join(map(str, self))


class LogWindow(NamedTuple):
    """Records as plain data, and the place of the next; None at the end of the last file.

    looked_at, total: bytes of the files up to that place, and of all.
    """

    records: list[dict[str, Any]]
    next: Place | None
    looked_at: int
    total: int


def parse_place(text: str) -> Place:
    """The place that `Place.as_text` wrote; empty: the beginning. Raises TdbgError."""
    words = text.split(SEPARATOR) if text else []
    if any(not (word.isascii() and word.isdigit() and len(word) < 16) for word in words) or len(words) not in (0, 3):
        raise TdbgError(f"there is no place {text[:60]!r} in the logs", "leave it out: the beginning")
    return Place(*map(int, words))


def read_window(job: Job, place: Place, limit: int, max_bytes: int) -> LogWindow:
    """At most ``limit`` records from a place on, of at most ``max_bytes`` of files. Memory: a unit, and the records."""
    sources = job.inspect_sources()
    total = sum(source.size for source in sources)
    records: list[dict[str, Any]] = []
    left = max_bytes
    for number in range(place.file, len(sources)):
        source, form = sources[number], job.resolve_format(sources[number])
        matcher = Matcher(job.query, form, source.rank)
        units = _count_units(source) if matcher.possible else 0
        first = place.unit if number == place.file else 0
        for unit in range(first, units):
            before = sum(one.size for one in sources[:number]) + unit * UNIT_BYTES
            given = place.given if (number, unit) == place[:2] else 0
            if left <= 0 or len(records) >= limit:
                return LogWindow(records, Place(number, unit, given), before, total)
            found = _read_unit(source, form, matcher, unit)
            left -= UNIT_BYTES
            room = limit - len(records)
            records += [_as_row(one, source, form) for one in found[given : given + room]]
            if given + room < len(found):
                return LogWindow(records, Place(number, unit, given + room), before, total)
    return LogWindow(records, None, total, total)


def _count_units(source: Source) -> int:
    """Units of a file; one that cannot be read from the middle is one unit."""
    return max(-(-source.size // UNIT_BYTES), 1) if source.seekable else 1


def _read_unit(source: Source, form: type[Format], matcher: Matcher, unit: int) -> list[bytes]:
    """The records that begin in a unit and that the query takes."""
    begin, end = unit * UNIT_BYTES, (unit + 1) * UNIT_BYTES
    found: list[bytes] = []
    with contextlib.closing(source.open_stream()) as stream:
        if source.seekable:
            stream.seek(max(begin - 1, 0))
            reader = Filter(matcher, lambda view: found.append(bytes(view)), begin=begin, end=end)
            reader.filter_stream(_Bounded(stream, UNIT_BYTES + OVERHANG_BYTES))
        else:
            Filter(matcher, lambda view: found.append(bytes(view))).filter_stream(stream)
    return list(split_records(b"".join(found), form))


class _Bounded:
    """The first so many bytes of a stream: a record without an end is not read to the end of the file."""

    def __init__(self, stream: Stream, left: int) -> None:
        self._stream, self._left = stream, left

    def readinto(self, into: memoryview) -> int:
        """Some of what is left."""
        got = self._stream.readinto(into[: self._left]) or 0
        self._left -= got
        return got


def _as_row(data: bytes, source: Source, form: type[Format]) -> dict[str, Any]:
    if len(data) > SHOWN_BYTES:
        shown = data[:SHOWN_BYTES].decode("utf-8", "backslashreplace")
        return {"text": f"{shown} ... ({len(data) - SHOWN_BYTES:,} more bytes)"}
    try:
        row = parse_json(as_json(Record(data, source, form, b"")))
    except ValueError:  # the last line of a process that was killed, or of somebody else
        row = None
    return row if isinstance(row, dict) else {"text": data.decode("utf-8", "backslashreplace")}
