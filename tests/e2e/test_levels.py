"""docs/levels.md has a row for every code, named at the default level or with the reason why not."""

from pathlib import Path

import pytest

from tdbg.rules import RULES
from tests.e2e.levels import ROOT, Planted, iter_planted
from tests.e2e.levels.__main__ import HEAD, NOT_IN_BASIC, NOT_PLANTED, PAGE, build_rest, describe_fault, index_rows

FAULTS = {fault.kind: fault for fault in iter_planted()}


def test_every_code_is_planted_or_says_why_not() -> None:
    RULES.load()
    codes = {rule.code for rule in RULES}
    assert codes == {fault.code for fault in FAULTS.values()} | set(NOT_PLANTED)
    for code, (_, test) in NOT_PLANTED.items():
        assert code in Path(ROOT, test).read_text(), test


def test_the_page_has_every_planted_fault_and_no_other() -> None:
    page = PAGE.read_text()
    assert page.startswith(HEAD) and page.endswith(build_rest())
    assert {kind: row.split("|")[2].strip() for kind, row in index_rows(page).items()} == {
        fault.kind: fault.code for fault in FAULTS.values()
    }


@pytest.mark.parametrize("kind", FAULTS)
def test_each_is_named_at_the_default_level_or_has_a_reason_and_its_twin_is_silent(kind: str) -> None:
    cells = [cell.strip() for cell in index_rows(PAGE.read_text())[kind].split("|")]
    assert cells[3].startswith("-") or FAULTS[kind].code == "TD-R002", (
        "only the launcher's side sees anything at level off"
    )
    if cells[4].startswith("-"):
        assert FAULTS[kind].code in NOT_IN_BASIC or kind.endswith("(one batch)")
    assert any(not cell.startswith("-") for cell in cells[4:8])
    assert cells[8] == "silent"


def test_a_cell_says_step_grade_and_what_comes_before() -> None:
    fault = Planted("x", "TD-S006", [], [])
    named = {"code": "TD-S006", "first_step": 3, "grade": "located"}
    assert describe_fault(fault, []) == "-"
    assert describe_fault(fault, [named]) == "step 3, located"
    assert describe_fault(fault, [{"code": "TD-G003"}, named]) == "step 3, located; after TD-G003"
    assert describe_fault(fault, [{"code": "TD-G003"}]) == "- (TD-G003)"
