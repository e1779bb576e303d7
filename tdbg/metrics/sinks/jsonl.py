"""The sink that is always there: ``metrics.jsonl``, a line a row, safe from a kill as soon as `write` is back."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from tdbg.core import run_files
from tdbg.core.lines import LineWriter
from tdbg.core.tables import format_count
from tdbg.metrics.rows import row_codec
from tdbg.metrics.rows.row import FILE, Header, Row
from tdbg.metrics.sinks import SINKS
from tdbg.metrics.sinks.base import MetricSink

BLOCK = 1 << 20
_begun: dict[Path, int] = {}  # file -> the process that wrote a header into it


class RowFile(LineWriter):
    """One ``metrics.jsonl`` of this process. A process that appends to an older file begins with a header of its own.

    A process that was forked off never writes into the file of its parent: its rows are dropped and counted, unless
    ``place`` tells it another file.
    """

    what = "metrics"

    def __init__(
        self,
        place: Callable[[], Path],
        *,
        run: str = "",
        rank: int = 0,
        attempt: int | None = None,
        budget_bytes: int = 0,
        on_trouble: Callable[[str], None],
    ) -> None:
        """attempt: which one this is; counted from the headers of the file if left out."""
        super().__init__(place, budget_bytes, on_trouble)
        self._run, self._rank, self._attempt = run, rank, attempt
        self._after: dict[str, int] = {}

    def write_row(self, row: Row, *, beyond_budget: bool = False) -> bool:
        """Write one row; False if it could not be written. Raises TypeError for a value that is no number."""
        budget = self._budget_bytes
        self._budget_bytes = 0 if beyond_budget else budget
        try:
            return self.write_line(row_codec.encode_row(row))
        finally:
            self._budget_bytes = budget

    def record_resumption(self, step: int, source: str) -> None:
        """Rows of ``source`` that earlier attempts wrote for later steps will be made again."""
        self._after = {source: step}
        if self._fd >= 0 and self._pid == os.getpid():
            self.write_line(self._build_resumption())

    def _open_file(self) -> None:
        pid, place = os.getpid(), self._place().absolute()
        if _begun.get(place, pid) != pid:  # forked: the file is the parent's
            self._pid, self._fd = pid, -1
            return
        super()._open_file()
        if place in _begun and self.written_bytes:  # closed behind our back, or another writer's header stands there
            if self._after:
                self._write_bytes(self._build_resumption())
            return
        if self._attempt is None:
            self._attempt = headers_in(place) if self.written_bytes else 0
        _begun[place] = pid
        self._write_bytes(self._build_header())
        self._after = {}

    def _build_resumption(self) -> bytes:
        """The header of an attempt of its own, though the process stayed the same."""
        self._attempt = (self._attempt or 0) + 1
        line, self._after = self._build_header(joins=True), {}
        return line

    def _build_header(self, *, joins: bool = False) -> bytes:
        header = Header(self._run, self._rank, self._attempt or 0, time.time(), os.getpid(), self._after, joins)
        return row_codec.encode_header(header)


def headers_in(path: Path) -> int:
    """How many processes wrote a file. Cost: about 0.3 s a GB."""
    count, before = 0, b"\n"
    with run_files.open_read(path) as file:
        while block := file.read(BLOCK):
            joined = before + block
            count += joined.count(b"\n" + row_codec.HEADER)
            before = joined[-len(row_codec.HEADER) :]
    return count


@SINKS.add
class JsonlSink(MetricSink):
    """Appends rows to a file. Sinks of one process and one file share its writer."""

    name: ClassVar[str] = "jsonl"
    every_rank = True

    def __init__(
        self,
        path: str | os.PathLike[str] = FILE,
        *,
        run: str = "",
        rank: int = 0,
        source: str = "tracker",
        on_trouble: Callable[[str], None] | None = None,
    ) -> None:
        self.source = source
        self.file = get_shared_writer(Path(path), run, rank, on_trouble)

    def write(self, row: Row) -> None:
        """Take one row. Raises OSError where the file cannot be written."""
        if not self.file.write_row(row):
            raise OSError(
                f"{self.file.path or 'metrics'}: {format_count(self.file.dropped, 'row')} could not be written"
            )

    def resumed(self, step: int) -> None:
        """Say so in the file, before the next row."""
        self.file.record_resumption(step, self.source)


_files: dict[Path, RowFile] = {}


def get_shared_writer(
    path: Path, run: str = "", rank: int = 0, on_trouble: Callable[[str], None] | None = None
) -> RowFile:
    """The writer of this file in this process; on_trouble: told once what fails, stderr if left out."""
    whole = path.absolute()
    if whole not in _files:
        from tdbg.core.output import print_messages

        _files[whole] = RowFile(lambda: whole, run=run, rank=rank, on_trouble=on_trouble or print_messages)
    return _files[whole]
