"""The rows that still count after a run was resumed: those that a later attempt repeated are skipped.

Each process that appends begins with a header. What it made again begins one step behind the checkpoint that the header
names, or with the first row of each source in this attempt.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tdbg.core.files import MAX_LINE_BYTES, is_all_zeros, open_regular, skip_hole
from tdbg.metrics.rows import row_codec
from tdbg.metrics.rows.row import Header
from tdbg.metrics.rows.row_files import RowsFile

BLOCK = 1 << 20
MARK = b"\n" + row_codec.HEADER


class _Light(msgspec.Struct, gc=False):
    step: int
    source: str = ""
    rank: int = 0


Limits = dict[str, int]  # source -> rows of this step and later do not count


class Attempt:
    """A part of a file: from its header up to the next of the same rank. limits: what of it counts."""

    def __init__(self, file: RowsFile, start: int, header: Header) -> None:
        self.file, self.start, self.header = file, start, header
        self.limits: Limits = {}


def collect_attempts(files: Sequence[RowsFile]) -> dict[tuple[Path, int], list[Attempt]]:
    """The attempts of each file and rank in the order of the file. Cost: a look at every byte, about 0.3 s a GB."""
    by_rank: dict[int, list[Attempt]] = {}
    found: dict[tuple[Path, int], list[Attempt]] = {}
    for file in files:
        for start, header in _iter_headers(file):
            one = Attempt(file, start, header)
            by_rank.setdefault(header.rank, []).append(one)
            found.setdefault((file.path, header.rank), []).append(one)
    for rank, those in by_rank.items():
        _assign_limits(rank, those)
    return found


def _iter_headers(file: RowsFile) -> Iterator[tuple[int, Header]]:
    """Where headers stand, and what they say; a file without one at its beginning has one that says nothing."""
    starts = [] if _begins_with_header(file.path) else [-1]
    for start in [*starts, *_iter_header_offsets(file.path)]:
        header = _header_at(file.path, start) if start >= 0 else Header()
        if header is not None:
            if file.rank is not None:
                header.rank = file.rank
            yield max(start, 0), header


def _begins_with_header(path: Path) -> bool:
    with open_regular(path) as stream:
        return stream.read(len(row_codec.HEADER)) == row_codec.HEADER


def _iter_header_offsets(path: Path) -> Iterator[int]:
    """Where lines begin that look like headers."""
    with open_regular(path) as stream:
        begin, before = -1, b"\n"
        while block := stream.read(BLOCK):
            if is_all_zeros(block):
                skip_hole(stream)
                begin, before = stream.tell() - 1, b"\0"
                continue
            joined = before + block
            at = joined.find(MARK)
            while at >= 0:
                yield begin + at + 1
                at = joined.find(MARK, at + 1)
            keep = min(len(MARK) - 1, len(joined))
            begin += len(joined) - keep
            before = joined[-keep:]


def _header_at(path: Path, start: int) -> Header | None:
    with open_regular(path) as stream:
        stream.seek(start)
        line = stream.readline(BLOCK)
    found = row_codec.decode_line(line) if line.endswith(b"\n") else None
    return found if isinstance(found, Header) else None


def _assign_limits(rank: int, those: list[Attempt]) -> None:
    """Set the limits of each attempt of one rank from those after it."""
    limits: Limits = {}
    for number in range(len(those) - 1, 0, -1):
        later = those[number]
        until = _end_of(those, number)
        again = {} if later.header.joins else _first_steps(later, until, rank)
        again |= {source: at + 1 for source, at in later.header.resumed_after.items()}
        for source, step in again.items():
            limits[source] = min(step, limits.get(source, step))
        those[number - 1].limits = dict(limits)


def _end_of(those: Sequence[Attempt], number: int) -> int | None:
    following = those[number + 1] if number + 1 < len(those) else None
    return following.start if following and following.file.path == those[number].file.path else None


def _first_steps(attempt: Attempt, until: int | None, rank: int) -> Limits:
    """The first step of each source in an attempt."""
    decode = msgspec.json.Decoder(_Light).decode
    found: Limits = {}
    whose = attempt.file.rank
    with open_regular(attempt.file.path) as stream:
        stream.seek(attempt.start)
        at = attempt.start
        while line := stream.readline(MAX_LINE_BYTES):
            if until is not None and at >= until:
                break
            at += len(line)
            try:
                row = decode(line)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
            if row.source not in found and (whose is not None or row.rank == rank):
                found[row.source] = row.step
    return found
