"""Registries, errors and output."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tdbg.core import errors, output, tables
from tdbg.core.events import Finding
from tdbg.core.registry import Registry, points_of
from tdbg.core.rule_base import RULE_CATALOG
from tdbg.rules import matches_words


class Thing:
    def __init__(self, name: str) -> None:
        self.name = name


def test_a_registry_keeps_order_and_refuses_doubles() -> None:
    things: Registry[Thing] = Registry("thing")
    one, two = things.add(Thing("zeta")), things.add(Thing("alpha"))
    assert list(things) == [one, two]
    assert things["alpha"] is two and "zeta" in things and things.names() == ["zeta", "alpha"]
    with pytest.raises(ValueError, match="two things are named"):
        things.add(Thing("zeta"))
    with pytest.raises(errors.TdbgError, match="no thing is named 'zetta'") as caught:
        things["zetta"]
    assert caught.value.hint == "did you mean zeta?"
    with pytest.raises(errors.TdbgError) as caught:
        things["q"]
    assert caught.value.hint == "known: zeta, alpha"


def test_the_order_is_that_of_the_files_whatever_was_loaded_first() -> None:
    """Pages that are generated from a registry would differ otherwise."""
    code = "from tdbg.rules import RULES; {}; print(*RULES.names())"
    loaded = [
        code.format(first) for first in ("pass", "RULES.load_from_files(['s012_learns_nothing', 'd001_bad_batch'])")
    ]
    plain, after = (subprocess.run([sys.executable, "-c", one], capture_output=True, text=True) for one in loaded)
    assert plain.stdout == after.stdout and plain.stdout.startswith("TD-A001 ")


def test_third_parties_join_through_entry_points(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "things-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: things\nVersion: 1.0\n")
    points = "[tdbg.things]\ngood = tests.core.test_registry:THIRD\nbroken = tests.nowhere:X\n"
    (package / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    things: Registry[Thing] = Registry("thing", group="tdbg.things")
    assert things["third"] is THIRD
    again: Registry[Thing] = Registry("thing", group="tdbg.things")
    (failed,) = again.load_third_party()
    assert failed.startswith("thing 'broken' of tests.nowhere:X:")
    assert again.load_third_party() == []


def test_nobody_is_looked_up_in_packages_that_name_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(group: str) -> None:
        raise AssertionError(group)

    monkeypatch.setattr("importlib.metadata.entry_points", refuse)
    assert points_of("tdbg.nobody") == {}


@pytest.mark.parametrize("name", ["model-build", "device"])
def test_a_stranger_may_not_take_the_name_of_one_of_ours(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(THIRD, "name", name)
    probes: Registry[Thing] = Registry("probe", package="tdbg.probes", group="tdbg.probes")
    (failed,) = probes.add_entry_points({"mine": "tests.core.test_registry:THIRD"})
    assert failed.endswith(f"{name!r} is the name of a built-in probe")
    assert list(probes.broken) == ["tests.core.test_registry:THIRD"] and probes.list_third_party() == []
    monkeypatch.undo()
    assert probes.add_entry_points({"mine": "tests.core.test_registry:THIRD"}) == [] and probes.list_third_party() == [
        THIRD
    ]


@pytest.mark.parametrize(
    ("package", "code"), [("tdbg.rules", "TD-N002"), ("tdbg.rules", "td-n002"), ("tdbg.traces.rules", "TD-P101")]
)
def test_a_stranger_may_not_take_the_code_of_a_rule_of_ours(
    package: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of rules are named after their codes and a word: n002_dead_run."""
    monkeypatch.setattr(THIRD, "name", code)
    kind = importlib.import_module(package).RULES
    rules: Registry[Thing] = Registry("rule", package=package, group=kind.group, is_numbered=kind._is_numbered)
    (failed,) = rules.add_entry_points({"mine": "tests.core.test_registry:THIRD"})
    assert failed == f"rule 'mine' of tests.core.test_registry:THIRD: {code!r} is the name of a built-in rule"
    assert rules.list_third_party() == []


def test_every_code_of_ours_is_protected() -> None:
    for registry in RULE_CATALOG.iter_registries():
        assert [name for name in registry.names() if not registry._is_built_in(name)] == []


@pytest.mark.parametrize("code", ["ACME.1", "ACME-1", "TD-N999", "TD-Z001"])
def test_a_stranger_may_have_any_other_code(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(THIRD, "name", code)
    rules: Registry[Thing] = Registry("rule", package="tdbg.rules", group="tdbg.rules", is_numbered=True)
    assert rules.add_entry_points({"mine": "tests.core.test_registry:THIRD"}) == []
    assert rules.list_third_party() == [THIRD] and rules[code] is THIRD


def test_a_code_of_a_stranger_stops_a_run_as_ours_do() -> None:
    finding = Finding(code="ACME.1", severity="info", title="")
    assert matches_words(finding, ["acme.1"]) and matches_words(finding, ["ACME"]) and matches_words(finding, ["info"])
    assert not matches_words(finding, ["ACME.2", "warning", "never", "TD-N001"])


THIRD = Thing("third")


def test_every_error_has_its_exit_code() -> None:
    every = (errors.TdbgError, *errors.TdbgError.__subclasses__())
    codes = {cls.__name__: cls.exit_code for cls in every if cls.__module__ == errors.__name__}
    assert {cls.exit_code for cls in every if cls.__name__ not in codes} <= {2}, "those of the domains are wrong use"
    assert codes == {"TdbgError": 2, "LaunchError": 125, "NotExecutableError": 126, "CommandNotFoundError": 127}


def test_talk_goes_to_stderr_and_data_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_messages("one", "two\nname: three")
    tables.print_table(["a", "b"], [[1.23456789, None], [True, ["x", "y"]]], digits=4)
    output.print_json("thing", {"x": 1})
    out, err = capsys.readouterr()
    assert err == "tdbg: one\ntdbg: two\ntdbg:     name: three\n"  # what breaks a line is no line of its own
    table, _, text = out.partition("{")
    assert table == "a\tb\n1.235\t-\nyes\tx, y\n"
    assert json.loads("{" + text) == {"kind": "thing", "version": 1, "data": {"x": 1}}


def test_a_closed_stderr_is_no_error() -> None:
    code = "import sys; from tdbg.core.output import print_messages; sys.stderr.close(); print_messages('x'); print('fine')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "fine\n"
