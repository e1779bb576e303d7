"""Words that came out of a file, made fit for a terminal, and how far long work is. Standard library alone."""

import sys
import time
from types import TracebackType
from typing import Self

EVERY_S = 0.2
FIRST_S = 0.5  # shorter work shows nothing


def safe(text: object, limit: int = 200) -> str:
    """A text without control characters, line breaks or marks that turn the direction of writing; cut where it is endless."""
    found = str(text)
    found = found if len(found) <= limit else f"{found[: limit - 3]}..."
    return found if found.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in found)


class Progress:
    """A line on stderr that tells how far the work is, if stderr is a terminal. total: 0 if it is not known."""

    def __init__(self, doing: str, total: int = 0) -> None:
        self.doing, self.total, self.done = doing, total, 0
        self._shown = False
        self._due = time.monotonic() + FIRST_S
        try:
            self._is_terminal = sys.stderr.isatty()
        except (AttributeError, ValueError):
            self._is_terminal = False

    def step(self, count: int = 1) -> None:
        """So much more is done."""
        self.done += count
        if self._is_terminal and time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY_S
            self._shown = True
            self._write(f"\r\x1b[Ktdbg: {self.doing} {self.done:,}" + (f" of {self.total:,}" if self.total else ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._shown:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):  # nobody looks any more
            self._is_terminal = self._shown = False
