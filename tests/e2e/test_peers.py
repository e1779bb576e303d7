"""docs/peers.md has a row for every check that torchtest2, torch-audit and guardtower document, with a reason for silence."""

import pytest

from tests.e2e.peers.__main__ import CASES, NOT_RUN, ONLY_TRIED, PAGE, build_page, explain_silence, read_rows
from tests.e2e.peers.programs import build_setup

ROWS = read_rows(PAGE.read_text(encoding="utf-8"))


def test_the_page_is_made_of_the_cases() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == build_page(ROWS), "write it: python -m tests.e2e.peers KIND --page"
    assert not ROWS.keys() - CASES.keys() - {"training"}


@pytest.mark.parametrize("kind", CASES)
def test_a_fault_is_named_or_its_silence_has_a_reason_and_no_twin_is_complained_of(kind: str) -> None:
    assert bool(CASES[kind].codes) != bool(CASES[kind].why), "named, or silent for a reason"
    run, preflight, twin = ROWS[kind][3:6]
    assert "tdbg" not in twin
    codes = {code.partition(" ")[0] for code in f"{run}, {preflight}".split(", ")}
    assert run == NOT_RUN or codes & set(CASES[kind].codes) or CASES[kind].why


def test_what_only_preflight_tries_says_so() -> None:
    assert explain_silence("wrong-derivative", "-") == ONLY_TRIED
    assert explain_silence("wrong-derivative", "TD-G006") == ""
    assert explain_silence("channels-last", "-") == explain_silence("channels-last", "TD-K001 (note)") != ""


@pytest.mark.parametrize("kind", CASES)
def test_a_healthy_twin_trains(kind: str) -> None:
    setup = build_setup(kind, faulty=False)
    loss = setup.loss(setup.model(*setup.inputs), setup.targets)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.isfinite() and any(p.grad is not None for p in setup.model.parameters())
