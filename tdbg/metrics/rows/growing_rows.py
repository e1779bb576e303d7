"""Rows of files that a run still appends to: what came since the last look, and nothing twice."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from tdbg.core.files import open_regular
from tdbg.metrics.rows import foreign_rows, row_codec
from tdbg.metrics.rows.attempts import MARK
from tdbg.metrics.rows.row_files import RowsFile
from tdbg.metrics.rows.row_reader import BLOCK, LONGEST, Batch, Reading, split_by_rank, split_headers

EDGE = 256  # bytes kept of what was read, at its beginning and at its end: rows have a time, so others differ
Identity = tuple[int, int]  # device and inode: another file under the same name is not the same, but may have the inode


class OutdatedError(Exception):
    """What was read does not hold any more: a file was replaced or cut, or a later attempt began."""


class _Read(NamedTuple):
    """What was read of a file. end: up to where; head, tail: the first and the last bytes of it."""

    identity: Identity
    end: int = 0
    head: bytes = b""
    tail: bytes = b""

    def extend(self, data: bytes) -> "_Read":
        """This, and the bytes that follow."""
        return _Read(self.identity, self.end + len(data), (self.head + data[:EDGE])[:EDGE], (self.tail + data)[-EDGE:])

    def check(self, stream: IO[bytes]) -> None:
        """Raises OutdatedError unless the file still begins with what was read; leaves the stream behind it."""
        stream.seek(0)
        head = stream.read(len(self.head))
        stream.seek(self.end - len(self.tail))
        if self.identity != _identify(stream) or head != self.head or stream.read(len(self.tail)) != self.tail:
            raise OutdatedError


class GrowingReading(Reading):
    """Reads files of rows again and again, each time only what was appended; its counts are of all that was read.

    A line without an end is left until it has one. For files that `can_grow` holds of.
    """

    def __init__(self, files: Sequence[RowsFile]) -> None:
        super().__init__(files)
        self._read: dict[Path, _Read] = {}
        self.has_rest = False  # a file ends with a line that has no end yet

    def iter_batches(self) -> Iterator[Batch]:
        """Rows that came since the last time, file by file. Raises OutdatedError where all are to be read anew, and OSError."""
        self.has_rest = False
        for file in self.files:
            for part in self._iter_appended(file.path):
                for rank, lines in split_by_rank(self._decode_lines(part), file.rank):
                    self.counts.rows += len(lines)
                    if lines:
                        yield Batch(rank, lines)

    def _iter_appended(self, path: Path) -> Iterator[bytes]:
        """Whole lines behind what was read, without the header at the beginning of the file."""
        with open_regular(path) as stream:
            read = self._read.setdefault(path, _Read(_identify(stream)))
            read.check(stream)
            while block := stream.read(BLOCK):
                while b"\n" not in block and len(block) < LONGEST and (more := stream.read(BLOCK)):
                    block += more
                whole = block[: block.rfind(b"\n") + 1]
                if (read.end and whole.startswith(row_codec.HEADER)) or MARK in whole or len(block) >= LONGEST:
                    raise OutdatedError
                if not whole:
                    self.has_rest = True
                    return
                yield from (part for _, part in split_headers(read.end, whole))
                read = self._read[path] = read.extend(whole)
                stream.seek(read.end)


def _identify(stream: IO[bytes]) -> Identity:
    status = os.fstat(stream.fileno())
    return status.st_dev, status.st_ino


def can_grow(files: Sequence[RowsFile]) -> bool:
    """True if each file is the only one of a rank: of several attempts a later one takes rows back from those before."""
    ranks = [file.rank for file in files]
    is_alone = None not in ranks and len(set(ranks)) == len(ranks) and not any(file.attempt for file in files)
    return is_alone and not any(foreign_rows.is_document(file.path) for file in files)
