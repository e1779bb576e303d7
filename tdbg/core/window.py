"""The last values of a noisy series: their median and spread, which a few outliers do not move."""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

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

    def clear(self) -> None:
        """Forget every value."""
        self._order.clear()
        self._sorted.clear()

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

    def compute_mad(self) -> float:
        """Median absolute deviation: the spread that outliers do not move."""
        center = self.median
        return compute_median(abs(value - center) for value in self._sorted) if self._sorted else 0.0

    def compute_log_sigma(self) -> float:
        """Robust standard deviation of the logarithms, for series that vary by factors."""
        logs = [math.log(value) for value in self._sorted if value > 0]
        if not logs:
            return math.inf
        center = logs[len(logs) // 2]
        return MAD_TO_SIGMA * compute_median(abs(value - center) for value in logs)


def compute_median(values: Iterable[float]) -> float:
    """The median; `statistics`, whose import takes longer than a small run's verdict, says the same."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
