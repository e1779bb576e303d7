"""Statistics of values: count, non-finite values, mean, standard deviation, quantiles, histogram.

Complex numbers count by their absolute value. mean, std (with n - 1), min, max and quantiles are those of the finite
values. Small tensors need the standard library alone; larger ones numpy, which is loaded then.
"""

import math
import operator
from bisect import bisect_left

from tdbg.pages.read.tensor_values import to_real

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import numpy

    from tdbg.pages.read.datapoint import Datapoint

    Array = numpy.ndarray[Any, Any]

MOST = 1 << 62  # values that there can be
PURE = 65_536  # values: beyond them loading numpy takes less time than doing without
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
NAMES = ("count", "nan", "inf", "zero", "mean", "std", "min", "max")
QUANTILE_NAMES = tuple("median" if share == 0.5 else f"q{round(100 * share):02d}" for share in QUANTILES)


class ValueStats:
    """count: values. nan, inf, zero: how many of them are so. The rest is None where no value is finite.

    quantiles: at `QUANTILES`, or empty where nobody knows them. absmax: the largest absolute finite value.
    """

    __slots__ = ("count", "inf", "max", "mean", "min", "nan", "quantiles", "std", "zero")

    def __init__(
        self,
        count: int,
        nan: int = 0,
        inf: int = 0,
        zero: int | None = 0,
        mean: float | None = None,
        std: float | None = None,
        min: float | None = None,
        max: float | None = None,
        quantiles: "Sequence[float]" = (),
    ) -> None:
        self.count, self.nan, self.inf, self.zero = count, nan, inf, zero
        self.mean, self.std, self.min, self.max = mean, std, min, max
        self.quantiles = tuple(quantiles)

    @property
    def finite(self) -> int:
        """How many values are finite."""
        return self.count - self.nan - self.inf

    @property
    def absmax(self) -> float | None:
        """The largest absolute finite value."""
        return None if self.min is None or self.max is None else max(abs(self.min), abs(self.max))

    @property
    def zero_share(self) -> float | None:
        """Zeros by values."""
        return self.zero / self.count if self.count and self.zero is not None else None

    def as_dict(self) -> "dict[str, object]":
        """By name; the quantiles as median, q01, q05 and so on."""
        found: dict[str, object] = {name: getattr(self, name) for name in NAMES}
        found |= {"absmax": self.absmax, "zero_share": self.zero_share}
        return found | dict(zip(QUANTILE_NAMES, self.quantiles, strict=False))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ValueStats) and self.as_dict() == other.as_dict()

    def __repr__(self) -> str:
        return f"ValueStats({', '.join(f'{name}={value!r}' for name, value in self.as_dict().items())})"


def sort_finite(values: "Sequence[object]") -> "list[Any]":
    """The finite values, sorted."""
    return sorted(filter(math.isfinite, to_real_values(values)))


def of_numbers(values: "Sequence[Any]", finite: "list[Any] | None" = None) -> ValueStats:
    """Of Python numbers. finite: they are `ordered` already. Cost: about 0.4 us a value."""
    values = to_real_values(values)
    nan = sum(map(operator.ne, values, values))
    finite = sort_finite(values) if finite is None else finite
    inf, zero = len(values) - nan - len(finite), values.count(0)
    if not finite:
        return ValueStats(len(values), nan, inf, zero)
    mean = _sum_or_inf(finite) / len(finite) if abs(finite[0]) + abs(finite[-1]) < 1e300 else _wide_mean(finite)
    return ValueStats(
        len(values),
        nan,
        inf,
        zero,
        mean,
        _compute_std(finite, mean),
        finite[0],
        finite[-1],
        [_interpolate_quantile(finite, share) for share in QUANTILES],
    )


def of_array(array: "Array") -> ValueStats:
    """The same of a numpy array, exactly. Cost: about 20 ns a value, and a copy as float64."""
    import numpy

    flat = to_real_array(array).reshape(-1)
    known = numpy.isfinite(flat)
    nan = int(numpy.isnan(flat).sum())
    finite = flat if known.all() else flat[known]
    inf, zero = len(flat) - nan - len(finite), len(flat) - int(numpy.count_nonzero(flat))
    if not len(finite):
        return ValueStats(len(flat), nan, inf, zero)
    with numpy.errstate(all="ignore"):
        wide = finite.astype("f8")
        mean = float(wide.mean())
        if not math.isfinite(mean):
            mean = float((wide / len(wide)).sum())
        quantiles = numpy.quantile(wide, QUANTILES).tolist()
        wide -= mean
        spread = math.sqrt(float(wide.dot(wide)) / max(len(wide) - 1, 1))
    low, high = finite.min().item(), finite.max().item()
    return ValueStats(len(flat), nan, inf, zero, mean, spread, low, high, quantiles)


def to_real_values(values: "Sequence[Any]") -> "Sequence[Any]":
    """The numbers that figures are of: absolute values of complex ones."""
    if values and isinstance(values[0], complex):
        return [math.hypot(value.real, value.imag) for value in values]
    return values


def to_real_array(array: "Array") -> "Array":
    """The values that figures are of: absolute ones of complex numbers, 0 and 1 of truths."""
    if array.dtype.kind == "c":
        import numpy

        with numpy.errstate(all="ignore"):
            wide: Array = abs(array.astype("c16"))
        return wide
    return array.view("u1") if array.dtype.kind == "b" else array


def parse_recorded_stats(datapoint: "Datapoint") -> "dict[str, ValueStats]":
    """The figures of layers whose tensors were not kept (`--capture-stats`), by path. Without zeros and quantiles."""
    scalars = datapoint.scalars
    ends = "/count"
    paths = [name.removesuffix(ends) for name in scalars if name.endswith(ends)]
    return {path: found for path in paths if (found := _parse_recorded(scalars, path)) is not None}


def _parse_recorded(scalars: "Mapping[str, Any]", path: str) -> ValueStats | None:
    counts: list[Any] = [scalars.get(f"{path}/{name}", 0) for name in ("count", "nan", "inf")]
    found: list[object] = [scalars.get(f"{path}/{name}") for name in ("mean", "std", "low", "high")]
    if not all(type(value) in (int, float) and 0 <= value < MOST for value in counts):
        return None
    if not all(value is None or type(value) in (int, float) for value in found):
        return None
    (count, nan, inf), (mean, std, low, high) = map(int, counts), map(to_real, found)
    return ValueStats(count, nan, inf, None, mean, std, low, high)


def compute_histogram(finite: "Sequence[Any]", count: int) -> list[int]:
    """How many of values that are `ordered` lie in each of ``count`` equal parts of their range; empty without any."""
    if not finite:
        return []
    low, width = finite[0], finite[-1] - finite[0]
    if not width > 0 or not math.isfinite(width):
        return [0] * (count // 2) + [len(finite)] + [0] * (count - count // 2 - 1)
    ends = [bisect_left(finite, low + width * at / count) for at in range(1, count)]
    return [end - begin for begin, end in zip([0, *ends], [*ends, len(finite)], strict=True)]


def array_bars(array: "Array", low: float | None, high: float | None, count: int) -> list[int]:
    """The same of a numpy array."""
    import numpy

    if low is None or high is None:
        return []
    flat = to_real_array(array).reshape(-1)
    flat = flat[numpy.isfinite(flat)]
    if not high > low or not math.isfinite(high - low):
        return [0] * (count // 2) + [len(flat)] + [0] * (count - count // 2 - 1)
    found: list[int] = numpy.histogram(flat.astype("f8"), count, (low, high))[0].tolist()
    return found


def _sum_or_inf(values: "Sequence[float]") -> float:
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf


def _wide_mean(finite: "Sequence[float]") -> float:
    """Where the sum itself has no room."""
    return math.fsum(value / len(finite) for value in finite)


def _compute_std(finite: "Sequence[float]", mean: float) -> float:
    off = [value - mean for value in finite]
    return math.sqrt(_sum_or_inf(list(map(operator.mul, off, off))) / max(len(finite) - 1, 1))


def _interpolate_quantile(ordered: "Sequence[float]", share: float) -> float:
    """Between the two neighbours, as numpy does it."""
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    low, high = float(ordered[below]), float(ordered[above])
    return (
        low + (high - low) * (at - below) if math.isfinite(high - low) else low * (1 - at + below) + high * (at - below)
    )
