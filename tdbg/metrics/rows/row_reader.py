"""Stream rows from files: decoded in batches, in bounded memory, past lines that are torn or foreign."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Generic, NamedTuple, TypeVar

import msgspec

from tdbg.core.files import MAX_LINE_BYTES, open_regular
from tdbg.metrics.rows import foreign_rows, row_codec
from tdbg.metrics.rows.attempts import MARK, Attempt, Limits, collect_attempts
from tdbg.metrics.rows.row import MAX_STEP, Row
from tdbg.metrics.rows.row_files import RowsFile

BLOCK = 1 << 17  # bytes read at a time: what is made of them stays in the cache of a core
LONGEST = MAX_LINE_BYTES  # of a line: more is nobody's row


V = TypeVar("V")


class _Fields(msgspec.Struct, Generic[V], gc=False):
    """The fields of `Row`, but for those that are rarely there."""

    step: Annotated[int, msgspec.Meta(ge=-MAX_STEP, le=MAX_STEP)]
    values: dict[str, V]
    t: float = 0.0
    epoch: float | None = None
    phase: str | None = None
    rank: int = 0
    source: str = ""
    text: dict[str, str] | None = None
    units: dict[str, str] | None = None
    left_out: dict[str, int] | None = None


class Line(_Fields[float], gc=False):
    """A row as it is read."""


class _Loose(_Fields[float | str], gc=False):
    """The same with words for numbers that are not finite."""


_strict = msgspec.json.Decoder(Line)
_loose = msgspec.json.Decoder(_Loose)


class Counts:
    """What was read. broken: lines that are torn, or no rows. again: rows that a later attempt made again."""

    rows: int = 0
    broken: int = 0
    again: int = 0


class Batch(NamedTuple):
    """Rows of one rank, in the order of the file."""

    rank: int
    lines: list[Line]


class Reading:
    """Reads files of rows; its counts are whole when a loop over it is over."""

    def __init__(self, files: Sequence[RowsFile]) -> None:
        self.files = files
        self.counts = Counts()

    def iter_batches(self) -> Iterator[Batch]:
        """Rows that count, file by file. Cost: about 1 us a row. Memory: one block."""
        self.counts = Counts()
        every = collect_attempts(self.files)
        for file in self.files:
            ranks = {rank: list(those) for (path, rank), those in every.items() if path == file.path}
            yield from self._of_file(file, ranks)

    def iter_lines(self) -> Iterator[tuple[int, Line]]:
        """Rank and row, one by one."""
        for batch in self.iter_batches():
            for line in batch.lines:
                yield batch.rank, line

    def _of_file(self, file: RowsFile, ranks: Mapping[int, list[Attempt]]) -> Iterator[Batch]:
        if foreign_rows.is_document(file.path):
            found = [_of_row(row) for row in foreign_rows.read_json_rows(file.path)]
            self.counts.rows += len(found)
            yield from (Batch(rank, lines) for rank, lines in split_by_rank(found, file.rank) if lines)
            return
        limits: dict[int, Limits] = {}
        starts = sorted((one.start, rank) for rank, those in ranks.items() for one in those)
        plans = {(one.start, rank): one.limits for rank, those in ranks.items() for one in those}
        for at, part in self._iter_parts(file.path):
            while starts and starts[0][0] <= at:  # this part begins an attempt, or lies behind its beginning
                start = starts.pop(0)
                limits[start[1]] = plans[start]
            found = self._decode_lines(part)
            for rank, lines in split_by_rank(found, file.rank):
                kept = self._drop_repeated(lines, limits.get(rank))
                self.counts.rows += len(kept)
                if kept:
                    yield Batch(rank, kept)

    def _drop_repeated(self, lines: list[Line], limits: Limits | None) -> list[Line]:
        """Those that no later attempt made again."""
        if not limits:
            return lines
        endless = float("inf")
        kept = [line for line in lines if line.step < limits.get(line.source, endless)]
        self.counts.again += len(lines) - len(kept)
        return kept

    def _iter_parts(self, path: Path) -> Iterator[tuple[int, bytes]]:
        """Whole lines between headers, with their place in the file."""
        at, rest = 0, bytearray()
        with open_regular(path) as stream:
            while block := stream.read(BLOCK):
                whole, newline, after = block.rpartition(b"\n")
                if not newline:
                    rest += block
                    if len(rest) > LONGEST:
                        raise_too_long(path)
                    continue
                joined = bytes(rest + whole + newline)
                yield from split_headers(at, joined)
                at += len(joined)
                rest = bytearray(after)
        if rest:  # no end of a line: whole if it says something whole
            yield at, bytes(rest)

    def _decode_lines(self, part: bytes) -> list[Line]:
        try:
            return _strict.decode_lines(part)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass
        try:
            return [_convert_line(row) for row in _loose.decode_lines(part)]
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self._decode_one_by_one(part)

    def _decode_one_by_one(self, part: bytes) -> list[Line]:
        found = []
        for text in part.split(b"\n"):
            if not text.strip():
                continue
            try:
                found.append(_convert_line(_loose.decode(text)))
                continue
            except (msgspec.MsgspecError, ValueError, RecursionError):
                row = row_codec.decode_line(text)
            if isinstance(row, Row):
                found.append(_of_row(row))
            elif row is None:
                self._add_foreign(text, found)
        return found

    def _add_foreign(self, text: bytes, found: list[Line]) -> None:
        """A line that is no row of ours: flat numbers with a step, or nothing that can be used."""
        try:
            row = foreign_rows.row_of(json.loads(text))
        except (ValueError, RecursionError, OverflowError):
            row = None
        if row is None:
            self.counts.broken += 1
        else:
            found.append(_of_row(row))


def raise_too_long(path: Path) -> None:
    """A file that has no lines is none of ours."""
    from tdbg.core.errors import TdbgError

    raise TdbgError(
        f"{path}: a line is longer than {LONGEST >> 20} MiB",
        "name a run, its metrics.jsonl, or a file of JSON lines, each with a step and numbers",
    )


def split_headers(at: int, joined: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines of a block without its headers."""
    begin = 0
    next_header = 0 if joined.startswith(row_codec.HEADER) else joined.find(MARK) + 1 or -1
    while next_header >= 0:
        if next_header > begin:
            yield at + begin, joined[begin:next_header]
        begin = joined.find(b"\n", next_header) + 1
        following = joined.find(MARK, begin - 1)
        next_header = following + 1 if following >= 0 else -1
    if begin < len(joined):
        yield at + begin, joined[begin:]


def split_by_rank(lines: list[Line], rank: int | None) -> Iterator[tuple[int, list[Line]]]:
    """Parted by the ranks that rows name, unless their file is that of one rank."""
    if rank is not None:
        yield rank, lines
        return
    ranks = {line.rank for line in lines}
    if len(ranks) == 1:
        yield ranks.pop(), lines
        return
    for one in sorted(ranks):
        yield one, [line for line in lines if line.rank == one]


def _convert_line(row: _Loose) -> Line:
    """Words as numbers. Raises ValueError for another word."""
    values = row.values
    made = (
        values
        if str not in set(map(type, values.values()))
        else {k: row_codec.parse_number(v) for k, v in values.items()}
    )
    more = (row.t, row.epoch, row.phase, row.rank, row.source, row.text, row.units, row.left_out)
    return Line(row.step, made, *more)  # type: ignore[arg-type]


def _of_row(row: Row) -> Line:
    rare = (row.text or None, row.units or None, row.left_out or None)
    return Line(row.step, row.values, row.t, row.epoch, row.phase, row.rank, row.source, *rare)
