"""Telling a lasting jump of a noisy series from its noise, in constant memory."""

import math
from bisect import bisect_left, insort
from collections import deque
from statistics import median as middle

MAD_TO_SIGMA = 1.4826  # of a normal distribution


class Window:
    """The last ``size`` values: their median at no cost, their spread on demand."""

    __slots__ = ("_order", "_sorted", "size")

    def __init__(self, size: int = 64) -> None:
        self.size = size
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def push(self, value: float) -> None:
        """Add a finite value; the oldest leaves."""
        if len(self._order) == self.size:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        self._order.append(value)
        insort(self._sorted, value)

    @property
    def median(self) -> float:
        """The upper median; 0 while empty."""
        return self._sorted[len(self._sorted) // 2] if self._sorted else 0.0

    @property
    def lowest(self) -> float:
        """The smallest value."""
        return self._sorted[0] if self._sorted else 0.0

    @property
    def highest(self) -> float:
        """The largest value."""
        return self._sorted[-1] if self._sorted else 0.0

    def mad(self) -> float:
        """Median absolute deviation: the spread that outliers do not move."""
        center = self.median
        return middle(abs(value - center) for value in self._sorted) if self._sorted else 0.0

    def log_sigma(self) -> float:
        """Robust standard deviation of the logarithms, for series that vary by factors."""
        logs = [math.log(value) for value in self._sorted if value > 0]
        if not logs:
            return math.inf
        center = logs[len(logs) // 2]
        return MAD_TO_SIGMA * middle(abs(value - center) for value in logs)


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

    def see(self, value: float) -> bool:
        """Add a value; True from the value that makes it a surge to the last one of it."""
        if not self._far(value):
            self.streak = 0
        elif self.streak == 0:
            self.streak, self.base, self.peak = 1, self.window.median, value
        else:
            self.streak += 1
            self.peak = max(self.peak, value)
        self.window.push(value)
        return self.streak >= self.lasting

    def _far(self, value: float) -> bool:
        base = self.base if self.streak else self.window.median
        if len(self.window) < self.warm or base <= 0 or value <= self.ratio * base:
            return False
        if value <= base + self.mads * self.window.mad():
            return False
        return math.log(value / base) > self.sigmas * self.window.log_sigma()
