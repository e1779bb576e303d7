"""docs/levels.md has a row for every code, named at the default level or with the reason why not."""

from pathlib import Path

import pytest

from tdbg.core.rule_base import RULE_CATALOG
from tdbg.rules._order import GRADES
from tests.e2e.levels import ROOT, Planted, iter_planted
from tests.e2e.levels.__main__ import (
    NOT_IN_BASIC,
    NOT_PLANTED,
    NOT_RUN,
    PAGE,
    build_page,
    describe_fault,
    index_rows,
    list_reasons,
)

TRIAL_KIND = "(one batch)"
FAULTS = {fault.kind: fault for fault in iter_planted()}


def test_every_code_of_every_family_is_planted_or_says_why_not() -> None:
    codes = {rule.code for rule in RULE_CATALOG}
    assert codes == {fault.code for fault in FAULTS.values()} | set(NOT_PLANTED)
    for code, (_, test) in NOT_PLANTED.items():
        assert code in Path(ROOT, test).read_text(), test


def test_the_page_has_every_planted_fault_and_no_other() -> None:
    page = PAGE.read_text()
    assert page == build_page(index_rows(page)), "write it: python -m tests.e2e.levels KIND"
    assert {kind: row.split("|")[2].strip() for kind, row in index_rows(page).items()} == {
        fault.kind: fault.code for fault in FAULTS.values()
    }


@pytest.mark.parametrize("kind", FAULTS)
def test_each_is_named_at_the_default_level_or_has_a_reason_and_its_twin_is_silent(kind: str) -> None:
    cells = split_row(index_rows(PAGE.read_text())[kind])
    if set(cells[3:9]) == {NOT_RUN}:
        pytest.skip(f"run it: python -m tests.e2e.levels '{kind}'")
    assert cells[3].startswith("-") or FAULTS[kind].code == "TD-R002", (
        "only the launcher's side sees anything at level off"
    )
    if cells[4].startswith("-"):
        assert FAULTS[kind].code in NOT_IN_BASIC or kind.endswith(TRIAL_KIND)
    named = [cell for cell in cells[4:8] if not cell.startswith("-")]
    assert named and all(cell.partition(";")[0].rpartition(", ")[2] in GRADES for cell in named)
    assert cells[8] == "silent"


def test_a_reason_stands_only_where_the_default_level_does_not_name_the_code() -> None:
    rows = [row for row in map(split_row, index_rows(PAGE.read_text()).values()) if row[4] != NOT_RUN]
    named = {row[2] for row in rows if not row[4].startswith("-") and "--flag" not in row[1]}
    assert not named & set(list_reasons())
    assert {row[2] for row in rows} - named <= set(list_reasons())


def split_row(row: str) -> list[str]:
    return [cell.strip() for cell in row.split("|")]


def test_a_cell_says_step_grade_and_what_comes_before() -> None:
    fault = Planted("x", "TD-S006", [], [])
    named = {"code": "TD-S006", "first_step": 3, "grade": "located"}
    assert describe_fault(fault, []) == "-"
    assert describe_fault(fault, [named]) == "step 3, located"
    assert describe_fault(fault, [{"code": "TD-G003"}, named]) == "step 3, located; after TD-G003"
    assert describe_fault(fault, [{"code": "TD-G003"}]) == "- (TD-G003)"
