"""Many series of one kind as a grid in constant memory: a row each, and columns of equally many records.

What comes out is plain data, which ``web/charts.js`` draws as a heat map.
"""

import math
from array import array
from collections.abc import Sequence
from typing import TypedDict

from tdbg.core.curve_points import MAX_STEP, round_value
from tdbg.core.events import Number

NOTHING, NOT_FINITE = math.nan, math.inf  # what a cell holds without a value, and after a NaN or Inf


class HeatData(TypedDict):
    """A grid for ``drawHeat``: values by row and column, None without one. not_finite: row and column of each such cell."""

    x: list[int]
    rows: list[str]
    values: list[list[float | None]]
    not_finite: list[tuple[int, int]]


class HeatGrid:
    """A row a series; each cell holds the most of its values. Two neighbouring columns become one where there are too many.

    names: of all series; of more than ``most_rows`` some are left out, evenly, never the first and the last.
    """

    def __init__(self, names: Sequence[str], most_rows: int = 60, most_columns: int = 80) -> None:
        self._count = len(names)
        shown = min(self._count, most_rows)
        self._places = [round(at * (self._count - 1) / max(shown - 1, 1)) for at in range(shown)]
        self.names = [names[place] for place in self._places]
        self._most_columns = max(most_columns, 2) & ~1
        self._size = 1  # records of a whole column
        self._held = 0  # records of the last one
        self._steps: list[int] = []  # the first of each column
        self._columns: list[array[float]] = []

    @property
    def omitted_rows(self) -> int:
        """How many series have no row."""
        return self._count - len(self.names)

    def add_record(self, step: int, values: Sequence[Number]) -> None:
        """A value of each series, below 0 for none; a record of another length is passed over."""
        if len(values) != self._count or not self._count or not -MAX_STEP < step < MAX_STEP:
            return
        record = array("d", [_as_cell(values[place]) for place in self._places])
        if 0 < self._held < self._size:
            self._columns[-1] = _merge_maxima(self._columns[-1], record)
            self._held += 1
            return
        if len(self._columns) >= self._most_columns:
            self._columns = [_merge_maxima(*self._columns[at : at + 2]) for at in range(0, len(self._columns), 2)]
            self._steps = self._steps[::2]
            self._size *= 2
        self._columns.append(record)
        self._steps.append(step)
        self._held = 1

    def as_data(self) -> HeatData:
        """The grid as plain data."""
        values: list[list[float | None]] = []
        not_finite: list[tuple[int, int]] = []
        for row in range(len(self.names)):
            cells = [column[row] for column in self._columns]
            values.append([round_value(cell) if math.isfinite(cell) else None for cell in cells])
            not_finite += [(row, column) for column, cell in enumerate(cells) if cell == NOT_FINITE]
        return {"x": list(self._steps), "rows": list(self.names), "values": values, "not_finite": not_finite}


def _as_cell(value: Number) -> float:
    if type(value) is float or type(value) is int:
        if not math.isfinite(value):
            return NOT_FINITE
        return float(value) if value >= 0 else NOTHING
    return NOT_FINITE


def _merge_maxima(one: "array[float]", other: "array[float]") -> "array[float]":
    """Cell by cell the larger one; one of two without a value counts for both."""
    return array("d", [b if a != a or b > a else a for a, b in zip(one, other, strict=True)])
