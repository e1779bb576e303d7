"""Curves for a plot: smoothed value by value, then thinned so that no extreme is lost."""

import math
from array import array
from collections.abc import Sequence

from tdbg.core.curve_points import CurveBreaks, ValueBuckets, name_non_finite

MAX_BUCKETS = 2_000  # of a curve: each has its least and its most value


class Curve(ValueBuckets):
    """Steps and values of one key, source and rank, in buckets of equally many values.

    smooth: the weight of what was before, from 0 (none) to less than 1; corrected for its beginning as in TensorBoard.
    Values that are not finite are in no bucket: they are counted, and their steps kept, of many every second.
    breaks: where its line is broken.
    last: the last value, finite or not.
    """

    def __init__(self, key: str, rank: int, source: str = "", smooth: float = 0.0) -> None:
        super().__init__(MAX_BUCKETS)
        self.key, self.rank, self.source, self.smooth = key, rank, source, smooth
        self.count = self.non_finite = 0
        self.last: float | None = None
        self.wild_steps: array[int] = array("q")
        self.breaks = CurveBreaks()
        self._mean = self._weight = 0.0

    def add_point(self, step: int, value: float) -> None:
        """The next value. Cost: about 0.5 us."""
        self.last = value
        if not math.isfinite(value):
            self._note_non_finite(step)
            self.breaks.add_step(step, name_non_finite(value))
            return
        self.breaks.add_step(step)
        self.count += 1
        if self.smooth:
            self._mean = self._mean * self.smooth + value * (1 - self.smooth)
            self._weight = self._weight * self.smooth + (1 - self.smooth)
            value = self._mean / self._weight
        self.add_value(step, value)

    def add_points(self, steps: Sequence[int], values: Sequence[float]) -> None:
        """The next values: as `add_point` of each. Cost: 0.2 us a value where they are finite and not smoothed."""
        total = sum(values)
        if self.smooth or total - total != 0.0:  # NaN or Inf is among them, or the sum is beyond what a float holds
            for step, value in zip(steps, values, strict=True):
                self.add_point(step, value)
            return
        self.last = values[-1]
        self.count += len(values)
        self.breaks.add_steps(steps)
        self.add_values(steps, values)

    def _note_non_finite(self, step: int) -> None:
        self.non_finite += 1
        if len(self.wild_steps) >= MAX_BUCKETS:
            self.wild_steps = self.wild_steps[::2]
        self.wild_steps.append(step)

    @property
    def points(self) -> list[tuple[int, float]]:
        """Step and value, in order: of each bucket the least and the most."""
        found: list[tuple[int, float]] = []
        for low, high in self.iter_extremes():
            found += [low] if low == high else sorted((low, high))
        return found
