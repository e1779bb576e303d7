"""Curves on a terminal, drawn in braille dots. Standard library alone."""

from collections.abc import Sequence

from tdbg.core.tables import format_cell
from tdbg.metrics.render.curves import Curve
from tdbg.metrics.rows.series import WILD

DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a letter: by column, then by row
BLANK = 0x2800


def draw_graph(curves: Sequence[Curve], width: int, height: int) -> list[str]:
    """Curves that share their axes, as lines of text: ``width`` columns in all, ``height`` rows and two of axis.

    A cross on the axis is a step whose value is not finite.
    """
    shown = [points for one in curves if (points := one.points)]
    if not shown:
        return []
    every = [point for points in shown for point in points]
    wild = [step for one in curves for step in one.wild_steps]
    steps = [*wild, *(step for step, _ in every)]
    first, last = min(steps), max(steps)
    low, high = min(value for _, value in every), max(value for _, value in every)
    labels = [format_cell(high), format_cell(low / 2 + high / 2), format_cell(low)]
    margin = max(map(len, labels))
    columns = max(width - margin - 2, 10)
    dots = [[0] * columns for _ in range(height)]
    for one in shown:
        _draw_curve(dots, one, (first, last), (low, high))
    rows = ["".join(chr(BLANK + bits) if bits else " " for bits in row).rstrip() for row in dots]
    named = {0: labels[0], height // 2: labels[1], height - 1: labels[2]} if high > low else {height // 2: labels[0]}
    lines = [f"{named.get(at, ''):>{margin}} │{row}" for at, row in enumerate(rows)]
    axis = ["─"] * columns
    for step in wild:
        axis[round((step - first) / (last - first) * (columns - 1)) if last > first else columns // 2] = WILD
    lines.append(f"{'':>{margin}} └{''.join(axis)}")
    ends = f"{first:,}", f"{last:,}"
    gap = max(columns - len(ends[0]) - len(ends[1]), 1)
    lines.append(f"{'':>{margin}}  {ends[0]}{' ' * gap}{ends[1]}" if last > first else f"{'':>{margin}}  {ends[0]}")
    return lines


def _draw_curve(
    dots: list[list[int]], points: Sequence[tuple[int, float]], steps: tuple[int, int], values: tuple[float, float]
) -> None:
    """A line from point to point."""
    across, down = len(dots[0]) * 2 - 1, len(dots) * 4 - 1
    before: tuple[int, int] | None = None
    for step, value in points:
        x = round((step - steps[0]) / (steps[1] - steps[0]) * across) if steps[1] > steps[0] else across // 2
        y = round(_compute_share(value, *values) * down)
        x = min(max(x, 0), across)
        at = before or (x, y)
        count = max(abs(x - at[0]), abs(y - at[1]), 1)
        for number in range(count + 1):
            column, row = at[0] + (x - at[0]) * number // count, at[1] + (y - at[1]) * number // count
            dots[row // 4][column // 2] |= DOTS[column % 2][row % 4]
        before = (x, y)


def _compute_share(value: float, low: float, high: float) -> float:
    """How far below the top a value stands, from 0 to 1; the middle if all are equal."""
    if not high > low:
        return 0.5
    scale = max(abs(low), abs(high))  # so that no difference overflows
    return (high / scale - value / scale) / (high / scale - low / scale)
