"""Rows as CSV, a line a value, so that a new key needs no new column: it is appended to, and safe from a kill."""

import csv
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.core.lines import LineWriter
from tdbg.core.tables import format_count
from tdbg.metrics.rows.row import Row
from tdbg.metrics.sinks import SINKS
from tdbg.metrics.sinks.base import MetricSink

FILE = "metrics.csv"
COLUMNS = ("attempt", "rank", "t", "step", "epoch", "phase", "source", "key", "value")
HEADING = f"{','.join(COLUMNS)}\n".encode()
TAIL = 1 << 20  # bytes at the end of a file that are searched for the last attempt
_ATTEMPT = re.compile(rb"^(\d+),\d+,\d+\.\d{3},", re.MULTILINE)
_begun: dict[Path, tuple[int, int]] = {}  # file -> the process that writes into it, and its attempt


class _File(LineWriter):
    what = "metrics"
    _whole = Path()  # the file, once it was opened

    def _open_file(self) -> None:
        """Find the attempt: one more than the last one that stands there, unless this process wrote it."""
        place = self._whole = self._place().absolute()
        pid, _ = _begun.get(place, (os.getpid(), 0))
        if pid != os.getpid():  # forked: the file is the parent's
            self._pid, self._fd = os.getpid(), -1
            return
        before = _last_attempt(place)
        super()._open_file()
        if not self.written_bytes:
            self._write_bytes(HEADING)
        if place not in _begun:
            _begun[place] = (pid, 0 if before is None else before + 1)

    def resolve_attempt(self) -> int:
        """Which one this is; opens the file, or says why not."""
        if self._pid != os.getpid():
            self.write_line(b"")
        return _begun.get(self._whole, (0, 0))[1]

    def start_attempt(self) -> None:
        """An attempt of its own begins, though the process stayed the same."""
        if self._whole in _begun and self.written_bytes:
            pid, attempt = _begun[self._whole]
            _begun[self._whole] = (pid, attempt + 1)


def _last_attempt(path: Path) -> int | None:
    """The last attempt that a file has rows of; None if it has none. Raises TdbgError for a file that is not ours."""
    try:
        with run_files.open_read(path) as file:
            begin = file.read(len(HEADING))
            file.seek(max(file.seek(0, os.SEEK_END) - TAIL, 0))
            found = _ATTEMPT.findall(file.read())
    except FileNotFoundError:
        return None
    if begin and begin != HEADING:
        raise TdbgError(f"{path} exists but was not written by this sink", "name another file")
    return max(map(int, found)) if found else None


@SINKS.add
class CsvSink(MetricSink):
    """Appends to a file, after a heading. Values are written so that they are read back exactly; NaN is ``nan``.

    path: the file, which rank 0 alone writes; if left out ``metrics.csv`` beside ``metrics.jsonl``, on every rank.
    ``attempt`` counts from 0: a process that goes on in the file of another has the next number, and so has one that
    goes on from a checkpoint. Of steps that were made again the higher attempt holds.
    """

    name: ClassVar[str] = "csv"

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, on_trouble: Callable[[str], None] | None = None
    ) -> None:
        from tdbg.core.output import print_messages

        self.every_rank = path is None  # in a file that was named ranks would write at once
        self._path = Path(FILE if path is None else path)
        self._file = _File(lambda: self._path, 0, on_trouble or print_messages)

    def place(self, folder: Path) -> None:
        """Have the file in this folder, unless it was named."""
        if self.every_rank:
            self._path = folder / FILE

    def resumed(self, step: int) -> None:
        """Rows from here on are another attempt's."""
        self._file.start_attempt()

    def write(self, row: Row) -> None:
        """Take one row. Raises OSError where the file cannot be written, TdbgError where it is somebody else's."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        epoch = "" if row.epoch is None else repr(row.epoch)
        head = (self._file.resolve_attempt(), row.rank, f"{row.t:.3f}", row.step, epoch, row.phase or "", row.source)
        writer.writerows((*head, key, repr(float(value))) for key, value in row.values.items())
        writer.writerows((*head, key, words) for key, words in row.text.items())
        if text.tell() and not self._file.write_line(text.getvalue().encode("utf-8", "backslashreplace")):
            raise OSError(f"{self._file.path or 'CSV'}: {format_count(self._file.dropped, 'row')} could not be written")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
