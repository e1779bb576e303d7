"""Exact sums and counts: independent of the order of updates and of how ranks share them.

A float is a whole number times a power of two, and so is any sum of floats: it is kept as such, and rounded once, when
it is divided. The same idea as the partials of Shewchuk 1997, "Adaptive precision floating-point arithmetic", which
`math.fsum` uses, but mergeable by one addition.
"""

import math


class Partial:
    """A sum weighted by samples, and what it was made of.

    numerator, shift: the sum is ``numerator / 2**shift``. count: samples in it. batches: additions with samples.
    nan, inf: samples whose value was NaN or infinite; they are in neither the sum nor the count.
    """

    __slots__ = ("batches", "count", "inf", "nan", "numerator", "shift")

    def __init__(
        self, numerator: int = 0, shift: int = 0, count: int = 0, batches: int = 0, nan: int = 0, inf: int = 0
    ) -> None:
        self.numerator = numerator
        self.shift = shift
        self.count = count
        self.batches = batches
        self.nan = nan
        self.inf = inf

    def add_mean(self, value: float, count: int = 1) -> None:
        """Add the mean of ``count`` samples; of no samples nothing is added, whatever the value. Cost: 0.5 us."""
        if not count:
            return
        self.batches += 1
        if not math.isfinite(value):
            self._count_non_finite(value, count)
            return
        self._add_exact(value, count)
        self.count += count

    def add_sum(self, total: float, count: int) -> None:
        """Add a sum over ``count`` samples, such as a number of right answers."""
        if not count:
            return
        self.batches += 1
        if not math.isfinite(total):
            self._count_non_finite(total, count)
            return
        self._add_exact(total, 1)
        self.count += count

    def merge_partial(self, other: "Partial") -> None:
        """Add another rank's, or an earlier part of the same phase."""
        self._add_scaled(other.numerator, other.shift)
        self.count += other.count
        self.batches += other.batches
        self.nan += other.nan
        self.inf += other.inf

    def compute_mean(self) -> float | None:
        """Sum over count, rounded once; None if nothing finite was counted."""
        if not self.count:
            return None
        return self.numerator / (self.count << self.shift)

    def copy_all(self) -> "Partial":
        """The same, apart."""
        return Partial(self.numerator, self.shift, self.count, self.batches, self.nan, self.inf)

    def compute_total(self) -> float:
        """The sum, rounded once; infinite where a float cannot hold it."""
        try:
            return self.numerator / (1 << self.shift)
        except OverflowError:
            return math.inf if self.numerator > 0 else -math.inf

    def copy_finite(self) -> "Partial":
        """The sum and its count alone, apart: what a finished pass is remembered by, the same from any split."""
        return Partial(self.numerator, self.shift, self.count)

    def state(self) -> list[int | str]:
        """Plain data; the numerator as text, since it may be longer than 64 bits."""
        return [hex(self.numerator), self.shift, self.count, self.batches, self.nan, self.inf]

    @property
    def has_samples(self) -> bool:
        """True if any sample was added, finite or not."""
        return self.batches > 0

    def __eq__(self, other: object) -> bool:
        return self.state() == other.state() if isinstance(other, Partial) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Partial(mean={self.compute_mean()}, count={self.count}, batches={self.batches}, nan={self.nan}, inf={self.inf})"

    def _add_exact(self, value: float, times: int) -> None:
        numerator, denominator = value.as_integer_ratio()
        self._add_scaled(numerator * times, denominator.bit_length() - 1)

    def _add_scaled(self, numerator: int, shift: int) -> None:
        """Add ``numerator / 2**shift``; the finer of the two shifts is kept, so that the end is the same in any order."""
        if shift <= self.shift:
            self.numerator += numerator << (self.shift - shift)
        else:
            self.numerator = (self.numerator << (shift - self.shift)) + numerator
            self.shift = shift

    def _count_non_finite(self, value: float, count: int) -> None:
        if math.isnan(value):
            self.nan += count
        else:
            self.inf += count
