"""The progress of long work: one line on stderr, on a terminal only."""

import time

from tdbg.core.output import PREFIX, can_redraw_stderr, redraw_stderr

EVERY_S = 0.1
SILENT_S = 0.5  # work that ends before shows nothing


class Progress:
    """A bar of bytes. total: 0 if nobody knows it."""

    def __init__(self, doing: str, total: int = 0) -> None:
        self._doing, self._total, self._done = doing, total, 0
        self._began = time.monotonic()
        self._next = self._began + SILENT_S
        self._live = can_redraw_stderr()
        self._drawn = False

    def advance(self, nbytes: int) -> None:
        """So much more is done."""
        self._done += nbytes
        if self._live and (now := time.monotonic()) >= self._next:
            self._next = now + EVERY_S
            self._draw_bar(now)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._drawn:
            redraw_stderr("")

    def _draw_bar(self, now: float) -> None:
        rate = self._done / max(now - self._began, 1e-3)
        text = f"{self._doing}: {self._done / 1e9:.2f} GB, {rate / 1e9:.2f} GB/s"
        if self._total:
            share = min(self._done / self._total, 1.0)
            left = (self._total - self._done) / max(rate, 1.0)
            bar = "#" * round(20 * share)
            text = f"{self._doing}: [{bar:<20}] {share:4.0%}, {rate / 1e9:.2f} GB/s, {max(left, 0):.0f} s left"
        self._drawn = True
        redraw_stderr(PREFIX + text)
