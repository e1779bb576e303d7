"""`tdbg flags`: the table, and one flag."""

import json

import pytest

from tdbg.cli import main
from tdbg.core.flags import FLAGS, tag


def test_the_list_has_a_line_per_flag(capsys):
    assert main(["flags", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("\t") == ["flag", "group", "also", "summary"]
    assert [line.split("\t")[0] for line in lines[1:]] == [flag.name for flag in FLAGS]


def test_the_list_says_which_flag_and_rule_are_for_a_hung_job(capsys):
    assert main(["flags", "list"]) == 0
    (row,) = [line.split("\t") for line in capsys.readouterr().out.splitlines() if "hung job" in line]
    assert row[0] == "DISTRIBUTED" and "TD-R006" in row[-1]


def test_the_list_as_json(capsys):
    assert main(["flags", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["version"]) == ("flags", 1)
    first = found["data"][0]
    assert set(first) == {"flag", "group", "tag", "summary", "help", "aliases", "presets", "probe", "default"}
    assert {item["flag"]: item["tag"] for item in found["data"]} == {flag.name: tag(flag.name) for flag in FLAGS}


@pytest.mark.parametrize(
    "name", ["GRADIENTS", "gradients", "DEBUG.GRADIENTS", "gradient_norms", "enable_gradient_norms"]
)
def test_one_flag_by_any_of_its_names(name, capsys):
    assert main(["flags", "show", name]) == 0
    out = capsys.readouterr().out
    assert out.startswith("GRADIENTS\n") and "[DEBUG_GRADIENTS]" in out and "numerics" in out


def test_a_family_shows_all_below_it(capsys):
    assert main(["flags", "show", "LOSS", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["data"]
    assert [item["flag"] for item in found] == [flag.name for flag in FLAGS if flag.name.startswith("LOSS.")]


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_flag_can_be_shown(flag, capsys):
    assert main(["flags", "show", flag.name]) == 0
    out = capsys.readouterr().out
    assert flag.summary in out and flag.help in out and f"-f {flag.name} " in out
