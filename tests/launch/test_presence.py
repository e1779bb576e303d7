"""No silent nothing."""

import time
from pathlib import Path

import pytest

from tdbg.core.rundir import RunDir
from tdbg.launch import presence
from tdbg.rules.silence import silence


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
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
def test_the_cause_is_named(run: RunDir, sign: str, cause: str, hint: str) -> None:
    if sign:
        (run.path / sign).write_text("")
    found = silence(run)
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
    run: RunDir, sign: str, over: bool, cause: str
) -> None:
    for name in filter(None, ("boot/woke", sign)):
        (run.path / name).write_text("")
    found = silence(run, over=over)
    assert found and cause in found[0] and "none of it imported" not in found[0]


def test_one_process_that_reported_is_enough(run: RunDir) -> None:
    (run.path / "hello").mkdir()
    (run.path / "hello" / "host-1.json").write_text("{}")
    assert silence(run) is None


def test_it_is_said_once_while_the_run_goes_on(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    patience = presence.Patience(run, after_s=0.01)
    said, until = "", time.monotonic() + 30
    while said.count("\n") < 2 and time.monotonic() < until:
        time.sleep(0.02)
        said += capsys.readouterr().err
    time.sleep(0.1)  # for a second time, if it were said twice
    patience.end()
    lines = (said + capsys.readouterr().err).splitlines()
    assert len(lines) == 2 and all(line.startswith("tdbg: ") for line in lines)
    assert "not a Python program" in lines[0]


def test_a_run_that_ended_before_is_not_told(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    presence.Patience(run, after_s=0.2).end()
    time.sleep(0.3)
    assert capsys.readouterr().err == ""
