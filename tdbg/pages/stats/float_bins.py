"""Histogram bins of float32 values by their upper 16 bits: sign, exponent, seven bits of mantissa.

Such histograms merge by addition, whatever the range of the values, and give quantiles to the resolution of bfloat16.
"""

from typing import Any

import numpy

from tdbg.pages.stats.value_stats import QUANTILES

Array = numpy.ndarray[Any, Any]
SIZE = 1 << 16


class FloatBins:
    """One histogram. Kept is the part that is in use, of each sign: some 40 kB for activations, 512 kB at most.

    shift: so many bits of the mantissa were given up for memory.
    """

    __slots__ = ("counts", "first", "shift", "zero")

    def __init__(self) -> None:
        self.zero = 0  # and what is smaller than the smallest normal bfloat16 has a mantissa for
        self.shift = 0
        self.first = [0, 0]  # of the positive and of the negative values: the bin that the counts begin with
        self.counts: list[Array] = [numpy.zeros(0, "i8"), numpy.zeros(0, "i8")]

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return sum(part.nbytes for part in self.counts)

    def add_counts(self, counts: Array) -> None:
        """Add counts of all 65,536 bins."""
        self.zero += int(counts[0] + counts[SIZE // 2])
        for sign in (0, 1):
            half = counts[sign * SIZE // 2 + 1 : (sign + 1) * SIZE // 2]
            used = half != 0
            first, last = int(used.argmax()), len(used) - int(used[::-1].argmax())
            if used[first]:
                self._add_bins(sign, *_coarsen_counts(first + 1, half[first:last], self.shift))

    def merge_bins(self, other: "FloatBins") -> None:
        """Add another histogram; the coarser of both decides."""
        self.coarsen(max(other.shift - self.shift, 0))
        self.zero += other.zero
        for sign in (0, 1):
            if len(other.counts[sign]):
                self._add_bins(sign, *_coarsen_counts(other.first[sign], other.counts[sign], self.shift - other.shift))

    def coarsen(self, bits: int = 1) -> None:
        """Give up so many bits of the mantissa; seven are all of it."""
        bits = min(bits, 7 - self.shift)
        self.shift += bits
        for sign in (0, 1):
            self.first[sign], self.counts[sign] = _coarsen_counts(self.first[sign], self.counts[sign], bits)

    def list_ascending(self) -> tuple[Array, Array, Array]:
        """The bins that hold anything, by value: where each begins, where it ends, how many it holds."""
        parts = [self._list_bins(1), (numpy.zeros(1), numpy.zeros(1), numpy.array([self.zero])), self._list_bins(0)]
        negative = parts[0]
        parts[0] = -negative[1][::-1], -negative[0][::-1], negative[2][::-1]
        low, high, counts = (numpy.concatenate(found) for found in zip(*parts, strict=True))
        used = counts > 0
        return low[used], high[used], counts[used]

    def compute_quantiles(self, low: float, high: float, *, whole: bool) -> list[float]:
        """At `QUANTILES`, within ``low`` and ``high``. whole: all values are those at which their bins begin."""
        begins, ends, counts = self.list_ascending()
        if not len(counts):
            return []
        before = numpy.cumsum(counts) - counts
        ranks = numpy.array(QUANTILES) * (int(counts.sum()) - 1)
        at = numpy.clip(numpy.searchsorted(before, ranks, "right") - 1, 0, len(counts) - 1)
        share = (ranks - before[at] + 0.5) / counts[at]
        found = begins[at] + (ends[at] - begins[at]) * numpy.clip(share, 0, 1)
        if whole:  # the end that is nearer to zero
            found = numpy.where(begins[at] < 0, ends[at], begins[at])
        return [float(value) for value in numpy.clip(found, low, high)]

    def compute_histogram(self, low: float | None, high: float | None, count: int) -> list[int]:
        """How many values lie in each of ``count`` equal parts of low to high, as far as the bins tell."""
        if low is None or high is None:
            return []
        begins, ends, counts = self.list_ascending()
        if not high > low or not len(counts):
            return [0] * (count // 2) + [int(counts.sum())] + [0] * (count - count // 2 - 1)
        middle = numpy.clip((begins + ends) / 2, low, high)
        return [round(part) for part in numpy.histogram(middle, count, (low, high), weights=counts)[0].tolist()]

    def _add_bins(self, sign: int, first: int, part: Array) -> None:
        mine, begin = self.counts[sign], self.first[sign]
        if not len(mine):
            self.first[sign], self.counts[sign] = first, part.astype("i8")
            return
        low, high = min(begin, first), max(begin + len(mine), first + len(part))
        if low < begin or high > begin + len(mine):
            wider = numpy.zeros(high - low, "i8")
            wider[begin - low : begin - low + len(mine)] = mine
            self.first[sign], self.counts[sign] = low, wider
        self.counts[sign][first - low : first - low + len(part)] += part

    def _list_bins(self, sign: int) -> tuple[Array, Array, Array]:
        """Of one sign, by absolute value: begin, end and count of each bin."""
        counts, first = self.counts[sign], self.first[sign]
        edges = numpy.arange(first, first + len(counts) + 1, dtype="u4") << (16 + self.shift)
        edges = numpy.minimum(edges, 0x7F7FFFFF).view("f4").astype("f8")  # the largest float32
        return edges[:-1], edges[1:], counts


def _coarsen_counts(first: int, counts: Array, bits: int) -> tuple[int, Array]:
    """The same counts in bins of which each is ``2 ** bits`` of these."""
    if not bits or not len(counts):
        return first >> bits, counts
    size = 1 << bits
    front = first % size
    back = -(front + len(counts)) % size
    wide = numpy.concatenate([numpy.zeros(front, "i8"), counts, numpy.zeros(back, "i8")])
    return first >> bits, wide.reshape(-1, size).sum(1)
