"""Rows as lines for a person: progress, the values, and at the end a table. On stderr: stdout is the program's."""

import sys
from collections.abc import Mapping
from typing import ClassVar, TextIO

from tdbg.core.tables import format_cell, format_count, safe
from tdbg.metrics.rows.row import Row
from tdbg.metrics.sinks import SINKS
from tdbg.metrics.sinks.base import MetricSink
from tdbg.metrics.step_logger.final_results import results_of

BAR = 10  # letters of the bar
MOST = 12  # values of a line
MOST_RESULTS = 60  # lines of final results
HEADINGS = ("final result", "last", "best", "at epoch", "at step")
ETA, RATE = "eta_sec", "samples_per_sec"


@SINKS.add
class ConsoleSink(MetricSink):
    """A line a row: ``step 120/1000 [##........] 12% epoch 1  train: loss 0.41  512 samples/s  eta 0:01:12``.

    total_steps: of the run, if it is known. stream: stderr if left out. Final results are a table.
    """

    name: ClassVar[str] = "console"

    def __init__(self, *, total_steps: int | None = None, stream: TextIO | None = None) -> None:
        self.total_steps = total_steps
        self._stream = stream

    def write(self, row: Row) -> None:
        """Print one row. Raises OSError if nobody takes it."""
        self._print_text(self.format_row(row))

    def format_row(self, row: Row) -> str:
        """What is printed of a row."""
        words = [self._format_progress(row.step)]
        if row.epoch is not None:
            words.append(f"epoch {row.epoch:g}")
        line = " ".join(words)
        shown = {key: value for key, value in row.values.items() if not key.startswith("core/")}
        phase = row.phase or ""
        texts = [
            f"{self._format_key(key, phase)} {format_cell(float(value))}"
            for key, value in shown.items()
            if _is_plain_value(key)
        ]
        texts += [f"{self._format_key(key, phase)} {safe(text)}" for key, text in row.text.items()]
        more = f"  ({len(texts) - MOST} more)" if len(texts) > MOST else ""
        line += f"  {safe(phase)}{':' if phase else ''} {'  '.join(texts[:MOST])}{more}" if texts else ""
        for key, value in shown.items():
            if key.endswith(f"/{RATE}"):
                line += f"  {value:.4g} samples/s"
            elif key.endswith(f"/{ETA}"):
                line += f"  eta {format_duration(value)}"
        return line

    def _format_progress(self, step: int) -> str:
        if not self.total_steps:
            return f"step {step}"
        share = min(max(step / self.total_steps, 0.0), 1.0)
        done = int(share * BAR)
        return f"step {step}/{self.total_steps} [{'#' * done}{'.' * (BAR - done)}] {share:.0%}"

    @staticmethod
    def _format_key(key: str, phase: str) -> str:
        return safe(key.removeprefix(f"{phase}/") if phase else key)

    def summary(self, values: Mapping[str, object]) -> None:
        """Print the final results as a table, a line a metric, at most `MOST_RESULTS`."""
        results = results_of(values)
        rows = [HEADINGS, *(tuple(map(format_cell, one)) for one in results[:MOST_RESULTS])]
        if not results:
            return
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for key, *numbers in rows:
            cells = [f"{text:>{width}}" for text, width in zip(numbers, widths[1:], strict=True)]
            self._print_text("  ".join([f"{key:<{widths[0]}}", *cells]))
        if len(results) > MOST_RESULTS:
            self._print_text(
                f"... and {format_count(len(results) - MOST_RESULTS, 'metric')} more: `tdbg metrics show` has all of them"
            )

    def _print_text(self, text: str) -> None:
        stream = self._stream or sys.stderr
        if stream is not None and text:
            stream.write(f"{text}\n")
            stream.flush()


def _is_plain_value(key: str) -> bool:
    """False for what stands at the end of the line in words."""
    return not key.endswith((f"/{RATE}", f"/{ETA}"))


def format_duration(seconds: float) -> str:
    """Seconds as ``1:02:03``."""
    if not 0 <= seconds < 1e9:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
