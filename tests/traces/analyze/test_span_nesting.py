"""Who called whom, held against a stack that sees one span after the other."""

import random

import numpy as np
import pytest

from tdbg.traces.analyze import span_nesting
from tdbg.traces.analyze.span_nesting import Sums, chain, parents


def by_stack(spans: list[tuple[int, int]]) -> list[int]:
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
    found = parents(np.array([one for one, _ in spans]), np.array([one for _, one in spans]))
    assert found.tolist() == by_stack(spans)


def test_a_tower_of_calls() -> None:
    size = 5_000
    starts = np.arange(size)
    found = parents(starts, 2 * size - starts)
    assert found.tolist() == list(range(-1, size - 1))
    assert chain(found, size - 1) == list(range(size))


def test_nothing() -> None:
    none = np.zeros(0, np.int64)
    assert parents(none, none).tolist() == []
    assert chain(none, -1) == []


def test_sums_grow() -> None:
    sums = Sums()
    sums.add(np.array([1, 1, 5_000]), np.array([2, 3, 4]))
    sums.add(np.array([0]), 7)
    assert sums.first(3) == [7, 5, 0] and sums.first(5_001)[-1] == 4
    assert Sums().first(2_000) == [0] * 2_000
