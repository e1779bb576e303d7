"""Records one by one, with what their headers say: for what compares, orders or counts them.

The filter itself passes whole runs of bytes and asks for none of this; here a record costs some 3 us.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from tdbg.core.errors import TdbgError
from tdbg.logs.engine import Filter
from tdbg.logs.formats import LAUNCHED, Format, format_of, match_header, normalize_time
from tdbg.logs.log_files import PARTS, Source
from tdbg.logs.query import Matcher, Query

SMALL_BLOCK_BYTES = 1 << 16  # many files are open at once
LONGEST_BYTES = 4 << 20  # what is kept of a longer record for comparing; the filter's own output has all of it


class Record:
    """One record, and what it says of itself.

    time: as text that sorts, empty where there is none; a record without a time has that of the one before it.
    level: as a number, 0 where there is none. names_rank: its own header says the rank. text: its tag and message.
    """

    __slots__ = ("_body", "_json", "data", "level", "names_rank", "rank", "source", "step", "tag", "time")

    def __init__(self, data: bytes, source: Source, form: type[Format], before: bytes) -> None:
        self.data = data
        self.source = source
        self.rank = source.rank
        self.level, self.tag, self._body, self.names_rank = 0, b"", 0, False
        self._json = form.name == "json"
        self.step: int | None = None
        self.time = before
        found = match_header(form, data)
        if found is None:
            return
        form = format_of(found, form)
        self._json &= form.name == "json"
        known = form.header.groupindex
        self._body = found.end()
        self.level = form.level(found) or 0
        if "time" in known and found["time"]:
            self.time = normalize_time(found["time"])
        if "tag" in known and found["tag"]:
            self.tag = found["tag"]
            self._body = found.start("tag")
        named = form.rank(found)
        self.names_rank = named is not None
        if self.rank is None:
            self.rank = named
        self.step = form.step(found)

    @property
    def text(self) -> bytes:
        """Tag and message, without what the header says."""
        if self._json:
            found = _extract_message(self.data)
            if found is not None:
                return found
        launched = LAUNCHED.match(self.data)
        return self.data[max(self._body, launched.end() if launched else 0) :]

    @property
    def title(self) -> str:
        """The first line of the text, short enough for a table."""
        return self.text.strip().partition(b"\n")[0].decode("utf-8", "replace")[:100]


def _extract_message(data: bytes) -> bytes | None:
    from tdbg.core.files import parse_json

    try:
        row = parse_json(data[data.index(b"{") :])
        found = next((row[key] for key in ("message", "msg", "text", "event") if key in row), None)
    except ValueError:
        return None
    return found.encode("utf-8", "backslashreplace") if isinstance(found, str) else None


def parse_seconds(time: bytes) -> float | None:
    """A sortable time in seconds since some beginning; None where it is no date. For differences."""
    from datetime import datetime

    text = time.decode("ascii", "replace")
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text)).timestamp()
    except ValueError:
        pass
    try:  # glog writes no year; 2000 has a 29 February
        return datetime.strptime(f"2000{text}", "%Y%m%dT%H:%M:%S.%f").timestamp()
    except ValueError:
        return None


def split_records(data: bytes, form: type[Format]) -> Iterator[bytes]:
    """The records that a run of bytes consists of."""
    match, at = form.start.match, 0
    while at < len(data):
        end = data.find(b"\n", at) + 1
        while 0 < end < len(data) and not match(data, end):
            end = data.find(b"\n", end) + 1
        yield data[at : end or len(data)]
        at = end or len(data)


def iter_records(log: Sequence[Source], query: Query, form: Callable[[Source], type[Format]]) -> Iterator[Record]:
    """The records of one log, its parts in order, that the query takes.

    form: names the format of a part. Raises TdbgError where a packed file is damaged, after what is before that.
    """
    time = b""
    for source in log:
        kind = form(source)
        for data in _iter_record_bytes(source, query, kind):
            record = Record(data, source, kind, time)
            time = record.time
            yield record


def _iter_record_bytes(source: Source, query: Query, form: type[Format]) -> Iterator[bytes]:
    """Each record's bytes; one that came in pieces is cut, with a mark."""
    from tdbg.logs.parallel import Readable, open_untangled

    matcher = Matcher(query, form, source.rank)
    if not matcher.possible:
        return
    found: list[bytes] = []
    held = b""  # the last record so far: more of it may follow
    with contextlib.closing(open_untangled(source, form)) as stream:
        readable = Readable(stream)
        reader = Filter(matcher, lambda view: found.append(bytes(view)), block_bytes=SMALL_BLOCK_BYTES)
        for _ in _yield_once_more(reader.filter_blocks(readable)):
            for run in found:
                for data in split_records(run, form):
                    if held and not form.start.match(data):
                        if len(held) < LONGEST_BYTES:
                            held = _truncate_record(held + data)
                        continue
                    if held:
                        yield held
                    held = _truncate_record(data)
            found.clear()
    if held:
        yield held
    readable.raise_if_damaged(source.path)


def _yield_once_more(blocks: Iterator[None]) -> Iterator[None]:
    """Once more after the last block: what it held is there by then."""
    yield from blocks
    yield


def _truncate_record(data: bytes) -> bytes:
    if len(data) <= LONGEST_BYTES:
        return data
    return data[:LONGEST_BYTES] + b"\n    [tdbg: cut here; this record is longer than 4 MB]\n"


def logs_of(sources: Sequence[Source]) -> list[list[Source]]:
    """The files by log: the rotated parts of one are one log."""
    return [list(parts) for _, parts in groupby(sources, _build_log_key)]


def _build_log_key(source: Source) -> tuple[str, str]:
    folder, name = os.path.split(source.path)
    found = PARTS.fullmatch(name)
    return folder, found["base"] if found else name


def in_time(record: Record) -> bytes:
    """The record's time, to order it among other logs'; TdbgError where its log writes none."""
    if not record.time:
        raise TdbgError(
            f"{record.source.path} has no timestamps, so its records cannot be merged by time with others",
            "leave out --merge, or have the program log %(asctime)s",
        )
    return record.time
