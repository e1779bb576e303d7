"""Rows of files that a run still appends to: what came since the last look, and nothing twice."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from tdbg.core.files import open_regular
from tdbg.metrics.rows import foreign_rows, row_codec
from tdbg.metrics.rows.attempts import MARK
from tdbg.metrics.rows.row_files import RowsFile
from tdbg.metrics.rows.row_reader import BLOCK, LONGEST, Batch, Reading, split_by_rank, split_headers

Identity = tuple[int, int]  # device and inode: another file under the same name is not the same


class OutdatedError(Exception):
    """What was read does not hold any more: a file was replaced or cut, or a later attempt began."""


class GrowingReading(Reading):
    """Reads files of rows again and again, each time only what was appended; its counts are of all that was read.

    A line without an end is left until it has one. For files that `can_grow` holds of.
    """

    def __init__(self, files: Sequence[RowsFile]) -> None:
        super().__init__(files)
        self._ends: dict[Path, int] = {}  # up to where each file is read
        self._identities: dict[Path, Identity] = {}
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
            status = os.fstat(stream.fileno())
            begin = self._ends.get(path, 0)
            if self._identities.setdefault(path, (status.st_dev, status.st_ino)) != (status.st_dev, status.st_ino):
                raise OutdatedError
            if status.st_size < begin:
                raise OutdatedError
            stream.seek(begin)
            while block := stream.read(BLOCK):
                while b"\n" not in block and len(block) < LONGEST and (more := stream.read(BLOCK)):
                    block += more
                whole = block[: block.rfind(b"\n") + 1]
                if (begin and whole.startswith(row_codec.HEADER)) or MARK in whole or len(block) >= LONGEST:
                    raise OutdatedError
                if not whole:
                    self.has_rest = True
                    return
                yield from (part for _, part in split_headers(begin, whole))
                begin += len(whole)
                self._ends[path] = begin
                stream.seek(begin)


def can_grow(files: Sequence[RowsFile]) -> bool:
    """True if each file is the only one of a rank: of several attempts a later one takes rows back from those before."""
    ranks = [file.rank for file in files]
    is_alone = None not in ranks and len(set(ranks)) == len(ranks) and not any(file.attempt for file in files)
    return is_alone and not any(foreign_rows.is_document(file.path) for file in files)
