"""Telling a lasting jump of a noisy series from its noise, in constant memory."""

import math

from tdbg.core.window import Window

__all__ = ["Surge", "Window"]


class Surge:
    """Watches a positive series for values far above its recent course that stay there.

    A value is far above when it exceeds ``ratio`` times the median of the last 64, the median plus
    ``mads`` median absolute deviations, and ``sigmas`` robust deviations of the logarithm; ``lasting``
    such values in a row are a surge. Nothing is said before ``warm`` values were seen.
    """

    __slots__ = ("base", "lasting", "mads", "peak", "ratio", "sigmas", "streak", "warm", "window")

    def __init__(self, *, ratio: float, mads: float, sigmas: float, lasting: int, warm: int) -> None:
        self.ratio, self.mads, self.sigmas = ratio, mads, sigmas
        self.lasting, self.warm = lasting, warm
        self.window = Window()
        self.streak = 0
        self.base = self.peak = 0.0

    def add_value(self, value: float) -> bool:
        """Add a value; True from the value that makes it a surge to the last one of it."""
        if not self._is_far(value):
            self.streak = 0
        elif self.streak == 0:
            self.streak, self.base, self.peak = 1, self.window.median, value
        else:
            self.streak += 1
            self.peak = max(self.peak, value)
        self.window.push(value)
        return self.streak >= self.lasting

    def _is_far(self, value: float) -> bool:
        base = self.base if self.streak else self.window.median
        if len(self.window) < self.warm or base <= 0 or value <= self.ratio * base:
            return False
        if value <= base + self.mads * self.window.compute_mad():
            return False
        return math.log(value / base) > self.sigmas * self.window.compute_log_sigma()
