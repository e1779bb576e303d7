"""`tdbg flags doctor`: what a run's flags really did, in a real run and in runs written for the purpose."""

import json
from pathlib import Path
from typing import Any

import pytest

from tdbg.cli import main
from tdbg.core.events import Injection, Observation
from tdbg.logs.examine import Check, collect_checks
from tests.logs.test_records import FLAGS, project_folder  # noqa: F401 - the project's run
from tests.streams import Stream


def write_run(
    place: Path, flags: dict[str, Any], *records: dict[str, Any], injections: tuple[Injection, ...] = ()
) -> Stream:
    stream = Stream(place, flags=flags)
    stream.emit_events("rank0000", *injections)
    lines = [json.dumps({"level": "INFO", "flags": [], "logger": "x", "message": "", **record}) for record in records]
    (place / "rank0000").mkdir(parents=True, exist_ok=True)
    (place / "rank0000" / "records.jsonl").write_text("\n".join([*lines, '{"torn']))
    return stream


def list_checks(checks: list[Check]) -> list[tuple[str, str, str]]:
    return [(check.name, check.kind, check.status) for check in checks]


def test_the_project(project_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    assert main(["flags", "doctor", str(project_folder / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "flags-doctor" and {item["name"] for item in found["data"]} == set(FLAGS)
    silenced = {item["name"] for item in found["data"] if item["kind"] == "suppressed by a level"}
    assert silenced == {"VALIDATION", "MODEL_BUILD"}
    assert main(["flags", "doctor", str(project_folder / "run")]) == 0
    assert "pets.validate drops DEBUG" in capsys.readouterr().out


def test_flags_without_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("if cfg.DEBUG.LOSS.NULL_MASKING: log.info('masked')\n")
    flags = {"LOSS.NULL_MASKING": True, "LOSS.CLASS_WEIGHTING": True, "MEMORY": True, "AMP": False}
    refused = Injection(flag="LOSS.CLASS_WEIGHTING", status="rejected", where="yacs", hint="did you mean X?")
    stream = write_run(tmp_path / "run", flags, {"message": "free"}, injections=(refused,))
    assert list_checks(collect_checks(stream.run, [tmp_path / "src"])) == [
        ("LOSS.NULL_MASKING", "silent", "problem"),
        ("LOSS.CLASS_WEIGHTING", "rejected", "problem"),
        ("LOSS.CLASS_WEIGHTING", "nobody reads it", "problem"),
    ]  # MEMORY is tdbg's own and needs no reader
    stream.run.update_info(cwd=str(tmp_path / "src"), command=["python", "a.py"])
    assert main(["flags", "doctor", str(tmp_path / "run")]) == 1
    assert "did you mean X?" in capsys.readouterr().out


def test_flags_left_on_lines_while_off_and_strange_prefixes(tmp_path: Path) -> None:
    left = Injection(flag="LOSS.NULL_MASKING", status="already", where="yacs DEBUG.LOSS.NULL_MASKING", new=True)
    stream = write_run(
        tmp_path / "run",
        {"LOSS.NULL_MASKING": True},
        {"flags": ["LOSS.NULL_MASKING"], "message": "masked"},
        {"flags": ["LOSS.NULL_MASKING"], "message": "[OWN] behind the flag"},
        {"flags": ["LR"], "message": "rate"},
        {"message": "[DEBUG_AMP_SCALE] 3"},
        {"message": "[STRANGE] 3"},
        injections=(left,),
    )
    assert list_checks(collect_checks(stream.run, [])) == [
        ("LOSS.NULL_MASKING", "left on", "note"),
        ("LOSS.NULL_MASKING", "ok", "ok"),
        ("LR", "printed while off", "note"),
        ("AMP", "printed while off", "note"),
        ("[STRANGE]", "no flag's prefix", "note"),
    ]


def test_a_run_without_records(tmp_path: Path) -> None:
    assert list_checks(collect_checks(write_run(tmp_path / "run", {}).run, [])) == [("records", "no records", "note")]


def test_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flags", "doctor", str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err


def test_a_flag_whose_diagnostics_the_program_calls(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("loss.null_masking(targets, masked)\n")
    taken = Injection(flag="LOSS.NULL_MASKING", status="set", where="tdbg.probes.loss", new=True)
    flags = {"LOSS.NULL_MASKING": True, "LOSS.CLASS_WEIGHTING": True}
    stream = write_run(tmp_path / "run", flags, {"message": "free"}, injections=(taken,))
    assert list_checks(collect_checks(stream.run, [tmp_path / "src"])) == [
        ("LOSS.NULL_MASKING", "ok", "ok"),
        ("LOSS.CLASS_WEIGHTING", "nobody reads it", "problem"),
    ]


def test_a_flag_whose_losses_are_observed(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("loss = nn.functional.cross_entropy(y, target)\n")
    stream = write_run(tmp_path / "run", {"LOSS.NULL_MASKING": True}, {"message": "free"})
    stream.emit_events("rank0000", Observation(probe="loss-calls", flag="LOSS.NULL_MASKING", part="TARGETS", step=1))
    (check,) = collect_checks(stream.run, [tmp_path / "src"])
    assert (check.status, check.found) == ("ok", "1 observation of torch's own losses")


def test_a_flag_that_only_the_program_has_on_is_left_on_and_not_off(tmp_path: Path) -> None:
    own = Injection(flag="LOSS.NULL_MASKING", status="own", where="yacs DEBUG.LOSS.NULL_MASKING", old=True, new=True)
    stream = write_run(tmp_path / "run", {}, {"flags": ["LOSS.NULL_MASKING"], "message": "masked"}, injections=(own,))
    assert list_checks(collect_checks(stream.run, [])) == [
        ("LOSS.NULL_MASKING", "left on", "note"),
        ("LOSS.NULL_MASKING", "ok", "ok"),
    ]
