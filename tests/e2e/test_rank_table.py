"""A quarter of the table of faults on several ranks, drawn so that each kind comes at least once."""

import random

import pytest

from tests.e2e.conftest import Runner
from tests.e2e.rank_table.cases import FAULTS, HEALTHY, Case, list_cases


def draw_cases() -> list[Case]:
    """One launcher and one number of ranks for each kind, and others up to a quarter of all."""
    draw = random.Random(0)
    cases = list_cases()
    first = [draw.choice([case for case in cases if case.kind == kind]) for kind in (*FAULTS, *HEALTHY)]
    rest = [case for case in cases if case not in first]
    return [*first, *draw.sample(rest, max(len(cases) // 4 - len(first), 0))]


@pytest.mark.cold
@pytest.mark.parametrize("case", draw_cases(), ids=lambda case: f"{case.kind}-{case.ranks}-{case.by}")
def test_the_answer_is_right(case: Case, watched_runner: Runner) -> None:
    result = watched_runner(case.build_command(), case.options)
    assert case.judge_answer(result.verdict["findings"]) == "", result.stderr
