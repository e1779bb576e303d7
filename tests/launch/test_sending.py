"""`--to`: where a run is sent, and what is refused or ended."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tdbg.core import sink_files
from tdbg.core.config import Settings, check_setting
from tdbg.core.errors import TdbgError
from tdbg.core.host import host_name
from tdbg.core.rundir import RunDir
from tdbg.launch import join, run_sinks, sending
from tdbg.metrics.sinks.tensorboard_ import find_folder
from tdbg.rules.rule_engine import judge_run
from tests.e2e.conftest import build_environment
from tests.metrics.wandb_files import load_runs

SECRET = "hunter-of-mine"  # nothing but the word before it says that it is one
KEY = "0123456789abcdef" * 2
ANONYMOUS = f"""
import pathlib, tempfile, types

class Settings:
    def __init__(self, **settings): self.mode = "online"

class Run(types.SimpleNamespace):
    def nothing(self, *args, **kwargs): return None
    define_metric = log = alert = save = finish = nothing

def init(**settings):
    url = "https://wandb.example/anonymous/runs/abc?apiKey={KEY}"
    return Run(id="abc", url=url, dir=tempfile.mkdtemp(), config=Config(), summary={{}}, tags=(), settings=Settings())

class Config(dict):
    def update(self, values, allow_val_change=False): dict.update(self, values)
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    record = {"command": ["x"], "settings": Settings().as_dict(), "supervisor": join.describe_process(), "start": 1.0}
    return RunDir.create(tmp_path / "run", record)[0]


def announce_run(run: RunDir, name: str = "abc", number: int = 1) -> None:
    sink_files.announce_own_run(run.path, sink_files.WANDB, {"id": name, "project": "p"}, number)


def finish_run(run: RunDir, name: str = "abc", ended_at: int = 10) -> None:
    sink_files.record_outcome(run.path, sink_files.WANDB, "there", own_run=name, ended_at=ended_at)


def test_the_last_run_of_the_program_counts(run_dir: RunDir) -> None:
    assert sending.find_own(run_dir, "wandb", 10) == ({}, "")
    announce_run(run_dir)
    assert sending.find_own(run_dir, "wandb", 10) == ({}, "run abc of the program ended before tdbg added the report")
    finish_run(run_dir)
    done, lacking = sending.find_own(run_dir, "wandb", 10)
    assert (done["where"], lacking) == ("there", "")
    assert sending.find_own(run_dir, "wandb", 11)[1] == "run abc of the program ended at step 10 of 11"
    announce_run(run_dir, "def", 2)
    assert "def of the program ended before" in sending.find_own(run_dir, "wandb", 10)[1]
    finish_run(run_dir, "def")
    assert sending.find_own(run_dir, "wandb", 10)[1] == ""


def test_a_folder_of_that_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B keeps offline runs in a folder ``wandb`` of the working folder, which Python could import."""
    (tmp_path / "wandb").mkdir()
    for name in [name for name in sys.modules if name.partition(".")[0] == "wandb"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(TdbgError, match="--to wandb: the package wandb is not installed in tdbg's environment"):
        sending.check_packages(["wandb"])


@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_a_folder_that_another_user_may_have_named_is_not_written_to(
    run_dir: RunDir,
    tmp_path: Path,
    mode: int,
) -> None:
    board = tmp_path / "board"
    board.mkdir()
    sink_files.announce_own_run(run_dir.path, sink_files.TENSORBOARD, {"folder": str(board), "host": host_name()})
    run_dir.path.chmod(mode)
    expected = board / "tdbg" if mode == 0o700 else run_dir.path / "tensorboard"
    assert find_folder(run_sinks.describe_run(run_dir, "tensorboard")) == expected


def test_the_url_of_an_anonymous_run_is_cut_before_its_key(run_dir: RunDir, tmp_path: Path) -> None:
    """Older wandb ends it in ``?apiKey=...``; a package that does so stands in for one that needs a server."""
    site = tmp_path / "site"
    (site / "wandb").mkdir(parents=True)
    (site / "wandb" / "__init__.py").write_text(ANONYMOUS)
    make_rank(run_dir)
    done = run_report("wandb", run_dir, {"PYTHONPATH": str(site), "TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert "the report to https://wandb.example/anonymous/runs/abc\n" in done.stderr
    for text in (
        done.stderr,
        json.dumps(sink_files.list_outcomes(run_dir.path)),
        json.dumps(judge_run(run_dir).as_dict()),
    ):
        assert KEY not in text and "https://wandb.example" in text


def test_a_new_run_gets_the_name_of_the_run_and_no_secret(run_dir: RunDir) -> None:
    pytest.importorskip("wandb")
    make_rank(run_dir)
    run_dir.update_info(
        command=["python", "train.py", "--token", SECRET], settings=Settings(flags={"LOSS": "true"}).as_dict()
    )
    done = run_report("wandb", run_dir, {"WANDB_MODE": "offline", "WANDB_SILENT": "true"})
    assert done.returncode == 0, done.stderr
    (found,) = load_runs(run_dir.path)
    config = {key: value for key, value in found["config"].items() if key.startswith("tdbg/")}
    assert (config["tdbg/run"], config["tdbg/level"], config["tdbg/flags"]) == (
        run_dir.path.name,
        "basic",
        {"LOSS": "true"},
    )
    assert config["tdbg/command"][:3] == ["python", "train.py", "--token"] and SECRET not in json.dumps(found)
    assert f"upload it with `wandb sync {run_dir.path}" in done.stderr


def make_rank(run: RunDir) -> None:
    (run.path / "rank0000").mkdir()
    (run.path / "rank0000" / "events.jsonl").write_text('{"type":"hello","v":1,"t":1.0,"pid":1}\n')


def run_report(name: str, run: RunDir, environ: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "tdbg", "report", str(run.path), "--to", name]
    return subprocess.run(words, env=build_environment(environ), capture_output=True, text=True, timeout=240)


def test_the_process_that_writes_ends_itself(run_dir: RunDir, tmp_path: Path) -> None:
    """Where nobody is left to end it: the package is one that never returns."""
    (tmp_path / "site" / "wandb").mkdir(parents=True)
    (tmp_path / "site" / "wandb" / "__init__.py").write_text("import time\ntime.sleep(600)\n")
    (run_dir.path / "rank0000").mkdir()
    (run_dir.path / "rank0000" / "events.jsonl").write_text('{"type":"hello","v":1,"t":1.0,"pid":1}\n')
    done = subprocess.run(
        [sys.executable, "-P", "-c", sending.STARTER, "3", "report", str(run_dir.path), "--to", "wandb"],
        env=build_environment({"PYTHONPATH": str(tmp_path / "site")}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGALRM, done.stderr


def test_twice_the_same_is_once(run_dir: RunDir) -> None:
    assert check_setting("to", ["wandb", "tensorboard", "wandb"]) == ["wandb", "tensorboard"]
    assert Settings(to=["wandb"]).as_dict()["to"] == ["wandb"]


def test_a_report_that_does_not_come_is_no_trouble(run_dir: RunDir) -> None:
    assert sink_files.request_report(run_dir.path, 0.05) == {}
    assert sink_files.list_requests(run_dir.path) == []
