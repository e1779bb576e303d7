"""Who called whom, held against a stack that sees one span after the other."""

import random

import numpy as np
import pytest

from tdbg.traces.analyze import span_nesting
from tdbg.traces.analyze.span_nesting import Sums, find_parents, list_call_chain


def nest_by_stack(spans: list[tuple[int, int]]) -> list[int]:
    stack: list[tuple[int, int]] = []
    found = []
    for place, (start, end) in enumerate(spans):
        while stack and stack[-1][0] <= start:
            stack.pop()
        found.append(stack[-1][1] if stack else -1)
        stack.append((end, place))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_callers_are_those_of_a_stack(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_nesting, "LEVELS", seed % 5)  # deeper ones are found in another way
    draw = random.Random(seed)
    starts = sorted(draw.randrange(60) for _ in range(draw.randrange(1, 80)))
    spans = [(start, start + draw.choice((0, 1, 3, 10, 40))) for start in starts]  # some overlap: torn or rounded times
    found = find_parents(np.array([one for one, _ in spans]), np.array([one for _, one in spans]))
    assert found.tolist() == nest_by_stack(spans)


def test_a_tower_of_calls() -> None:
    size = 5_000
    starts = np.arange(size)
    found = find_parents(starts, 2 * size - starts)
    assert found.tolist() == list(range(-1, size - 1))
    assert list_call_chain(found, size - 1) == list(range(size))


def test_nothing() -> None:
    none = np.zeros(0, np.int64)
    assert find_parents(none, none).tolist() == []
    assert list_call_chain(none, -1) == []


def test_sums_grow() -> None:
    sums = Sums()
    sums.add_values(np.array([1, 1, 5_000]), np.array([2, 3, 4]))
    sums.add_values(np.array([0]), 7)
    assert sums.get_first_sums(3) == [7, 5, 0] and sums.get_first_sums(5_001)[-1] == 4
    assert Sums().get_first_sums(2_000) == [0] * 2_000
