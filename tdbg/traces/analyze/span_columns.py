"""The spans of a trace as columns on the disk, with its summary: any range of time is read without the rest.

A file holds runs of spans: `RUN` of them, or fewer, of about the same length, sorted by their start. A run is four
columns: start and end (nanoseconds, int64), name and lane (uint32). Behind the runs are the texts of the names, where each
ends (int64), the summary, an index of all that, and at the very end where the index is. To draw a range one needs the
longest spans in it, so runs of long spans are read first, and short ones only where few long ones are.

Memory of the writer does not depend on the trace: a run of each length is held. Nor does the file grow without end: a
damaged or hostile trace may unpack to a thousand times its size. A reader maps the file.
"""

import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tdbg.core import run_files
from tdbg.core.tables import format_count
from tdbg.core.user_cache import open_own
from tdbg.traces.parse import event_names
from tdbg.traces.parse.event_stream import Event
from tdbg.traces.spans import Span, SpanRange
from tdbg.traces.summary import Summary

VERSION = 1  # another layout, another number
MAGIC = b"tdbgspan"
ENDING = struct.Struct("<qq8s")  # where the index is, its bytes
RUN = 1 << 16  # spans
BANDS = 32  # of lengths: each four times as long as the one before
MOST_NAMES, MOST_LANES = 100_000, 10_000
MOST_SPANS = 1 << 26  # of a file: 1.6 GB
LETTERS = 160  # of a name
MORE = "(more)"
MOST_MS = event_names.FAR / 1e3  # from the start of a trace
MOST_SORTED = 1 << 18  # spans of one length that are looked through for the longest
COLUMNS: tuple[tuple[str, str], ...] = (("start", "<i8"), ("end", "<i8"), ("name", "<u4"), ("lane", "<u4"))
ROW = np.dtype(list(COLUMNS))
# What is drawn, by category, and the letter of its kind.
KINDS = {
    event_names.OPERATOR: "o",
    event_names.ANNOTATION: "s",
    event_names.FRAMES: "f",
    **dict.fromkeys(event_names.KERNELS, "k"),
    **dict.fromkeys(event_names.RUNTIMES, "r"),
    event_names.COPIES: "c",
    event_names.FILLS: "c",
}
DEVICE_KINDS = ("k", "c")
Rows = npt.NDArray[Any]


class Run(msgspec.Struct, array_like=True):
    """Spans of about the same length: where they are, when the first starts, the last starts and ends, the longest."""

    band: int
    count: int
    offset: int
    first: int
    last: int
    latest_end: int
    longest: int


class Directory(msgspec.Struct):
    """What is where in the file. key: of which state of the trace. start, end: of the trace, in ns. Offsets in bytes."""

    key: list[int | str]
    start: int
    end: int
    runs: list[Run]
    lanes: list[str]
    names: tuple[int, int]  # offset and bytes of the texts
    name_ends: tuple[int, int]
    summary: tuple[int, int]


class SpanWriter:
    """Writes a file of spans while the events of a trace pass by."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = run_files.open_new(path)
        os.fchmod(self._file.fileno(), 0o600)
        self._runs: list[Run] = []
        self._held: dict[int, list[Rows]] = {}
        self._names: dict[tuple[str, str], int] = {}
        self._lanes: dict[tuple[int | str, int | str, bool], int] = {}
        self._base_us = self._count = self._left_out = 0
        self._file.write(MAGIC)

    def add_events(self, events: Sequence[Event], base_us: int) -> None:
        """Keep the spans among some events. base_us: what times are counted from, the same for all of them."""
        spans = [one for one in events if one.ph == "X" and one.cat in KINDS]
        room = MOST_SPANS - self._count
        self._left_out += len(spans[room:])
        spans = spans[:room]
        if not spans:
            return
        self._base_us, self._count = max(base_us, 0), self._count + len(spans)
        times, lengths = np.array([one.ts for one in spans]), np.array([one.dur for one in spans])
        good = (times >= 0) & (times < event_names.FAR) & (lengths >= 0) & (lengths < event_names.FAR)
        rows = np.zeros(len(spans), ROW)
        rows["name"] = [self._number_name(one) for one in spans]
        rows["lane"] = [self._number_lane(one) for one in spans]
        rows = rows[good]
        durs = np.rint(lengths[good] * 1000).astype(np.int64)
        rows["start"] = np.rint((times[good] - self._base_us) * 1000)
        rows["end"] = rows["start"] + durs
        bands = np.minimum(np.frexp(durs)[1] // 2, BANDS - 1)
        for band in np.unique(bands).tolist():
            self._hold(band, rows[bands == band])

    def _number_name(self, event: Event) -> int:
        kind, name = KINDS[event.cat], event.name[:LETTERS]
        number = self._names.get((kind, name))
        if number is None:
            name = name if len(self._names) < MOST_NAMES else MORE
            number = self._names.setdefault((kind, name), len(self._names))
        return number

    def _number_lane(self, event: Event) -> int:
        key = _cut_text(event.pid), _cut_text(event.tid), KINDS[event.cat] in DEVICE_KINDS
        if len(self._lanes) >= MOST_LANES and key not in self._lanes:
            key = MORE, MORE, False
        return self._lanes.setdefault(key, len(self._lanes))

    def _hold(self, band: int, rows: Rows) -> None:
        held = self._held.setdefault(band, [])
        held.append(rows)
        if sum(map(len, held)) >= RUN:
            self._write_run(band)

    def _write_run(self, band: int) -> None:
        rows = np.concatenate(self._held.pop(band))
        rows = rows[np.argsort(rows["start"], kind="stable")]
        starts, ends = rows["start"], rows["end"]
        spread = int(starts[0]), int(starts[-1]), int(ends.max()), int((ends - starts).max())
        self._runs.append(Run(band, len(rows), self._file.tell(), *spread))
        for name, _ in COLUMNS:
            self._file.write(rows[name].tobytes())

    def finish(self, summary: Summary, key: Sequence[int | str]) -> None:
        """Write what is left, and close the file. The summary gets a line about spans that were too many."""
        for band in sorted(self._held):
            self._write_run(band)
        if self._left_out:
            summary.problems.append(
                f"the timeline has the first {MOST_SPANS:,} spans: {format_count(self._left_out, 'later one', 'is')} left out"
            )
        texts = [f"{kind}{name}".encode("utf-8", "replace") for kind, name in self._names]
        ends = np.cumsum([0, *map(len, texts)], dtype="<i8")
        lanes = [_name_lane(*one) for one in self._lanes]
        parts = [self._write_part(part) for part in (b"".join(texts), ends.tobytes(), encode_summary(summary))]
        start, end = (one + (summary.base_us - self._base_us) * 1000 for one in (summary.start, summary.end))
        index = Directory(list(key), start, end, self._runs, lanes, *parts)
        offset, size = self._write_part(msgspec.msgpack.encode(index))
        self._file.write(ENDING.pack(offset, size, MAGIC))
        self._file.close()

    def _write_part(self, data: bytes) -> tuple[int, int]:
        offset = self._file.tell()
        self._file.write(data)
        return offset, len(data)

    def close(self) -> None:
        """Close the file, finished or not."""
        self._file.close()


def encode_summary(summary: Summary) -> bytes:
    """A summary as bytes; texts that UTF-8 cannot hold with replacement characters."""
    try:
        return msgspec.msgpack.encode(summary)
    except UnicodeEncodeError:
        from tdbg.core.events import replace_lone_surrogates

        return msgspec.msgpack.encode(replace_lone_surrogates(msgspec.to_builtins(summary)))


def _cut_text(value: int | str) -> int | str:
    return value[:LETTERS] if isinstance(value, str) else value


def _name_lane(pid: int | str, tid: int | str, is_device: bool) -> str:
    if is_device:
        return f"device {pid}, {f'stream {tid}' if isinstance(tid, int) else tid.strip()}"[:LETTERS]
    return f"thread {tid}"[:LETTERS]


class SpanFile:
    """A file that `SpanWriter` made, open for reading. Raises OSError or ValueError for any other file."""

    def __init__(self, path: Path) -> None:
        with open_own(path) as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self._map) < ENDING.size or self._map[: len(MAGIC)] != MAGIC:
            raise ValueError("it is no file of spans")
        offset, size, ending = ENDING.unpack(self._map[-ENDING.size :])
        if ending != MAGIC or not 0 <= offset <= offset + size <= len(self._map):
            raise ValueError("it is no file of spans, or a damaged one")
        self.index = msgspec.msgpack.decode(self._map[offset : offset + size], type=Directory)

    def read_summary(self) -> Summary:
        """The summary of the trace."""
        return msgspec.msgpack.decode(self._read_part(self.index.summary), type=Summary)

    def _read_part(self, part: tuple[int, int]) -> bytes:
        return self._map[part[0] : sum(part)]

    def find_range(self, begin: int, end: int, most: int) -> tuple[Rows, int]:
        """The longest spans of a range, at most so many, by lane and start; and how many others begin in it.

        begin, end: nanoseconds from the base of the file.
        """
        chosen: list[Rows] = []
        room, left_out = most, 0
        by_band: dict[int, list[Run]] = {}
        for run in self.index.runs:
            if run.first < end and run.latest_end >= begin:
                by_band.setdefault(run.band, []).append(run)
        for band in sorted(by_band, reverse=True):
            pieces = [self._find_rows(run, begin, end) for run in by_band[band]]
            count = sum(last - first for _, first, last in pieces)
            if not room or count > MOST_SORTED:
                room = 0  # what is shorter is not shown either
                left_out += sum(self._count_starts(run, begin, end) for run in by_band[band])
                continue
            rows = np.concatenate([self._load_rows(*piece) for piece in pieces])
            rows = rows[(rows["end"] > begin) | (rows["start"] >= begin)]
            rows, lost = _keep_longest(rows, room)
            left_out += int(np.count_nonzero(lost["start"] >= begin))
            room = 0 if len(lost) else room - len(rows)
            chosen.append(rows)
        found = np.concatenate(chosen) if chosen else np.zeros(0, ROW)
        return found[np.lexsort((-found["end"], found["start"], found["lane"]))], left_out

    def _read_column(self, run: Run, name: str) -> Rows:
        before = sum(np.dtype(kind).itemsize for other, kind in COLUMNS[: _place_of(name)])
        return np.frombuffer(self._map, dict(COLUMNS)[name], run.count, run.offset + before * run.count)

    def _find_rows(self, run: Run, begin: int, end: int) -> tuple[Run, int, int]:
        """Which rows of a run may be in a range: first, and last + 1."""
        starts = self._read_column(run, "start")
        first, last = np.searchsorted(starts, [max(begin - run.longest, run.first), end]).tolist()
        return run, first, last

    def _count_starts(self, run: Run, begin: int, end: int) -> int:
        if begin <= run.first and run.last < end:
            return run.count
        first, last = np.searchsorted(self._read_column(run, "start"), [begin, end]).tolist()
        return int(last - first)

    def _load_rows(self, run: Run, first: int, last: int) -> Rows:
        rows = np.zeros(last - first, ROW)
        for name, _ in COLUMNS:
            rows[name] = self._read_column(run, name)[first:last]
        return rows

    def read_names(self, numbers: Iterable[int]) -> list[str]:
        """The names of these numbers, each with the letter of its kind before it."""
        ends = np.frombuffer(self._map, "<i8", self.index.name_ends[1] // 8, self.index.name_ends[0])
        base = self.index.names[0]
        return [
            self._map[base + int(ends[number]) : base + int(ends[number + 1])].decode("utf-8", "replace")
            for number in numbers
        ]


def _place_of(column: str) -> int:
    return [name for name, _ in COLUMNS].index(column)


def _keep_longest(rows: Rows, room: int) -> tuple[Rows, Rows]:
    """The longest rows, as many as there is room for, and the others."""
    if len(rows) <= room:
        return rows, rows[:0]
    order = np.argpartition(rows["start"] - rows["end"], room - 1)
    return rows[order[:room]], rows[order[room:]]


def describe_range(found: SpanFile, begin_ms: float, end_ms: float, most: int) -> SpanRange:
    """The longest spans of a range of the trace, which is told in milliseconds from its start, with how deep each is."""
    start = found.index.start
    begin, end = (round(min(max(ms, -MOST_MS), MOST_MS) * 1e6) + start for ms in (begin_ms, end_ms))
    rows, left_out = found.find_range(begin, max(begin, end), most)
    names, name_of = np.unique(rows["name"], return_inverse=True)
    lanes, lane_of = np.unique(rows["lane"], return_inverse=True)
    columns = (one.tolist() for one in (name_of, lane_of, _find_depths(rows), rows["start"], rows["end"]))
    spans = [
        Span(name, lane, depth, (first - start) / 1e6, (last - first) / 1e6)
        for name, lane, depth, first, last in zip(*columns, strict=True)
    ]
    return SpanRange([found.index.lanes[lane] for lane in lanes], found.read_names(names.tolist()), spans, left_out)


def _find_depths(rows: Rows) -> npt.NDArray[np.int64]:
    """How many others hold each span, of its lane. What holds a span is longer, so it is not left out where the span is not."""
    from tdbg.traces.analyze.span_nesting import find_parents

    depths = np.zeros(len(rows), np.int64)
    edges = [0, *(np.flatnonzero(np.diff(rows["lane"])) + 1).tolist(), len(rows)]
    for first, last in pairwise(edges):
        parents = find_parents(rows["start"][first:last], rows["end"][first:last])
        for at, parent in enumerate(parents.tolist()):
            depths[first + at] = depths[first + parent] + 1 if parent >= 0 else 0
    return depths
