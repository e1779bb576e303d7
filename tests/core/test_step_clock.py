"""When each step was: a thinned clock says it as one that keeps all would, within the time of a few usual steps."""

import bisect
import random

import pytest

from tdbg.core.step_clock import StepClock


def tell_time(points: tuple[list[int], list[float]], step: int) -> float:
    """As the page does: in proportion between the two steps that are known."""
    steps, seconds = points
    at = min(max(bisect.bisect_right(steps, step), 1), len(steps) - 1)
    share = (step - steps[at - 1]) / (steps[at] - steps[at - 1])
    return seconds[at - 1] + share * (seconds[at] - seconds[at - 1])


def make_times(seed: int, count: int) -> dict[int, float]:
    """Steps of 0.1 s, some of them not on record, a few of them long pauses."""
    draw = random.Random(seed)
    pauses = {draw.randrange(count): draw.uniform(20, 2000) for _ in range(draw.randrange(4))}
    t, found = 1e9, {}
    for step in range(1, count):
        t += draw.uniform(0.05, 0.15) + pauses.get(step, 0.0)
        if draw.random() < 0.8 or step in pauses or step + 1 in pauses:
            found[step] = t
    return found


@pytest.mark.parametrize("count", [3, 40, 900, 20_000])
@pytest.mark.parametrize("seed", range(8))
def test_each_step_is_told_within_a_few_steps(seed: int, count: int) -> None:
    times, clock = make_times(seed, count), StepClock(parts=200)
    for step, t in times.items():
        clock.add_record(step, t)
    points = clock.list_points(1e9)
    assert len(points[0]) == len(points[1]) <= 3 * 200 + 1 and points[0] == sorted(set(points[0]))
    assert points[1] == sorted(points[1])
    near = 0.3 + 0.1 * count / 200 * 0.3  # a part has so many steps, of 0.05 to 0.15 s
    if len(points[0]) > 1:
        assert max(abs(tell_time(points, step) - (t - 1e9)) for step, t in times.items()) < near


def test_what_goes_back_is_passed_over() -> None:
    clock = StepClock()
    for step, t in ((1, 10.0), (2, 11.0), (2, 12.0), (1, 13.0), (3, 9.0), (4, 14.0)):
        clock.add_record(step, t)
    assert clock.list_points(10.0) == ([1, 2, 4], [0.0, 1.0, 4.0])


def test_a_process_without_steps_has_no_times() -> None:
    assert StepClock().list_points(5.0) == ([], [])
