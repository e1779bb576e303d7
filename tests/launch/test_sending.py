"""`--to`: where a run is sent, and what is refused or ended."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tdbg.core import sink_files
from tdbg.core.config import Settings, check
from tdbg.core.errors import TdbgError
from tdbg.core.host import host_name
from tdbg.core.rundir import RunDir
from tdbg.launch import join, run_sinks, sending
from tests.e2e.conftest import environment


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    record = {"command": ["x"], "settings": Settings().as_dict(), "supervisor": join.me(), "start": 1.0}
    return RunDir.create(tmp_path / "run", record)[0]


def announce(run: RunDir, name: str = "abc", number: int = 1) -> None:
    sink_files.announce(run.path, sink_files.WANDB, {"id": name, "project": "p"}, number)


def finish(run: RunDir, name: str = "abc", ended_at: int = 10) -> None:
    sink_files.note_outcome(run.path, sink_files.WANDB, "there", own_run=name, ended_at=ended_at)


def test_the_last_run_of_the_program_counts(run: RunDir) -> None:
    assert sending.find_own(run, "wandb", 10) == ({}, "")
    announce(run)
    assert sending.find_own(run, "wandb", 10) == ({}, "the program's own run abc ended without the report")
    finish(run)
    done, lacking = sending.find_own(run, "wandb", 10)
    assert (done["where"], lacking) == ("there", "")
    assert sending.find_own(run, "wandb", 11)[1] == "the program's own run abc ended at step 10 of 11"
    announce(run, "def", 2)
    assert "def ended without" in sending.find_own(run, "wandb", 10)[1]
    finish(run, "def")
    assert sending.find_own(run, "wandb", 10)[1] == ""


def test_a_folder_of_that_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B keeps offline runs in a folder ``wandb`` of the working folder, which Python could import."""
    (tmp_path / "wandb").mkdir()
    for name in [name for name in sys.modules if name.partition(".")[0] == "wandb"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(TdbgError, match="needs the package wandb"):
        sending.check(["wandb"])


@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_a_folder_that_another_user_may_have_named_is_not_written_to(
    run: RunDir,
    tmp_path: Path,
    mode: int,
) -> None:
    board = tmp_path / "board"
    board.mkdir()
    sink_files.announce(run.path, sink_files.TENSORBOARD, {"folder": str(board), "host": host_name()})
    run.path.chmod(mode)
    expected = board / "tdbg" if mode == 0o700 else run.path / "tensorboard"
    assert run_sinks.find_folder(run) == expected


def test_the_process_that_writes_ends_itself(run: RunDir, tmp_path: Path) -> None:
    """Where nobody is left to end it: the package is one that never returns."""
    (tmp_path / "site" / "wandb").mkdir(parents=True)
    (tmp_path / "site" / "wandb" / "__init__.py").write_text("import time\ntime.sleep(600)\n")
    (run.path / "rank0000").mkdir()
    (run.path / "rank0000" / "events.jsonl").write_text('{"type":"hello","v":1,"t":1.0,"pid":1}\n')
    done = subprocess.run(
        [sys.executable, "-P", "-c", sending.STARTER, "3", "report", str(run.path), "--to", "wandb"],
        env=environment({"PYTHONPATH": str(tmp_path / "site")}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGALRM, done.stderr


def test_twice_the_same_is_once(run: RunDir) -> None:
    assert check("to", ["wandb", "tensorboard", "wandb"]) == ["wandb", "tensorboard"]
    assert Settings(to=["wandb"]).as_dict()["to"] == ["wandb"]


def test_a_report_that_does_not_come_is_no_trouble(run: RunDir) -> None:
    assert sink_files.request_report(run.path, 0.05) == {}
    assert sink_files.list_requests(run.path) == []
