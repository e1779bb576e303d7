"""Curves for a plot: smoothed value by value, then thinned so that no extreme is lost."""

import math
from array import array
from dataclasses import dataclass, field

MAX_BUCKETS = 2_000  # of a curve: each has its least and its most value


@dataclass(slots=True)
class Curve:
    """Steps and values of one key, source and rank, in buckets of equally many values.

    smooth: the weight of what was before, from 0 (none) to less than 1; corrected for its beginning as in TensorBoard.
    Values that are not finite are in no bucket: they are counted, and their steps kept, of many every second.
    last: the last value, finite or not.
    """

    key: str
    rank: int
    source: str = ""
    smooth: float = 0.0
    count: int = 0
    non_finite: int = 0
    last: float | None = None
    _size: int = 1  # values of a whole bucket
    _held: int = 0  # values of the last one
    _lows: "array[float]" = field(default_factory=lambda: array("d"))
    _highs: "array[float]" = field(default_factory=lambda: array("d"))
    _low_steps: "array[int]" = field(default_factory=lambda: array("q"))
    _high_steps: "array[int]" = field(default_factory=lambda: array("q"))
    wild_steps: "array[int]" = field(default_factory=lambda: array("q"))
    _mean: float = 0.0
    _weight: float = 0.0

    def add(self, step: int, value: float) -> None:
        """The next value. Cost: about 0.4 us."""
        if not math.isfinite(value):
            self._wild(step, value)
            return
        self.count += 1
        self.last = value
        if self.smooth:
            self._mean = self._mean * self.smooth + value * (1 - self.smooth)
            self._weight = self._weight * self.smooth + (1 - self.smooth)
            value = self._mean / self._weight
        if 0 < self._held < self._size:
            self._held += 1
            if value < self._lows[-1]:
                self._lows[-1], self._low_steps[-1] = value, step
            elif value > self._highs[-1]:
                self._highs[-1], self._high_steps[-1] = value, step
            return
        if len(self._lows) >= MAX_BUCKETS:
            self._join()
        self._held = 1
        for values, steps in ((self._lows, self._low_steps), (self._highs, self._high_steps)):
            values.append(value)
            steps.append(step)

    def _wild(self, step: int, value: float) -> None:
        self.non_finite += 1
        self.last = value
        if len(self.wild_steps) >= MAX_BUCKETS:
            self.wild_steps = self.wild_steps[::2]
        self.wild_steps.append(step)

    def _join(self) -> None:
        """Make one bucket of each two neighbours."""
        for values, steps, better in ((self._lows, self._low_steps, min), (self._highs, self._high_steps, max)):
            kept = [better((at, at + 1), key=values.__getitem__) for at in range(0, len(values) - 1, 2)]
            values[:], steps[:] = array("d", [values[at] for at in kept]), array("q", [steps[at] for at in kept])
        self._size *= 2

    @property
    def points(self) -> list[tuple[int, float]]:
        """Step and value, in order: of each bucket the least and the most."""
        found: list[tuple[int, float]] = []
        for low, high in zip(
            zip(self._low_steps, self._lows, strict=True), zip(self._high_steps, self._highs, strict=True), strict=True
        ):
            found += [low] if low == high else sorted((low, high))
        return found
