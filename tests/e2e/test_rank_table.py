"""Of the table of faults on several ranks, what hangs.py and slow_ranks.py do not have; all of it is a command's."""

import pytest

from tests.e2e.conftest import Runner
from tests.e2e.rank_table.cases import FAULTS, HEALTHY, Case, list_cases

KINDS = (
    *("order", "shape", "group", "exit-0", "exit-1", "raise", "kill", "segfault", "memory"),
    *("weights", "data", "hooks", "none"),
)


@pytest.mark.cold
@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_is_right(kind: str, watched_runner: Runner) -> None:
    case = Case(kind, 2, "torchrun")
    result = watched_runner(case.build_command(), case.options)
    assert case.judge_answer(result.verdict["findings"]) == "", result.stderr


def test_every_fault_has_its_program_and_each_rank_is_at_fault_somewhere() -> None:
    cases = list_cases()
    assert len({case.kind for case in cases}) == len(FAULTS) + len(HEALTHY) == 31
    assert {case.rank for case in cases if case.ranks == 4} == {0, 1, 2, 3}
