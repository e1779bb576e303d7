"""Rows as CSV, a line a value, so that a new key needs no new column: it is appended to, and safe from a kill."""

import csv
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from tdbg.lines import LineWriter
from tdbg.metrics.rows import Row
from tdbg.metrics.sinks import SINKS
from tdbg.metrics.sinks.base import MetricSink

COLUMNS = ("t", "step", "epoch", "phase", "rank", "source", "key", "value")


class _File(LineWriter):
    what = "metrics"

    def _open(self) -> None:
        super()._open()
        if self._fd >= 0 and not self.written_bytes:
            self._write(f"{','.join(COLUMNS)}\n".encode())


@SINKS.add
class CsvSink(MetricSink):
    """Appends to a file, after a heading. Values are written so that they are read back exactly; NaN is ``nan``."""

    name: ClassVar[str] = "csv"

    def __init__(
        self, path: str | os.PathLike[str] = "metrics.csv", *, on_trouble: Callable[[str], None] | None = None
    ) -> None:
        from tdbg.output import say

        self._file = _File(lambda: Path(path), 0, on_trouble or say)

    def write(self, row: Row) -> None:
        """Take one row. Raises OSError where the file cannot be written."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        epoch = "" if row.epoch is None else repr(row.epoch)
        head = (f"{row.t:.3f}", row.step, epoch, row.phase or "", row.rank, row.source)
        writer.writerows((*head, key, repr(float(value))) for key, value in row.values.items())
        writer.writerows((*head, key, words) for key, words in row.text.items())
        if text.tell() and not self._file.line(text.getvalue().encode("utf-8", "backslashreplace")):
            raise OSError(f"{self._file.path or 'CSV'}: {self._file.dropped} rows could not be written")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
