"""No silent nothing."""

import time
from pathlib import Path

import pytest

from tdbg.core.rundir import RunDir
from tdbg.launch import presence
from tdbg.rules.silence import explain_silence


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    (tmp_path / "boot").mkdir()
    return RunDir(tmp_path)


@pytest.mark.parametrize(
    ("sign", "cause", "hint"),
    [
        ("", "not a Python program", "tdbg hook install"),
        ("boot/woke", "none of it imported torch", "the command that trains"),
        ("boot/old-python", "older than 3.11", "3.11 or newer"),
        ("boot/errors.log", "could not start", "errors.log"),
    ],
)
def test_the_cause_is_named(run_dir: RunDir, sign: str, cause: str, hint: str) -> None:
    if sign:
        (run_dir.path / sign).write_text("")
    found = explain_silence(run_dir)
    assert found and cause in found[0] and hint in found[1]


@pytest.mark.parametrize(
    ("sign", "over", "cause"),
    [
        ("boot/importing", False, "one is importing torch"),
        ("boot/importing", True, "one ended while it imported torch"),
        ("", False, "has not begun to import torch"),
    ],
)
def test_a_process_that_still_imports_is_not_said_to_be_without_torch(
    run_dir: RunDir, sign: str, over: bool, cause: str
) -> None:
    for name in filter(None, ("boot/woke", sign)):
        (run_dir.path / name).write_text("")
    found = explain_silence(run_dir, over=over)
    assert found and cause in found[0] and "none of it imported" not in found[0]


def test_one_process_that_reported_is_enough(run_dir: RunDir) -> None:
    (run_dir.path / "hello").mkdir()
    (run_dir.path / "hello" / "host-1.json").write_text("{}")
    assert explain_silence(run_dir) is None


def test_it_is_said_once_while_the_run_goes_on(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    patience = presence.Patience(run_dir, after_s=0.01)
    said, until = "", time.monotonic() + 30
    while said.count("\n") < 2 and time.monotonic() < until:
        time.sleep(0.02)
        said += capsys.readouterr().err
    time.sleep(0.1)  # for a second time, if it were said twice
    patience.cancel_timer()
    lines = (said + capsys.readouterr().err).splitlines()
    assert len(lines) == 2 and all(line.startswith("tdbg: ") for line in lines)
    assert "not a Python program" in lines[0]


def test_a_run_that_ended_before_is_not_told(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    presence.Patience(run_dir, after_s=0.2).cancel_timer()
    time.sleep(0.3)
    assert capsys.readouterr().err == ""
