"""A grid holds the most of each cell, in a limited number of rows and columns."""

import json
import math

import pytest

from tdbg.core.heat_grid import HeatGrid


def test_a_small_grid_stays_as_it_is():
    grid = HeatGrid(["a", "b"])
    grid.add_record(1, [0.5, -1])
    grid.add_record(3, [0.0, 2.0])
    assert grid.as_data() == {"x": [1, 3], "rows": ["a", "b"], "values": [[0.5, 0.0], [None, 2.0]], "not_finite": []}


def test_of_many_rows_some_are_left_out_and_never_the_first_and_the_last():
    grid = HeatGrid([f"p{number}" for number in range(1000)], most_rows=60)
    grid.add_record(1, [float(number) for number in range(1000)])
    data = grid.as_data()
    assert len(data["rows"]) == len(data["values"]) == 60 and grid.omitted_rows == 940
    assert (data["rows"][0], data["rows"][-1]) == ("p0", "p999") and len(set(data["rows"])) == 60
    assert all(name == f"p{row[0]:.0f}" for name, row in zip(data["rows"], data["values"], strict=True))


@pytest.mark.parametrize("count", [79, 80, 81, 160, 161, 5000])
def test_columns_hold_the_most_of_their_records(count):
    grid = HeatGrid(["a"], most_columns=80)
    for step in range(count):
        grid.add_record(step, [1000.0 if step == count // 2 else 1.0])
    data = grid.as_data()
    assert len(data["x"]) == len(data["values"][0]) <= 80
    assert data["values"][0].count(1000.0) == 1 and data["x"] == sorted(data["x"])
    at = data["values"][0].index(1000.0)
    assert data["x"][at] <= count // 2 < (data["x"][at + 1] if at + 1 < len(data["x"]) else count)


def test_a_nan_outlives_thinning():
    grid = HeatGrid(["a", "b"], most_columns=4)
    for step in range(100):
        grid.add_record(step, ["nan" if step == 50 else 1.0, math.inf if step == 99 else -1])
    data = grid.as_data()
    assert [row for row, _ in data["not_finite"]] == [0, 1]
    assert json.dumps(data, allow_nan=False)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 3.0]])
def test_a_record_of_another_length_is_passed_over(values):
    grid = HeatGrid(["a", "b"])
    grid.add_record(1, values)
    assert grid.as_data()["x"] == []


def test_nothing_and_one():
    assert HeatGrid([]).as_data()["rows"] == []
    grid = HeatGrid(["a"])
    grid.add_record(1 << 60, [1.0])
    grid.add_record(2, ["what"])
    assert grid.as_data()["not_finite"] == [(0, 0)]
