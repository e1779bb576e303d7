"""Differences beyond the spread, held against all orders there are."""

import random
from itertools import combinations

import pytest

from tdbg.traces.analyze.significance import estimate_ratio, estimate_shift, median_deviation


@pytest.mark.parametrize(("n", "m"), [(3, 3), (3, 4), (4, 4), (5, 6)])
def test_the_interval_is_as_sure_as_all_orders_say(n, m):
    """Of all ways to deal ranks to two equal samples, the interval misses 0 as often as its confidence says."""
    missed = total = 0
    for first in combinations(range(n + m), n):
        a = [float(2**rank) for rank in first]  # so that no two differences are equal
        b = [float(2**rank) for rank in range(n + m) if rank not in first]
        found = estimate_shift(a, b)
        missed += found.low > 0 or found.high < 0
        total += 1
    assert missed / total == pytest.approx(1 - found.confidence)
    assert found.confidence >= 0.95 or n * m < 16


def test_three_steps_a_side_are_the_least_that_can_tell():
    assert estimate_shift([1, 2, 3], [4, 5, 6]).sign == 1 and estimate_shift([4, 5, 6], [1, 2, 3]).sign == -1
    assert estimate_shift([1, 2, 3], [2.5, 5, 6]).sign == 0  # they overlap
    assert (
        estimate_shift([1, 2], [4, 5, 6, 7, 8, 9]).sign == 0 and not estimate_shift([1, 2], [4, 5, 6, 7, 8, 9]).is_known
    )
    assert not estimate_shift([], [1, 2, 3]).is_known and not estimate_shift([1], [2]).is_known


def test_the_guess_is_the_factor_and_an_outlier_does_not_move_it():
    a = [100, 101, 102, 103, 104, 105]
    found = estimate_ratio(a, [value * 1.2 for value in a])
    assert found.guess == pytest.approx(0.2) and 0.15 < found.low < 0.2 < found.high < 0.25
    struck = estimate_ratio(a, [value * 1.2 for value in a[:-1]] + [9000])
    assert struck.guess == pytest.approx(0.2, abs=0.02) and struck.sign == 1


def test_equal_samples_differ_as_seldom_as_promised():
    dice = random.Random(7)
    wrong = 0
    for _ in range(300):
        a, b = ([dice.lognormvariate(0, 0.1) for _ in range(30)] for _ in range(2))
        wrong += estimate_shift(a, b).sign != 0
    assert wrong / 300 < 0.09  # 5 % are promised


def test_many_values_are_thinned_and_tell_the_same():
    a = [100 + at % 17 for at in range(5000)]
    found = estimate_ratio(a, [value * 1.05 for value in a])
    assert found.guess == pytest.approx(0.05, abs=0.003) and found.sign == 1


def test_the_deviation_is_the_middle_of_the_distances():
    assert (median_deviation([1, 2, 3, 10, 100]), median_deviation([])) == (2, 0.0)
