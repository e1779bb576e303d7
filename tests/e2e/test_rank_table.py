"""Of the table of faults on several ranks every fourth kind once; all of it is a command's."""

import pytest

from tests.e2e.conftest import Runner
from tests.e2e.rank_table.cases import (
    FAULTS,
    HEALTHY,
    TWINS,
    Case,
    find_planted_lines,
    list_cases,
    list_tested,
)


@pytest.mark.cold
@pytest.mark.parametrize("case", list_tested(), ids=lambda case: case.kind)
def test_the_answer_is_right(case: Case, watched_runner: Runner) -> None:
    result = watched_runner(case.build_command(), case.options)
    said = case.judge_answer(result.verdict["findings"]) or case.judge_live(result.folder)
    assert said == "", result.stderr


def test_every_fault_has_its_program_and_its_twin_and_each_rank_is_at_fault_somewhere() -> None:
    cases = list_cases()
    assert len({case.kind for case in cases}) == len(FAULTS) + len(HEALTHY) == 2 * 30 + 4
    assert len(set(TWINS)) == len(TWINS) == len(FAULTS) and not set(TWINS) & set(FAULTS)
    assert {case.rank for case in cases if case.ranks == 4} == {0, 1, 2, 3}


HANGING = Case("sleep", 2, "torchrun")
RIGHT = {
    "code": "TD-R006",
    "severity": "error",
    "rank": HANGING.rank,
    "title": f"rank {HANGING.rank} does not come: it is asleep at {find_planted_lines('sleep')[0]} in fall_asleep",
}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, ""),
        ({"title": RIGHT["title"].replace("hangs.py:", "hangs.py:9")}, "without the line"),
        ({"title": "rank 1 hangs"}, "without 'asleep at'"),
        ({"rank": 1 - HANGING.rank}, "is named as well"),
        ({"code": "TD-R001"}, "not told"),
        ({"severity": "info"}, "not told"),
    ],
)
def test_a_wrong_rank_kind_or_line_is_no_right_answer(values: dict[str, object], said: str) -> None:
    answer = HANGING.judge_answer([{**RIGHT, **values}])
    assert said in answer if said else answer == ""


@pytest.mark.parametrize(("delay_s", "said"), [(3.5, ""), (7.9, ""), (8.1, "told 8.1 s"), (None, "not told while")])
def test_a_hang_must_be_told_within_the_limit_and_one_confirmation(delay_s: float | None, said: str) -> None:
    answer = HANGING.judge_delay(delay_s)
    assert said in answer if said else answer == ""
    assert Case("kill", 2, "torchrun").judge_delay(delay_s) == ""
