"""Curves are thinned to a limit, and keep what a reader looks for: extremes, gaps, non-finite values, marked steps."""

import json
import math
import random

import pytest

from tdbg.core.curve_points import MAX_GAPS, CurvePoints, ValueBand, merge_equal


def make_curve(values, first=1, **more):
    made = CurvePoints(**more)
    for step, value in enumerate(values, first):
        made.add_point(step, value)
    return made


def list_points(made):
    data = made.as_data("x")
    return list(zip(data["x"], data["y"], strict=True))


def test_a_short_curve_stays_as_it_is():
    assert list_points(make_curve([3.0, 1.0, 2.0])) == [(1, 3.0), (2, 1.0), (3, 2.0)]
    assert list_points(make_curve([])) == [] and make_curve([]).is_empty()
    assert list_points(make_curve([0.5])) == [(1, 0.5)]


def test_a_long_curve_is_thinned_and_keeps_its_extremes_and_its_ends():
    source = random.Random(0)
    values = [source.random() for _ in range(100_000)]
    values[71_234], values[4_321] = 50.0, -50.0
    made = list_points(make_curve(values))
    assert len(made) <= 2_002
    assert (71_235, 50.0) in made and (4_322, -50.0) in made
    assert made[0] == (1, pytest.approx(values[0])) and made[-1] == (100_000, pytest.approx(values[-1]))
    assert [step for step, _ in made] == sorted(step for step, _ in made)


@pytest.mark.parametrize("count", [999, 1000, 1001, 4000, 4001, 12_345])
def test_every_bucket_has_its_least_and_most(count):
    source = random.Random(count)
    values = [source.gauss(0, 1) for _ in range(count)]
    shown = [value for _, value in list_points(make_curve(values, buckets=1000))]
    assert len(shown) <= 2_002
    assert min(shown) == pytest.approx(min(values)) and max(shown) == pytest.approx(max(values))


def test_marked_steps_stay_and_where_they_have_no_record_the_next_one():
    made = CurvePoints((5_000, 7_777), buckets=10)
    for step in range(1, 20_001, 2):
        made.add_point(step, 1.0 + (step % 7) / 10)
    steps = [step for step, _ in list_points(made)]
    assert 5_001 in steps and 7_777 in steps and len(steps) <= 24
    many = CurvePoints([5, 5, 6, 7], buckets=2)
    for step in (1, 9, 10, 11, 12, 13, 14, 15):
        many.add_point(step, float(step == 12))
    assert 9 in [step for step, _ in list_points(many)]


def test_non_finite_values_break_the_line_and_are_told_with_their_steps():
    data = make_curve([1.0, "nan", "nan", 2.0, math.inf, "-inf", 3.0]).as_data("x")
    assert data["non_finite"] == [(2, 3, 2, "nan"), (5, 6, 2, "inf+-inf")]
    assert list(zip(data["x"], data["y"], strict=True)) == [(1, 1.0), (2, None), (4, 2.0), (5, None), (7, 3.0)]
    assert not make_curve(["nan"]).is_empty()


def test_many_spans_of_non_finite_values_stay_few():
    data = make_curve(["nan" if step % 2 else 1.0 for step in range(20_000)]).as_data("x")
    assert len(data["non_finite"]) <= MAX_GAPS
    assert sum(count for _, _, count, _ in data["non_finite"]) == 10_000
    assert data["non_finite"][0][0] == 2 and data["non_finite"][-1][1] == 20_000


def test_a_gap_breaks_the_line_and_regular_sampling_does_not():
    made = CurvePoints()
    for step in (*range(1, 50), *range(64, 2_000, 32), *range(9_000, 9_100, 32)):
        made.add_point(step, 1.0)
    assert [step for step, value in list_points(made) if value is None] == [*range(96, 576, 32), 9_000]
    assert made.as_data("x")["gaps"] == [*range(96, 576, 32), 9_000]  # until as many records are as far apart


def test_a_few_records_after_dense_ones_are_not_joined_by_a_line():
    """A value that rises between two records 47 steps apart may have risen at any of these steps."""
    made = CurvePoints()
    for step in (*range(1, 51), 64, 128, 175, 192, 256):
        made.add_point(step, 12.0 if step > 150 else 4.0)
    assert made.as_data("x")["gaps"] == [128, 175, 256]


def test_non_finite_values_far_apart_are_no_span():
    data = make_curve([1.0] * 50)
    for step in (64, 128, 129, 130, 192):
        data.add_point(step, "nan")
    spans = data.as_data("x")["non_finite"]
    assert spans == [(64, 64, 1, "nan"), (128, 130, 3, "nan"), (192, 192, 1, "nan")]
    data.add_point(193, 2.0)
    assert data.as_data("x")["gaps"] == []  # what is not finite is on record


@pytest.mark.parametrize("value", [None, "text", "", True, [], {}])
def test_what_is_no_number_is_passed_over(value):
    assert make_curve([value]).is_empty()


@pytest.mark.parametrize("step", [1 << 60, -(1 << 60), 1.5, None, "3", True])
def test_what_is_no_step_is_passed_over(step):
    made = CurvePoints()
    made.add_point(step, 1.0)
    assert made.is_empty()


def test_steps_that_go_back_are_put_in_order():
    made = CurvePoints()
    for step in (5, 1, 9, -3):
        made.add_point(step, float(step))
    assert [step for step, _ in list_points(made)] == [-3, 1, 5, 9]


def test_data_are_strict_json():
    text = json.dumps(make_curve([1.0, "nan", 1e308, -1e308, 5e-324]).as_data("x"), allow_nan=False)
    assert "1e+308" in text


def test_equal_curves_are_one_with_the_names_of_all():
    one, other = make_curve([1.0, 2.0]).as_data(""), make_curve([1.0, 3.0]).as_data("")
    assert [names for names, _ in merge_equal([("a", one), ("b", other), ("c", dict(one))])] == [["a", "c"], ["b"]]


def test_a_band_holds_the_least_and_the_most_of_all():
    band = ValueBand(last_step=1000, buckets=10)
    for rank in range(64):
        for step in range(1, 1001):
            band.add_point(step, float(rank if step > 500 else 1))
    data = band.as_data("all")
    assert len(data["x"]) <= 10
    assert (data["low"][0], data["high"][0]) == (1.0, 1.0) and (data["low"][-1], data["high"][-1]) == (0.0, 63.0)


@pytest.mark.parametrize("last_step", [-5, 0, 1, 1 << 60])
def test_a_band_of_any_length_takes_any_value(last_step):
    band = ValueBand(last_step)
    for step, value in ((-1, 1.0), (1 << 70, 2.0), (0, "nan"), (0, None), (0, math.inf), (None, 1.0)):
        band.add_point(step, value)
    assert len(band.as_data("x")["x"]) <= 401
