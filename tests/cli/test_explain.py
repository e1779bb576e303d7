"""`tdbg explain`: the page of every rule."""

import json

import pytest

from tdbg.cli import main
from tdbg.metrics.sanity import RULES as METRICS
from tdbg.rules import RULES
from tdbg.traces.rules import RULES as ADVICE

ALL = [*RULES.names(), *METRICS.names(), *ADVICE.names()]


@pytest.mark.parametrize("code", RULES.names())
def test_every_code_is_explained(code, capsys):
    assert main(["explain", code]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{code} ({RULES[code].severity}): {RULES[code].title}\n") and RULES[code].page() in out


@pytest.mark.parametrize("code", ADVICE.names())
def test_every_advice_is_explained(code, capsys):
    assert main(["explain", code.lower()]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{code} (advice): {ADVICE[code].title}\n") and ADVICE[code].page() in out


def test_no_code_is_both_a_finding_and_an_advice():
    assert len(ALL) == len(set(ALL))


@pytest.mark.parametrize("spelling", ["td-n001", "N001", "n001", "TDN001", " TD-N001 "])
def test_a_code_in_any_spelling(spelling, capsys):
    assert main(["explain", spelling]) == 0
    assert capsys.readouterr().out.startswith("TD-N001 ")


def test_without_a_code_all_are_listed(capsys):
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["code", *ALL]


def test_json(capsys):
    assert main(["explain", "TD-N001", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["kind"] == "rule" and set(one["data"]) == {"code", "severity", "title", "page"}
    assert main(["explain", "--json"]) == 0
    assert [item["code"] for item in json.loads(capsys.readouterr().out)["data"]] == ALL


@pytest.mark.parametrize("code", ["TD-X999", "", "TD-"])
def test_an_unknown_code_is_wrong_use(code, capsys):
    assert main(["explain", code]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize(
    ("code", "near"),
    [("XX", "`tdbg explain` lists all"), ("n00", "did you mean TD-N00"), ("p118", "did you mean TD-P11")],
)
def test_an_unknown_code_is_told_in_the_words_of_its_user(code, near, capsys):
    assert main(["explain", code]) == 2
    what, hint = capsys.readouterr().err.splitlines()
    assert what.endswith(f"no finding has the code '{code}'") and near in hint


def test_a_word_is_searched_in_titles_and_texts(capsys):
    assert main(["explain", "nan"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    codes = [row[0] for row in rows]
    assert rows[0] == ["code", "severity", "title"]
    titled = [row for row in rows[1:] if "NaN" in row[2]]
    assert rows[1 : 1 + len(titled)] == titled and "TD-N001" in codes, "those with the word in the title come first"
    assert len(titled) < len(rows) - 1, "texts are searched too"
    assert main(["explain", "loss", "nan"]) == 0
    both = capsys.readouterr().out
    assert "TD-N002" in both and len(both.splitlines()) < len(rows)


@pytest.mark.parametrize("word", ["hang", "hangs", "hung"])
def test_a_job_that_hangs_leads_to_its_rule_first(word, capsys):
    assert main(["explain", word]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("TD-R006\t")


def test_words_are_searched_with_json(capsys):
    assert main(["explain", "memory", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "rules" and "TD-M001" in [item["code"] for item in found["data"]]


def test_a_word_that_stands_nowhere_is_wrong_use(capsys):
    assert main(["explain", "qwertz"]) == 2
    assert "no finding has the code 'qwertz'" in capsys.readouterr().err


def test_several_codes_are_explained_one_after_the_other(capsys):
    assert main(["explain", "n001", "TD-P101", "TD-N001"]) == 0
    printed = capsys.readouterr().out
    assert [line[:8] for line in printed.splitlines() if line.startswith("TD-")] == ["TD-N001 ", "TD-P101 "]
    assert main(["explain", "n001", "p101", "--json"]) == 0
    assert [rule["code"] for rule in json.loads(capsys.readouterr().out)["data"]] == ["TD-N001", "TD-P101"]


def test_of_several_codes_a_wrong_one_is_told_before_anything_is_printed(capsys):
    assert main(["explain", "n001", "TD-N999"]) == 2
    assert capsys.readouterr().out == ""
