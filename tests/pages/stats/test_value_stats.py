"""Figures: without numpy, with it, and streamed, they are the same."""

import math
import random
import struct
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdbg.pages.format.dtypes import DTYPES
from tdbg.pages.read import tensor_values
from tdbg.pages.stats import value_stats
from tdbg.pages.stats.float_bins import SIZE, FloatBins
from tdbg.pages.stats.streaming_stats import StreamingStats
from tdbg.pages.stats.value_stats import QUANTILES, ValueStats

NUMERIC = [dtype for dtype in DTYPES.values() if dtype.kind != "bits" and not dtype.counts_values]
EXACT = ("count", "nan", "inf", "zero", "min", "max", "absmax")
by_dtype = pytest.mark.parametrize("dtype", NUMERIC, ids=lambda dtype: dtype.name)


def is_close(one: Any, other: Any, rel: float = 1e-9, abs_: float = 0.0) -> bool:
    return one is other is None or math.isclose(one, other, rel_tol=rel, abs_tol=abs_)


def assert_same(one: ValueStats, other: ValueStats, rel: float = 1e-9, ends: float = 0.0) -> None:
    for name in EXACT:
        mine, yours = getattr(one, name), getattr(other, name)
        assert mine == yours or (name not in EXACT[:4] and is_close(mine, yours, ends)), name
    scale = (one.absmax or 0.0) * 1e-12
    assert is_close(one.mean, other.mean, rel, scale) and is_close(one.std, other.std, max(rel, 1e-7), scale)


def stream_stats(data: bytes, dtype: Any, sizes: int = 1) -> StreamingStats:
    """In so many pieces, each tallied alone and merged."""
    found, step = StreamingStats(), max(len(data) // dtype.size // sizes, 1) * dtype.size
    for start in range(0, len(data), step):
        part = StreamingStats()
        part.add_bytes(data[start : start + step], dtype)
        found.merge_stats(part)
    return found


@by_dtype
@pytest.mark.parametrize("count", [1, 2, 1000])
def test_three_ways_one_result(dtype: Any, count: int) -> None:
    """Random bytes: every code of the small types, subnormals, nan, inf, the largest numbers of the wide ones."""
    data = random.Random(f"{dtype.name} {count}").randbytes(count * dtype.size)
    pure = value_stats.of_numbers(tensor_values.decode_numbers(data, dtype))
    array = tensor_values.decode_array(data, dtype)
    with numpy.errstate(all="ignore"):
        dense = value_stats.of_array(array)
    assert pure.count == count * dtype.packed
    for other in (dense, stream_stats(data, dtype).compute_stats(), stream_stats(data, dtype, 7).compute_stats()):
        assert_same(pure, other, ends=1e-15 if dtype.kind == "complex" else 0.0)
    for one, other in zip(pure.quantiles, dense.quantiles, strict=True):
        assert is_close(one, other, 1e-9, 1e-300)


@by_dtype
def test_no_values_at_all(dtype: Any) -> None:
    empty = ValueStats(0)
    assert (
        value_stats.of_numbers([])
        == value_stats.of_array(tensor_values.decode_array(b"", dtype))
        == stream_stats(b"", dtype).compute_stats()
        == empty
    )


def test_figures_of_known_numbers() -> None:
    found = value_stats.of_numbers([4.0, math.nan, 0.0, -2.0, math.inf, 1.0, -math.inf, -0.0])
    assert (found.count, found.nan, found.inf, found.zero, found.finite) == (8, 1, 2, 2, 5)
    assert (found.mean, found.min, found.max, found.absmax, found.zero_share) == (0.6, -2.0, 4.0, 4.0, 0.25)
    assert found.std is not None and math.isclose(found.std, math.sqrt((3.4**2 + 2 * 0.6**2 + 2.6**2 + 0.4**2) / 4))
    assert found.as_dict()["median"] == 0.0 and found.as_dict()["q75"] == 1.0
    assert value_stats.of_numbers([3 + 4j, 0j]).as_dict()["max"] == 5.0
    assert value_stats.of_numbers([True, False, True]).mean == pytest.approx(2 / 3)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), max_size=60),
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), max_size=60),
)
def test_merging_is_the_same_as_counting_at_once(one: list[float], other: list[float]) -> None:
    f32 = DTYPES["float32"]
    parts = [StreamingStats(), StreamingStats()]
    for tally, numbers in zip(parts, (one, other), strict=True):
        tally.add_bytes(struct.pack(f"<{len(numbers)}f", *numbers), f32)
    parts[0].merge_stats(parts[1])
    assert_same(value_stats.of_numbers(one + other), parts[0].compute_stats(), 1e-6)


@pytest.mark.parametrize("shift", [0, 3])
@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
def test_quantiles_of_a_stream(name: str, shift: int) -> None:
    """Within the width of a bin: 2 ** -7 of the value, 2 ** (shift - 7) of a coarser histogram."""
    numbers = numpy.random.default_rng(1).standard_normal(100_000).astype("f4") * 3 + 1
    if name == "bfloat16":
        numbers = (numbers.view("u4") & 0xFFFF0000).view("f4")
        data = (numbers.view("u4") >> 16).astype("u2").tobytes()
    else:
        numbers = numbers.astype({"float32": "f4", "float64": "f8", "float16": "f2"}[name])
        data = numbers.tobytes()
    tally = stream_stats(data, DTYPES[name], 5)
    assert tally.bins is not None
    tally.bins.coarsen(shift)
    wanted = numpy.quantile(numbers.astype("f8"), QUANTILES)
    for found, exact in zip(tally.compute_stats().quantiles, wanted, strict=True):
        assert abs(found - exact) <= abs(exact) * 2.0 ** (shift - 7) + 1e-3, (name, found, exact)


def test_small_whole_numbers_have_exact_quantiles() -> None:
    labels = numpy.arange(-9, 200).repeat(3)
    found = stream_stats(labels.astype("i8").tobytes(), DTYPES["int64"], 4).compute_stats().quantiles
    assert all(value == int(value) for value in found)
    assert found == tuple(numpy.quantile(labels, QUANTILES, method="closest_observation").tolist()) or all(
        abs(a - b) <= 1 for a, b in zip(found, numpy.quantile(labels, QUANTILES), strict=True)
    )


def test_a_mean_far_from_zero_keeps_its_spread() -> None:
    """Sums of squares would lose it."""
    numbers = 1e6 + numpy.random.default_rng(2).standard_normal(200_000)
    found = stream_stats(numbers.tobytes(), DTYPES["float64"], 3).compute_stats()
    assert found.std == pytest.approx(numbers.std(ddof=1), rel=1e-9) and found.mean == pytest.approx(numbers.mean())


def test_bins_are_those_of_the_upper_16_bits() -> None:
    numbers = numpy.random.default_rng(3).standard_normal(10_000).astype("f4")
    counts = numpy.bincount(numbers.view("u4") >> 16, minlength=SIZE)
    one, two, whole = FloatBins(), FloatBins(), FloatBins()
    one.add_counts(numpy.bincount(numbers[:4000].view("u4") >> 16, minlength=SIZE))
    two.add_counts(numpy.bincount(numbers[4000:].view("u4") >> 16, minlength=SIZE))
    whole.add_counts(counts)
    one.merge_bins(two)
    for a, b in zip(one.list_ascending(), whole.list_ascending(), strict=True):
        assert (a == b).all()
    begins, ends, found = whole.list_ascending()
    assert found.sum() == len(numbers) and (begins[1:] >= ends[:-1]).all()
    for value in numbers[:200]:
        at = int(numpy.searchsorted(begins, value, "right")) - 1
        assert begins[at] <= value <= ends[at]
    assert whole.nbytes < 60_000


def test_coarser_bins_hold_the_same_values() -> None:
    numbers = numpy.random.default_rng(4).standard_normal(5000).astype("f4")
    fine, coarse, later = FloatBins(), FloatBins(), FloatBins()
    counts = numpy.bincount(numbers.view("u4") >> 16, minlength=SIZE)
    fine.add_counts(counts)
    coarse.add_counts(counts)
    coarse.coarsen(4)
    later.shift = 4
    later.add_counts(counts)
    assert coarse.nbytes * 10 < fine.nbytes
    assert [part.tolist() for part in coarse.list_ascending()] == [part.tolist() for part in later.list_ascending()]
    later.merge_bins(fine)
    assert later.shift == 4 and later.list_ascending()[2].sum() == 10_000
    fine.merge_bins(coarse)
    assert fine.shift == 4 and [part.tolist() for part in fine.list_ascending()] == [
        p.tolist() for p in later.list_ascending()
    ]


def test_no_quantiles_are_better_than_wrong_ones() -> None:
    """Values that no float32 holds have no bin."""
    data = numpy.array([1.0, 2.0, 1e300]).tobytes()
    found = stream_stats(data, DTYPES["float64"]).compute_stats()
    assert (
        found.quantiles == ()
        and found.max == 1e300
        and value_stats.of_array(numpy.frombuffer(data)).as_dict()["median"] == 2
    )


@pytest.mark.parametrize("count", [1, 7, 40])
def test_bars(count: int) -> None:
    numbers = numpy.random.default_rng(5).standard_normal(3000)
    low, high = float(numbers.min()), float(numbers.max())
    wanted = numpy.histogram(numbers, count, (low, high))[0].tolist()
    ordered = value_stats.sort_finite(numbers.tolist())
    pure, dense = value_stats.compute_histogram(ordered, count), value_stats.array_bars(numbers, low, high, count)
    assert dense == wanted and sum(pure) == 3000
    assert all(abs(a - b) <= 1 for a, b in zip(pure, wanted, strict=True))
    tally = stream_stats(numbers.tobytes(), DTYPES["float64"])
    assert tally.bins is not None
    rough = tally.bins.compute_histogram(low, high, count)
    assert sum(rough) == 3000 and sum(abs(a - b) for a, b in zip(rough, wanted, strict=True)) < 3000 * 0.12


@pytest.mark.parametrize("numbers", [[2.0] * 5, [-math.inf, 2.0, math.nan]])
def test_bars_of_one_value(numbers: list[float]) -> None:
    finite = value_stats.sort_finite(numbers)
    dense = value_stats.array_bars(numpy.array(numbers), 2.0, 2.0, 4)
    assert value_stats.compute_histogram(finite, 4) == dense == [0, 0, len(finite), 0]
    assert value_stats.compute_histogram([], 4) == value_stats.array_bars(numpy.array([]), None, None, 4) == []


def test_pairs_of_bytes_are_counted_right() -> None:
    data = bytes(range(256)) + b"\x07"
    found = stream_stats(data, DTYPES["uint8"]).compute_stats()
    assert (found.count, found.min, found.max, found.zero) == (257, 0, 255, 1)
    assert found.mean == pytest.approx((sum(range(256)) + 7) / 257)
