"""Statistics of a stream of values, in constant memory.

What has at most 16 bits is counted code by code, and everything follows from the counts. Of wider types blocks that
fit into a processor's cache are worked out in float64, and joined (Chan, Golub and LeVeque 1979).
"""

import functools
import math
from collections.abc import Callable, Iterator

import numpy

from tdbg.pages.format.dtypes import Dtype
from tdbg.pages.read.datapoint import Tensor
from tdbg.pages.read.tensor_values import decode_array
from tdbg.pages.stats.float_bins import SIZE, Array, FloatBins
from tdbg.pages.stats.value_stats import ValueStats, to_real_array

CHUNK_BYTES = 4 << 20  # read at once
BLOCK = 1 << 15  # values that are worked out at once: their float64 fit into a second-level cache
COUNTED = 1 << 18  # values that are counted at once: the histogram of 65,536 bins is added up for each
LARGEST = float(numpy.finfo("f4").max)


class StreamingStats:
    """Figures of all values so far. bins: keep a histogram too, for the quantiles."""

    __slots__ = (
        "_seen",
        "bins",
        "count",
        "high",
        "inf",
        "low",
        "mean",
        "nan",
        "spread",
        "whole",
        "zero",
        "zeros_unknown",
    )

    def __init__(self, *, bins: bool = True) -> None:
        self.count = self.nan = self.inf = self.zero = 0
        self._seen = 0  # finite values that mean and spread are of
        self.mean = self.spread = 0.0  # spread: the sum of squared differences from the mean
        self.low: float = math.inf
        self.high: float = -math.inf
        self.bins = FloatBins() if bins else None
        self.zeros_unknown = False
        self.whole = True  # all values are those at which their bins begin

    @property
    def finite(self) -> int:
        """How many values are finite."""
        return self.count - self.nan - self.inf

    def add_tensor(self, tensor: Tensor, progress: Callable[[int], object] = lambda nbytes: None) -> None:
        """Add the values of a stored tensor, read piece by piece. progress: is told the bytes of each.

        Raises TdbgError where they cannot be read.
        """
        for part in _iter_scaled_parts(tensor):
            if is_plain(part):
                for data in part.chunks(CHUNK_BYTES):
                    self.add_bytes(data, part.dtype)
                    progress(len(data))
            else:
                self.add_array(decode_array(part.read(), part.dtype, part.shape, part.note))
                progress(part.nbytes)

    def add_bytes(self, data: bytes, dtype: Dtype) -> None:
        """Add the values of these bytes, of a type that needs no more than its bytes."""
        few = self.bins is None and len(data) < SIZE  # a table of all codes would be larger
        if dtype.size <= 2 and dtype.packed == 1 and dtype.kind != "complex" and not few:
            self._add_codes(data, dtype)
        else:
            self.add_array(decode_array(data, dtype))

    def add_array(self, found: Array) -> None:
        """Add the values of an array."""
        flat = to_real_array(found).reshape(-1)
        with numpy.errstate(all="ignore"):
            for start in range(0, len(flat), COUNTED):
                self._add_some(flat[start : start + COUNTED])

    def merge_stats(self, other: "StreamingStats") -> None:
        """Add what another has seen."""
        self._merge_moments(other.finite, other.mean, other.spread)
        self.count += other.count
        self.nan += other.nan
        self.inf += other.inf
        self.zero += other.zero
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.whole &= other.whole
        self.zeros_unknown |= other.zeros_unknown
        if self.bins and other.bins:
            self.bins.merge_bins(other.bins)
        elif other.finite:
            self.bins = None

    def merge_figures(self, found: ValueStats) -> None:
        """Add figures that were worked out before; of quantiles and zeros nothing is known any more."""
        if found.mean is not None:
            self._merge_moments(found.finite, found.mean, (found.std or 0.0) ** 2 * max(found.finite - 1, 1))
        self.count += found.count
        self.nan += found.nan
        self.inf += found.inf
        if found.min is not None and found.max is not None:
            self.low, self.high = min(self.low, found.min), max(self.high, found.max)
        self.bins = None
        self.zeros_unknown |= found.zero is None
        self.zero += found.zero or 0

    def compute_stats(self) -> ValueStats:
        """All of them."""
        zero = None if self.zeros_unknown else self.zero
        if not self.finite:
            return ValueStats(self.count, self.nan, self.inf, zero)
        std = math.sqrt(self.spread / max(self.finite - 1, 1))
        found = self.bins.compute_quantiles(self.low, self.high, whole=self.whole) if self.bins else ()
        return ValueStats(self.count, self.nan, self.inf, zero, self.mean, std, self.low, self.high, found)

    def _add_some(self, flat: Array) -> None:
        """Values that are counted at once."""
        low, high = flat.min().item(), flat.max().item()
        self.count += len(flat)
        self.zero += len(flat) - int(numpy.count_nonzero(flat))
        if not (math.isfinite(low) and math.isfinite(high)):
            nan = int(numpy.isnan(flat).sum())
            known = flat[numpy.isfinite(flat)]
            self.nan += nan
            self.inf += len(flat) - nan - len(known)
            if not len(known):
                return
            flat, low, high = known, known.min().item(), known.max().item()
        self.low, self.high = min(self.low, low), max(self.high, high)
        for start in range(0, len(flat), BLOCK):
            wide = flat[start : start + BLOCK].astype("f8")
            mean = float(wide.sum()) / len(wide)
            if not math.isfinite(mean):
                mean = float((wide / len(wide)).sum())
            wide -= mean
            self._merge_moments(len(wide), mean, float(wide.dot(wide)))
        if max(abs(low), abs(high)) > LARGEST:
            self.bins = None  # it has no bins for them: no quantiles are better than wrong ones
        if self.bins is not None:
            self.whole &= flat.dtype.kind in "iub" and max(abs(low), abs(high)) <= 256
            self.bins.add_counts(numpy.bincount(_extract_prefixes(flat), minlength=SIZE))

    def _add_codes(self, data: bytes, dtype: Dtype) -> None:
        """Values of one or two bytes: each code is counted, and what it stands for looked up."""
        counts: Array | int = 0
        view = memoryview(data)
        for start in range(0, len(data), 4 * COUNTED):
            counts = counts + _code_counts(view[start : start + 4 * COUNTED], dtype)
        if len(data):
            self._add_counts(numpy.asarray(counts), dtype)

    def _add_counts(self, counts: Array, dtype: Dtype) -> None:
        known, prefixes = _build_code_table(dtype)
        used = numpy.flatnonzero(counts != 0)  # the comparison makes it quick
        counts, worth = counts[used], known[used]
        finite = numpy.isfinite(worth)
        total, nan = int(counts.sum()), int(counts[numpy.isnan(worth)].sum())
        self.count += total
        self.nan += nan
        self.zero += int(counts[worth == 0].sum())
        if not finite.all():
            used, counts, worth = used[finite], counts[finite], worth[finite]
            self.inf += total - nan - int(counts.sum())
        if not len(worth):
            return
        number = int(counts.sum())
        mean = float(worth.dot(counts)) / number
        self._merge_moments(number, mean, float(((worth - mean) ** 2).dot(counts)))
        self.low, self.high = min(self.low, float(worth.min())), max(self.high, float(worth.max()))
        if self.bins is not None:
            self.whole &= dtype.name not in ("float16", "int16", "uint16", "bits16")
            self.bins.add_counts(numpy.bincount(prefixes[used], counts, SIZE).astype("i8"))

    def _merge_moments(self, count: int, mean: float, spread: float) -> None:
        """Mean and spread of so many more values."""
        if not count:
            return
        if not self._seen:
            self._seen, self.mean, self.spread = count, mean, spread
            return
        seen = self._seen + count
        off = mean - self.mean
        self.mean += off * (count / seen)
        self.spread += spread + off * off * (self._seen * (count / seen))
        self._seen = seen


@functools.cache
def _build_code_table(dtype: Dtype) -> tuple[Array, Array]:
    """The value of each code of a type, and the prefix of its float32."""
    kind = "<u2" if dtype.size == 2 else "u1"
    found = decode_array(numpy.arange(256**dtype.size).astype(kind).tobytes(), dtype)
    with numpy.errstate(all="ignore"):
        wide = to_real_array(found).astype("f8")
        return wide, _extract_prefixes(wide).astype("i8")


def _code_counts(data: memoryview, dtype: Dtype) -> Array:
    """How often each code occurs. Bytes are counted in pairs, which takes half the time."""
    odd = len(data) % 2
    found = numpy.bincount(numpy.frombuffer(data, "<u2", (len(data) - odd) // 2), minlength=SIZE)
    if dtype.size == 2:
        return found
    square = found.reshape(256, 256)
    single: Array = square.sum(0) + square.sum(1)
    if odd:
        single[data[-1]] += 1
    return single


def _extract_prefixes(flat: Array) -> Array:
    """The upper 16 bits of each value's float32."""
    if flat.dtype != numpy.dtype("<f4"):
        flat = numpy.clip(flat.astype("f8"), -LARGEST, LARGEST).astype("<f4")
    return flat.view("<u2")[1::2]


def is_plain(tensor: Tensor) -> bool:
    """True if its bytes can be cut anywhere, and mean what the dtype says."""
    return not tensor.dtype.counts_values and "scale" not in tensor.note and "scales" not in tensor.note


def _iter_scaled_parts(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor; row by row where it is large, and its scales change from row to row."""
    if is_plain(tensor) or tensor.nbytes <= CHUNK_BYTES or len(tensor.shape) < 2:
        yield tensor
        return
    for index in range(tensor.shape[0]):
        yield from _iter_scaled_parts(tensor.row(index))
