"""Lanes hold the share of time of each activity, in a limited number of bins."""

import math

import pytest

from tdbg.core.time_lanes import TimeLane

T = 1_795_000_000.0


def sum_seconds(lane, kind):
    return sum(
        (bar["end"] - bar["start"]) * (bar["high"] - bar["low"]) for bar in lane.build_bars() if bar["kind"] == kind
    )


def test_a_lane_without_anything_has_no_bar():
    assert TimeLane(2).build_bars() == []


def test_one_activity_is_one_bar():
    lane = TimeLane(2)
    for number in range(1000):
        lane.add_activity(0, T + number * 0.1, T + (number + 1) * 0.1, number)
    (bar,) = lane.build_bars()
    assert (bar["kind"], bar["low"], bar["high"], bar["first_step"], bar["last_step"]) == (0, 0.0, 1.0, 0, 999)
    assert bar["start"] == T and bar["end"] == pytest.approx(T + 100)


def test_shares_are_true_and_bars_are_few():
    lane = TimeLane(2, bins=50)
    for number in range(5000):
        start = T + number * 0.01
        lane.add_activity(1, start, start + 0.003)
        lane.add_activity(0, start + 0.003, start + 0.01, number)
    assert len(lane.build_bars()) <= 100
    assert sum_seconds(lane, 0) == pytest.approx(35, rel=0.03) and sum_seconds(lane, 1) == pytest.approx(15, rel=0.03)


def test_time_without_anything_is_left_open():
    lane = TimeLane(1)
    lane.add_activity(0, T, T + 1)
    lane.add_activity(0, T + 9, T + 10)
    assert sum_seconds(lane, 0) == pytest.approx(2, rel=0.03)
    first, second = lane.build_bars()[0], lane.build_bars()[-1]
    assert first["end"] < T + 1.1 and second["start"] > T + 8.9


def test_shares_are_spread_over_their_time_and_stand_for_the_unknown_where_there_are_enough():
    lane = TimeLane(3, bins=10, width_s=1.0, unknown=2, known=(0, 1))
    for number in range(5):
        lane.add_shares({0: 0.25, 1: 0.75}, T + number * 0.1, T + number * 0.1 + 0.02)
    lane.add_activity(2, T + 0.5, T + 1)
    lane.add_shares({0: 0.25, 1: 0.75}, T + 1, T + 2)
    lane.add_activity(2, T + 2, T + 3)
    bars = [(bar["kind"], round(bar["start"] - T), bar["low"], bar["high"]) for bar in lane.build_bars()]
    assert bars[:2] == [(0, 0, 0.0, 0.15), (1, 0, 0.15, 0.6)]
    assert bars[2:] == [(0, 1, 0.0, 0.25), (1, 1, 0.25, 1.0), (2, 2, 0.0, 1.0)]


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 1), (-1.0, T), (T, T - 1), (math.nan, T), (T, math.nan), (T, math.inf), (-math.inf, T), (T, 1e300)],
)
def test_what_is_no_time_is_passed_over(start, end):
    lane = TimeLane(1)
    lane.add_activity(0, start, end)
    assert lane.build_bars() == []


def test_an_activity_of_no_length_at_a_clock_that_went_back():
    lane = TimeLane(1)
    lane.add_activity(0, T, T)
    lane.add_activity(0, T - 5, T - 1)
    lane.add_activity(0, T - 5, T + 1, 3)
    assert sum_seconds(lane, 0) == pytest.approx(1, rel=0.05)


def test_years_are_as_many_bins_as_seconds():
    lane = TimeLane(1, bins=40)
    lane.add_activity(0, T, T + 1)
    lane.add_activity(0, T + 3e8, T + 3e8 + 1)
    assert len(lane.build_bars()) <= 40
