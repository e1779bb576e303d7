"""Series in bounded memory say what a plain look at every value says."""

import itertools
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from metrics.rows_of import Header, make_row, write_rows

from tdbg.metrics.render.braille_plot import draw_graph
from tdbg.metrics.render.curve_data import collect_curves
from tdbg.metrics.render.curves import MAX_BUCKETS, Curve
from tdbg.metrics.rows.row import FILE
from tdbg.metrics.rows.row_files import find_rows_files
from tdbg.metrics.rows.row_reader import Line, Reading
from tdbg.metrics.rows.series import POINTS, Course, Point, Series, build_tally, format_sparkline, resolve_direction

QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy
KEYS = ("train/loss", "val/loss", "val/acc1_genus", "lr/head")
VALUES = st.floats(-1e6, 1e6) | st.sampled_from((math.nan, math.inf, -math.inf))
ROWS = st.lists(
    st.tuples(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4), st.sampled_from(("tracker", "wandb"))),
    max_size=30,
)


@QUIET
@given(ROWS)
def test_a_tally_equals_a_plain_look(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("series") / FILE
    write_rows(path, Header(), *(make_row(step, values, source=source) for step, (values, source) in enumerate(rows)))
    found = build_tally(Reading(find_rows_files(str(path)).files).iter_batches()).series
    plain = {}
    for step, (values, source) in enumerate(rows):
        for key, value in values.items():
            plain.setdefault((key, source, 0), []).append((value, step))
    assert found.keys() == plain.keys()
    for name, pairs in plain.items():
        one = found[name]
        finite = [pair for pair in pairs if math.isfinite(pair[0])]
        assert (one.count, one.non_finite) == (len(pairs), len(pairs) - len(finite))
        assert one.last.step == pairs[-1][1]
        assert one.last.value == pairs[-1][0] or math.isnan(pairs[-1][0])
        assert list(map(str, one.course.values)) == [str(value) for value, _ in pairs], "NaN is in the course too"
        if finite:
            least = min(finite, key=lambda pair: pair[0])
            most = max(finite, key=lambda pair: pair[0])
            assert (one.least.value, one.least.step) == least and (one.most.value, one.most.step) == most
        else:
            assert one.least is None is one.most


def test_values_of_mixed_rows_stay_in_order(tmp_path):
    rows = [make_row(s, {"train/loss": float(s), **({"lr/head": 1.0} if s % 3 == 0 else {})}) for s in range(200)]
    path = write_rows(tmp_path / FILE, *rows)
    (one, *_) = [
        s
        for s in build_tally(Reading(find_rows_files(str(path)).files).iter_batches()).series.values()
        if s.key == "train/loss"
    ]
    assert one.course.values == [float(s) for s in range(0, 200, one.course.stride)]
    assert one.last.step == 199


@pytest.mark.parametrize(
    "odd", [{"b": 9.0, "a": 3.0}, {"a": 3.0, "c": 9.0}, {"a": 3.0}, {"a": 3.0, "b": 9.0, "c": 1.0}, {}]
)
def test_one_row_of_another_shape_changes_nothing_of_the_rest(tmp_path, odd):
    rows = [
        make_row(1, {"a": 1.0, "b": 5.0}),
        make_row(2, {"a": 2.0, "b": 7.0}),
        make_row(3, odd),
        make_row(4, {"a": 4.0, "b": 8.0}),
    ]
    found = build_tally(
        Reading(find_rows_files(str(write_rows(tmp_path / FILE, *rows))).files).iter_batches()
    ).series.values()
    courses = {one.key: one.course.values for one in found}
    expected = {key: [one.values[key] for one in rows if key in one.values] for key in {"a", "b", *odd}}
    assert courses == expected


def test_a_course_stays_small_and_even():
    course = Course()
    for begin in range(0, 100_000, 777):
        course.extend([float(value) for value in range(begin, min(begin + 777, 100_000))])
    assert POINTS <= len(course.values) <= 2 * POINTS
    assert course.values == [float(value) for value in range(0, 100_000, course.stride)]


@QUIET
@given(st.lists(st.sampled_from([1.0] * 60 + [math.nan, math.inf]), max_size=700), st.integers(1, 200))
def test_no_value_that_is_not_finite_is_lost_from_a_course(tmp_path_factory, values, size):
    series = Series("a/b", 0, Point(0.0, 0))
    for begin in range(0, len(values), size):
        part = values[begin : begin + size]
        series.add_values([Line(begin + at, {}) for at in range(len(part))], part)
    stride, wild = series.course.stride, [at for at, value in enumerate(values) if not math.isfinite(value)]
    kept = [at for at, value in enumerate(series.course.values) if not math.isfinite(value)]
    assert kept == sorted({at // stride for at in wild})
    assert (series.first_wild.step if wild else None) == (wild[0] if wild else None)


@QUIET
@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=50))
def test_a_sparkline_is_as_long_as_it_may_be(values):
    assert len(format_sparkline(values)) == min(24, len(values))


def test_a_sparkline_shows_the_course():
    assert (
        format_sparkline([0.0, 1.0, 2.0, 3.0]) == "▁▃▆█"
        and format_sparkline([1.0, 1.0]) == "▄▄"
        and format_sparkline([]) == ""
    )
    assert format_sparkline([0.0, math.nan, 3.0, -math.inf]) == "▁×█×" and format_sparkline([math.nan]) == "×"


@pytest.mark.parametrize(
    ("key", "better"),
    [
        ("val/loss", False),
        ("val/acc1_genus", True),
        ("train/step_avg_loss", False),
        ("core/val_loss", False),
        ("lr/head", None),
        ("train/grad_norm", None),
        ("train/step_ms", False),
        ("not a key/at all", None),
    ],
)
def test_the_direction_follows_the_name(key, better):
    if key == "not a key/at all":
        assert resolve_direction(key) in (None, True, False)
    else:
        assert resolve_direction(key) is better


def test_a_curve_keeps_every_extreme():
    curve = Curve("a/b", 0)
    for step in range(1_000_000):
        curve.add_point(step, 1e6 if step == 123_456 else -1e6 if step == 777_777 else math.sin(step))
    points = curve.points
    assert len(points) <= 2 * MAX_BUCKETS and points == sorted(points, key=lambda point: point[0])
    assert (123_456, 1e6) in points and (777_777, -1e6) in points
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(points)]
    assert max(gaps) <= 2 * 1024  # evenly thinned: nowhere more than two buckets are left out


def test_a_curve_keeps_the_steps_that_are_not_finite():
    curve = Curve("a/b", 0)
    for step in range(0, 100, 10):
        curve.add_point(step, math.nan if step in (40, 90) else 1.0 + step)
    assert list(curve.wild_steps) == [40, 90] and math.isnan(curve.last) and len(curve.points) == 8
    axis = draw_graph([curve], 40, 4)[-2]
    assert axis.count("×") == 2 and axis.endswith("×") and "90" in draw_graph([curve], 40, 4)[-1]
    for step in range(100, 20_000):
        curve.add_point(step, math.inf)
    assert len(curve.wild_steps) <= MAX_BUCKETS and curve.wild_steps[0] == 40 and curve.non_finite == 2 + 19_900


def test_smoothing_is_that_of_tensorboard():
    curve, debiased, last = Curve("a/b", 0, smooth=0.9), [], 0.0
    values = [1.0, 3.0, 2.0, 8.0, 0.5]
    for number, value in enumerate(values, 1):
        curve.add_point(number, value)
        last = last * 0.9 + 0.1 * value
        debiased.append(last / (1 - 0.9**number))
    assert [value for _, value in curve.points] == pytest.approx(debiased)


@pytest.mark.parametrize("step", [2**63, -(2**63), 9**99])
def test_a_step_that_no_counter_holds_is_passed_over(tmp_path, step):
    path = write_rows(tmp_path / FILE, Header(), make_row(1, {"train/loss": math.nan}))
    with open(path, "a", encoding="utf-8") as file:
        file.write(f'{{"t":1.0,"step":{step},"values":{{"train/loss":"NaN"}}}}\n{{"step":{step},"loss":1.0}}\n')
    reading = Reading(find_rows_files(str(path)).files)
    curves, _ = collect_curves(reading, [], 0.0)
    assert list(curves["train/loss"][0].wild_steps) == [1] and reading.counts.broken == 2
