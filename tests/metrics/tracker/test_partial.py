"""Sums are exact: no order and no split changes a digit."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdbg.metrics.tracker.partial import Partial

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
BATCHES = st.lists(st.tuples(st.floats(), st.integers(0, 1000)), max_size=30)


def sum_batches(batches):
    sums = Partial()
    for value, count in batches:
        sums.add_mean(value, count)
    return sums


@given(st.lists(st.tuples(FLOATS, st.integers(1, 10**6)), min_size=1, max_size=30))
def test_the_mean_is_the_exact_one_rounded_once(batches):
    exact = sum(Fraction(value) * count for value, count in batches) / sum(count for _, count in batches)
    assert sum_batches(batches).compute_mean() == float(exact)


@given(BATCHES, st.randoms(use_true_random=False))
def test_any_order_is_the_same(batches, random):
    shuffled = list(batches)
    random.shuffle(shuffled)
    assert sum_batches(shuffled) == sum_batches(batches)


@given(BATCHES, st.integers(1, 5), st.data())
def test_any_split_is_the_same(batches, parts, data):
    split = [[] for _ in range(parts)]
    for batch in batches:
        split[data.draw(st.integers(0, parts - 1))].append(batch)
    whole = Partial()
    for part in split:
        whole.merge_partial(sum_batches(part))
    assert whole == sum_batches(batches)


def test_a_sum_in_floats_would_not_be_the_same():
    """What this is for: the naive sum depends on the order."""
    batches = [(1e16, 1), (1.0, 1), (-1e16, 1)]
    assert (1e16 + 1.0) - 1e16 != 1.0
    assert sum_batches(batches).compute_mean() == sum_batches(batches[::-1]).compute_mean() == 1 / 3


@given(BATCHES)
def test_what_is_not_finite_is_counted_apart(batches):
    sums = sum_batches(batches)
    assert sums.nan == sum(count for value, count in batches if math.isnan(value))
    assert sums.inf == sum(count for value, count in batches if math.isinf(value))
    assert sums.count == sum(count for value, count in batches if math.isfinite(value))
    assert sums.batches == sum(1 for _, count in batches if count)
    assert sums.compute_mean() is None if not sums.count else math.isfinite(sums.compute_mean())


@pytest.mark.parametrize("value", [1.0, math.nan, math.inf])
def test_the_mean_of_no_samples_says_nothing(value):
    sums = Partial()
    sums.add_mean(value, 0)
    sums.add_sum(value, 0)
    assert not sums.has_samples and sums == Partial() and sums.compute_mean() is None


def test_sums_may_be_handed_over_instead_of_means():
    sums = Partial()
    sums.add_sum(7, 10)
    sums.add_sum(2.0, 5)
    sums.add_sum(math.nan, 5)
    assert sums.compute_mean() == 9 / 15 and sums.count == 15 and sums.nan == 5


def test_extremes():
    assert sum_batches([(math.ulp(0.0), 3)]).compute_mean() == math.ulp(0.0)
    assert sum_batches([(1.7e308, 10**6), (1.7e308, 1)]).compute_mean() == 1.7e308
    assert (
        sum_batches([(1.7e308, 10)]).compute_total() == math.inf
        and sum_batches([(-1.7e308, 10)]).compute_total() == -math.inf
    )
    assert sum_batches([(0.25, 3)]).compute_total() == 0.75
    assert sum_batches([(1.7e308, 1), (math.ulp(0.0), 1)]).compute_mean() == 1.7e308 / 2
