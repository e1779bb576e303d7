"""`tdbg runs`: the list of runs, what may be removed, and how a run is named."""

import io
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tdbg.cli import main
from tdbg.core.errors import TdbgError
from tdbg.core.host import host_name
from tdbg.core.rundir import RunDir, process_start

DAY_S = 86_400.0


def make_run(folder: Path, name: str, *, age_days: float = 0.0, **info: Any) -> Path:
    """A run that ended so long ago, or with ``end=None`` goes on under this very process."""
    now = time.time()
    given: dict[str, Any] = {
        "command": ["python", "train.py"],
        "start": now - age_days * DAY_S - 10,
        "end": now - age_days * DAY_S,
        "exit": {"code": 0, "signal": None},
        **info,
    }
    run, _ = RunDir.create(folder / name, given)
    os.utime(run.path / "run.json", (now - age_days * DAY_S,) * 2)
    return run.path


def make_live_run(folder: Path, name: str, *, age_days: float = 0.0) -> Path:
    pid = os.getpid()
    supervisor = {"pid": pid, "host": host_name(), "started": process_start(pid)}
    return make_run(folder, name, age_days=age_days, end=None, exit=None, supervisor=supervisor)


def write_report(path: Path, **report: Any) -> None:
    (path / "report.json").write_text(json.dumps(report))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder's tdbg_runs."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "tdbg_runs"
    folder.mkdir()
    return folder


# the list


def test_the_newest_come_first_with_their_verdicts(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = make_run(runs, "20261101-100000-a", age_days=2)
    found = [{"code": "TD-N001", "title": "first NaN at step 7"}, {"code": "TD-N002", "title": "dead"}]
    write_report(
        bad, worst_severity="critical", findings=found, ranks=[{"steps": 40, "loss": "nan"}], exit={"text": ""}
    )
    calm = make_run(runs, "20261102-100000-b", age_days=1)
    headline = "verdict: no problem found in what was watched; 1 rank, 40 steps; exit 0"
    write_report(calm, worst_severity=None, findings=[], ranks=[], exit={}, headline=headline)
    make_run(runs, "20261103-100000-c")
    make_live_run(runs, "20261104-100000-d")
    assert main(["runs", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["data"]["runs"]
    assert [(row["name"][-1], row["state"], row["severity"]) for row in rows] == [
        ("d", "running", None),
        ("c", "ended", None),
        ("b", "ended", "none"),
        ("a", "ended", "critical"),
    ]
    assert rows[3]["codes"] == ["TD-N001", "TD-N002"] and rows[3]["steps"] == 40 and rows[3]["loss"] == "nan"
    assert rows[3]["duration_s"] == pytest.approx(10, abs=0.01)
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "still running" in lines[1] and "tdbg report computes it" in lines[2]
    assert "no problem found in what was watched" in lines[3]
    assert "TD-N001 first NaN at step 7 (+1)" in lines[4] and "10.0 s" in lines[4]


@pytest.mark.parametrize(
    ("origin", "lead"), [({"finding": 1, "code": "TD-D001"}, "TD-D001"), ({"finding": 7}, "TD-N001")]
)
def test_the_list_leads_with_what_the_verdict_leads_with(
    runs: Path, capsys: pytest.CaptureFixture[str], origin: dict[str, Any], lead: str
) -> None:
    found = [
        {"code": "TD-N001", "title": "first NaN", "follows_from": origin},
        {"code": "TD-D001", "title": "NaN in a batch", "follows_from": None},
    ]
    write_report(make_run(runs, "a"), worst_severity="critical", findings=found, ranks=[], exit={"text": ""})
    assert main(["runs", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["data"]["runs"]
    assert row["title"].partition(" ")[0] == lead and row["codes"] == ["TD-N001", "TD-D001"]


def test_a_limit_says_how_many_are_left_out(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(5):
        make_run(runs, f"r{number}", age_days=number)
    assert main(["runs", "ls", "--limit", "2"]) == 0
    out = capsys.readouterr().out
    assert "r0" in out and "r1" in out and "r2" not in out and "and 3 older runs: --limit 0 shows all" in out
    assert main(["runs", "--limit", "0"]) == 0
    assert "r4" in capsys.readouterr().out


def test_no_run_and_no_folder(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 1
    assert "there is no run in tdbg_runs" in capsys.readouterr().err
    assert main(["runs", "ls", "none"]) == 2
    assert "there is no folder none" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"ranks": 3, "findings": {}, "exit": []}', '{"ranks": [1]}'])
def test_a_damaged_report_is_no_verdict_and_no_error(runs: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (make_run(runs, "a") / "report.json").write_text(text)
    assert main(["runs"]) == 0
    assert "a\tended" in capsys.readouterr().out


# names


@pytest.mark.parametrize("word", ["LAST", "last", "latest", "newest", "20261102", "20261102-100000-t", "tr", "train"])
def test_the_beginning_of_a_name_or_a_word_for_the_newest_is_a_run(runs: Path, word: str) -> None:
    make_run(runs, "20261101-100000-other", age_days=3)
    wanted = make_run(runs, "20261102-100000-train")
    assert RunDir.open(word).path.name == wanted.name


def test_a_run_that_is_named_so_comes_before_a_word(runs: Path) -> None:
    make_run(runs, "last", age_days=9)
    make_run(runs, "20261102-100000-train")
    assert RunDir.open("last").path.name == "last"


def test_of_several_that_begin_so_none_is_taken(runs: Path) -> None:
    make_run(runs, "20261101-100000-train_a")
    make_run(runs, "20261102-100000-train_b")
    with pytest.raises(TdbgError, match="2 runs begin with train_: 20261101-100000-train_a, 20261102-100000-train_b"):
        RunDir.open("train_")


def test_a_whole_name_comes_before_the_beginning_of_another(runs: Path) -> None:
    make_run(runs, "20261101-100000-train")
    make_run(runs, "20261102-100000-train_b")
    assert RunDir.open("train").path.name == "20261101-100000-train"


def test_a_name_that_nothing_begins_with_is_unknown(runs: Path) -> None:
    make_run(runs, "20261101-100000-train")
    with pytest.raises(TdbgError, match="there is no run x"):
        RunDir.open("x")


# prune


def list_left(runs: Path) -> list[str]:
    return sorted(path.name for path in runs.iterdir())


def test_the_newest_stay(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(5):
        make_run(runs, f"r{number}", age_days=number)
    assert main(["runs", "prune", "--keep", "2", "--yes"]) == 0
    assert list_left(runs) == ["r0", "r1"]
    assert "removed 3 runs" in capsys.readouterr().out


def test_those_that_ended_of_late_stay(runs: Path) -> None:
    for number in range(5):
        make_run(runs, f"r{number}", age_days=number)
    assert main(["runs", "prune", "--older", "60h", "--yes"]) == 0
    assert list_left(runs) == ["r0", "r1", "r2"]


def test_with_both_a_run_must_be_neither(runs: Path) -> None:
    for number in range(5):
        make_run(runs, f"r{number}", age_days=number)
    assert main(["runs", "prune", "--keep", "4", "--older", "1d", "--yes"]) == 0
    assert list_left(runs) == ["r0", "r1", "r2", "r3"]


def test_a_dry_run_removes_nothing(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(runs, "r", age_days=9)
    assert main(["runs", "prune", "--keep", "0", "--dry-run"]) == 0
    assert list_left(runs) == ["r"] and "would remove 1 run, " in capsys.readouterr().out


def test_a_run_that_goes_on_stays(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_live_run(runs, "live", age_days=90)
    make_run(runs, "elsewhere", age_days=90, end=None, exit=None, supervisor={"pid": 1, "host": "far", "started": "1"})
    make_run(runs, "unknown", age_days=90, end=None, exit=None)
    make_run(runs, "ended", age_days=90)
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert list_left(runs) == ["elsewhere", "live", "unknown"]
    assert "live is kept: it may still be running" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("silent_days", "older", "goes"),
    [(8, "7d", True), (8, "1h", True), (6, "1h", False), (8, "9d", False), (8, "", False)],
)
def test_a_run_of_another_host_goes_once_it_wrote_nothing_for_a_week(
    runs: Path, silent_days: float, older: str, goes: bool
) -> None:
    far = {"pid": 1, "host": "far", "started": "1"}
    run = make_run(runs, "r", age_days=90, end=None, exit=None, supervisor=far)
    folder = run / "rank0000"
    folder.mkdir(exist_ok=True)
    (folder / "events.jsonl").write_text("{}\n")
    then = time.time() - silent_days * 86_400
    for path in run.rglob("*"):
        os.utime(path, (then, then))
    main(["runs", "prune", *(["--older", older] if older else ["--keep", "0"]), "--yes"])
    assert list_left(runs) == ([] if goes else ["r"])


def test_a_run_of_a_supervisor_that_is_gone_goes(runs: Path) -> None:
    make_run(runs, "r", age_days=9, end=None, exit=None, supervisor={"pid": 1, "host": host_name(), "started": "x"})
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert list_left(runs) == []


def test_nothing_goes_through_a_link(runs: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("x")
    elsewhere = make_run(tmp_path, "elsewhere", age_days=9)
    (runs / "linked").symlink_to(elsewhere)
    holds = make_run(runs, "holds", age_days=9)
    (holds / "rank0000").symlink_to(precious)
    (runs / ".old.removed").symlink_to(precious)
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert (precious / "thesis.tex").exists() and elsewhere.exists()
    assert list_left(runs) == [".old.removed", "linked"]


def test_what_is_no_run_stays(runs: Path) -> None:
    (runs / "notes").mkdir()
    (runs / "run.json").write_text("{}")
    make_run(runs, "r", age_days=9)
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert list_left(runs) == ["notes", "run.json"]


def test_a_removal_that_was_cut_off_is_finished_by_the_next(runs: Path) -> None:
    half = make_run(runs, "half", age_days=9)
    half.rename(runs / ".half.removed")
    make_run(runs, "r", age_days=9)
    assert main(["runs"]) == 0
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert list_left(runs) == []


def test_without_a_terminal_it_does_not_guess(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(runs, "r", age_days=9)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["runs", "prune", "--keep", "0"]) == 2
    assert "there is no terminal to ask at" in capsys.readouterr().err and list_left(runs) == ["r"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "missing option: --keep N or --older AGE"),
        (["--keep", "-1"], "--keep"),
        (["--older", "30"], "--older cannot be '30'"),
        (["--older", "d"], "--older cannot be 'd'"),
        (["--older", "-1d"], "--older"),
        (["--older", "nand"], "--older cannot be 'nand'"),
        (["--older", "infd"], "--older cannot be 'infd'"),
        (["none", "--keep", "1"], "there is no folder none"),
    ],
)
def test_what_cannot_be_asked(runs: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    make_run(runs, "r", age_days=9)
    assert main(["runs", "prune", *words, "--yes"]) == 2
    assert told in capsys.readouterr().err and list_left(runs) == ["r"]


def test_no_run_to_remove(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(runs, "r")
    assert main(["runs", "prune", "--keep", "5", "--yes"]) == 1
    assert "there is no run to remove" in capsys.readouterr().err


def test_a_mistyped_command_is_no_folder(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "uplod", "LAST"]) == 2
    assert "Did you mean 'upload'?" in capsys.readouterr().err
    (runs.parent / "uplod").mkdir()
    assert main(["runs", "uplod"]) == 1
    assert "there is no run in uplod" in capsys.readouterr().err
