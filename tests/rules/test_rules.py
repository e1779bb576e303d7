"""Every rule of the table, as a table."""

import re
from pathlib import Path

import pytest

import tdbg.rules
from tdbg.core.errors import TdbgError
from tdbg.core.events import SEVERITIES, Finding
from tdbg.rules import RULES, check_words, is_at_least, matches_words

LETTERS = "NGDLMSARCP"
SECTIONS = ("What it does:", "Why it matters:", "Example:", "What to do:", "Thresholds:")


@pytest.mark.parametrize("rule", list(RULES), ids=lambda rule: rule.code)
def test_each_rule_is_whole(rule):
    assert re.fullmatch(rf"TD-[{LETTERS}]\d{{3}}", rule.code) and rule.name == rule.code
    assert rule.severity in SEVERITIES and rule.title and not rule.title.endswith(".")
    assert rule.__module__.rpartition(".")[2].startswith(rule.code[3:].lower() + "_")


@pytest.mark.parametrize("rule", list(RULES), ids=lambda rule: rule.code)
def test_each_page_has_all_sections_and_an_example_of_its_own(rule):
    page = rule.page()
    places = [page.index(f"\n{section}") for section in SECTIONS]
    assert places == sorted(places)
    assert f"    {rule.code} " in page
    assert all(len(line) <= 112 for line in page.splitlines())


@pytest.mark.parametrize("rule", list(RULES), ids=lambda rule: rule.code)
def test_pages_name_only_codes_that_exist(rule):
    for code in re.findall(r"TD-[A-Z]\d{3}", rule.page()):
        assert code in RULES


def test_codes_come_in_order():
    assert RULES.names() == sorted(RULES.names())


def test_a_rule_is_one_file():
    files = [path.stem for path in Path(tdbg.rules.__file__).parent.glob("[a-z][0-9][0-9][0-9]_*.py")]
    assert len(files) == len(RULES.names())


def test_severities_are_ordered():
    assert (
        is_at_least("critical", "warning")
        and not is_at_least("info", "warning")
        and not is_at_least("critical", "never")
    )


def test_words_of_stop_on():
    finding = Finding(code="TD-N001", severity="critical", title="x")
    assert (
        matches_words(finding, ["td-n001"]) and matches_words(finding, ["TD-N"]) and matches_words(finding, ["error"])
    )
    assert not matches_words(finding, []) and not matches_words(finding, ["TD-R001"])
    check_words(["TD-N", "critical", "TD-R002"])


@pytest.mark.parametrize(("word", "near"), [("TD-N044", "TD-N00"), ("critcal", "critical"), ("x", "name a code")])
def test_words_that_ask_for_nothing(word, near):
    with pytest.raises(TdbgError) as caught:
        check_words([word])
    assert near in caught.value.hint
