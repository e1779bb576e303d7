"""How far long work is: a line on stderr, on a terminal only."""

import os
import sys
import time

from tdbg.output import PREFIX, mute

EVERY_S = 0.1
SILENT_S = 0.5  # work that ends before shows nothing


class Progress:
    """A bar of bytes. total: 0 if nobody knows it."""

    def __init__(self, doing: str, total: int = 0) -> None:
        self._doing, self._total, self._done = doing, total, 0
        self._began = time.monotonic()
        self._next = self._began + SILENT_S
        self._live = is_terminal()
        self._drawn = False

    def add(self, nbytes: int) -> None:
        """So much more is done."""
        self._done += nbytes
        if self._live and (now := time.monotonic()) >= self._next:
            self._next = now + EVERY_S
            self._draw(now)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._drawn:
            self._write("\r\x1b[K")

    def _draw(self, now: float) -> None:
        rate = self._done / max(now - self._began, 1e-3)
        text = f"{self._doing}: {self._done / 1e9:.2f} GB, {rate / 1e9:.2f} GB/s"
        if self._total:
            share = min(self._done / self._total, 1.0)
            left = (self._total - self._done) / max(rate, 1.0)
            bar = "#" * round(20 * share)
            text = f"{self._doing}: [{bar:<20}] {share:4.0%}, {rate / 1e9:.2f} GB/s, {max(left, 0):.0f} s left"
        self._drawn = True
        self._write(f"\r{(PREFIX + text)[: _columns()]}\x1b[K")

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):  # nobody looks any more
            self._live = False
            mute(sys.stderr)


def is_terminal() -> bool:
    """True if a person may look at stderr."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def _columns() -> int:
    try:
        return max((os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1, 20)
    except (OSError, ValueError, AttributeError):
        return 79
