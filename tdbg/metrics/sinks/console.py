"""Rows as lines for a person: progress, the values, and at the end a table. On stderr: stdout is the program's."""

import sys
from collections.abc import Mapping
from typing import Any, ClassVar, TextIO

from tdbg.metrics.rows import Row
from tdbg.metrics.sinks import SINKS
from tdbg.metrics.sinks.base import MetricSink
from tdbg.tables import cell, safe

BAR = 10  # letters of the bar
MOST = 12  # values of a line
ETA, RATE = "eta_sec", "samples_per_sec"


@SINKS.add
class ConsoleSink(MetricSink):
    """A line a row: ``step 120/1000 [##........] 12% epoch 1  train: loss 0.41  512 samples/s  eta 0:01:12``.

    total_steps: of the run, if it is known. stream: stderr if left out. Final results are a table, drawn by rich on a
    terminal where it is installed.
    """

    name: ClassVar[str] = "console"

    def __init__(self, *, total_steps: int | None = None, stream: TextIO | None = None) -> None:
        self.total_steps = total_steps
        self._stream = stream

    def write(self, row: Row) -> None:
        """Print one row. Raises OSError if nobody takes it."""
        self._print(self.line(row))

    def line(self, row: Row) -> str:
        """What is printed of a row."""
        words = [self._progress(row.step)]
        if row.epoch is not None:
            words.append(f"epoch {row.epoch:g}")
        line = " ".join(words)
        shown = {key: value for key, value in row.values.items() if not key.startswith("core/")}
        phase = row.phase or ""
        texts = [f"{self._named(key, phase)} {cell(float(value))}" for key, value in shown.items() if _plain(key)]
        texts += [f"{self._named(key, phase)} {safe(text)}" for key, text in row.text.items()]
        more = f"  ({len(texts) - MOST} more)" if len(texts) > MOST else ""
        line += f"  {safe(phase)}{':' if phase else ''} {'  '.join(texts[:MOST])}{more}" if texts else ""
        for key, value in shown.items():
            if key.endswith(f"/{RATE}"):
                line += f"  {value:.4g} samples/s"
            elif key.endswith(f"/{ETA}"):
                line += f"  eta {clock(value)}"
        return line

    def _progress(self, step: int) -> str:
        if not self.total_steps:
            return f"step {step}"
        share = min(max(step / self.total_steps, 0.0), 1.0)
        done = int(share * BAR)
        return f"step {step}/{self.total_steps} [{'#' * done}{'.' * (BAR - done)}] {share:.0%}"

    @staticmethod
    def _named(key: str, phase: str) -> str:
        return safe(key.removeprefix(f"{phase}/") if phase else key)

    def summary(self, values: Mapping[str, Any]) -> None:
        """Print the final results as a table."""
        rows = [(key, value) for key, value in values.items() if not key.startswith("core/")]
        stream = self._stream or sys.stderr
        if rows and stream is not None and stream.isatty():
            try:
                self._drawn(rows, stream)
                return
            except ImportError:  # rich is none of the program's
                pass
        width = max((len(key) for key, _ in rows), default=0)
        self._print("\n".join(f"{safe(key):<{width}}  {cell(value)}" for key, value in rows))

    @staticmethod
    def _drawn(rows: list[tuple[str, Any]], stream: TextIO) -> None:
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("final result", overflow="fold")
        table.add_column("value", justify="right")
        for key, value in rows:
            table.add_row(safe(key), cell(value))
        Console(file=stream, markup=False, highlight=False, emoji=False).print(table)

    def _print(self, text: str) -> None:
        stream = self._stream or sys.stderr
        if stream is not None and text:
            stream.write(f"{text}\n")
            stream.flush()


def _plain(key: str) -> bool:
    """False for what stands at the end of the line in words."""
    return not key.endswith((f"/{RATE}", f"/{ETA}"))


def clock(seconds: float) -> str:
    """Seconds as ``1:02:03``."""
    if not 0 <= seconds < 1e9:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
