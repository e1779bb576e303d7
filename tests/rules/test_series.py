"""The window and the surge detector, against the plain definition."""

import random
import statistics

from hypothesis import given
from hypothesis import strategies as some

from tdbg.rules._series import Surge, Window

VALUES = some.lists(some.floats(min_value=1e-6, max_value=1e6), min_size=1, max_size=200)


@given(VALUES)
def test_window_is_the_median_of_the_last(values):
    window = Window(16)
    for value in values:
        window.push(value)
    last = values[-16:]
    assert len(window) == len(last)
    assert window.median == sorted(last)[len(last) // 2]
    assert window.compute_mad() == statistics.median(abs(value - window.median) for value in last)
    assert (window.lowest, window.highest) == (min(last), max(last))


def make_surge() -> Surge:
    return Surge(ratio=2.0, mads=10.0, sigmas=4.0, lasting=3, warm=10)


def test_a_surge_is_told_from_its_third_value_on():
    found = make_surge()
    said = [found.add_value(value) for value in [1.0, 1.1, 0.9] * 10 + [5.0, 6.0, 5.0, 5.0, 5.0, 1.0]]
    assert said == [False] * 32 + [True] * 3 + [False]
    assert (found.base, found.peak) == (1.0, 6.0)


def test_no_surge_while_warming_up_or_in_wide_noise():
    assert not any(map(make_surge().add_value, [1.0] * 5 + [50.0] * 5))
    noise = random.Random(3)
    found = make_surge()
    assert not any(found.add_value(noise.lognormvariate(0, 1.2)) for _ in range(20_000))


def test_a_constant_series_may_surge_too():
    found = make_surge()
    assert any(found.add_value(value) for value in [1.0] * 20 + [3.0] * 3)
