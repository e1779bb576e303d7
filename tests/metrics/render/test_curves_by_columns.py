"""Points that come by columns make the curve that they make one by one."""

import math
import random

import pytest

from tdbg.metrics.render.curves import Curve


def draw_points(drawn: random.Random, count: int, *, gaps: bool, wild: bool) -> tuple[list[int], list[float]]:
    """Steps that may stand still, go back or leap, and values that may not be finite."""
    steps, step = [], 0
    for _ in range(count):
        step += drawn.choice([*[1] * 50, 0, -3, 30, 500]) if gaps else 1
        steps.append(step)
    odd = [math.nan, math.inf, -math.inf]
    values = [
        drawn.choice(odd) if wild and drawn.random() < 0.01 else drawn.choice([drawn.random(), 5.0]) for _ in steps
    ]
    return steps, values


@pytest.mark.parametrize("smooth", [0.0, 0.9])
@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("count", [1, 5, 100, 3_000, 9_001, 20_000])
def test_points_by_columns_make_the_same_curve(count: int, gaps: bool, wild: bool, smooth: float) -> None:
    drawn = random.Random(f"{count} {gaps} {wild}")
    steps, values = draw_points(drawn, count, gaps=gaps, wild=wild)
    single, columns = (Curve("loss", 0, smooth=smooth) for _ in range(2))
    for step, value in zip(steps, values, strict=True):
        single.add_point(step, value)
    at = 0
    while at < count:
        end = at + drawn.choice([1, 7, 300, 1_300])
        columns.add_points(steps[at:end], tuple(values[at:end]))
        at = end
    assert columns.points == single.points
    assert (columns.count, columns.non_finite, columns.wild_steps) == (
        single.count,
        single.non_finite,
        single.wild_steps,
    )
    assert columns.breaks.gaps == single.breaks.gaps and columns.breaks.non_finite == single.breaks.non_finite
    assert columns.last == single.last or math.isnan(single.last or 0.0)
