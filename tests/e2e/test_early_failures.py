"""Programs that fail before their first update: named with rank and own line, their traceback and flag records kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import (
    PROGRAMS,
    Result,
    Runner,
    assert_same_output,
    build_environment,
    build_program_command,
    build_torchrun_command,
)

SOURCE = PROGRAMS / "early.py"
(LINE,) = (n for n, text in enumerate(SOURCE.read_text().splitlines(), 1) if "# the line that tdbg has to name" in text)
OWN_LINE = f"({SOURCE.name}:{LINE})"
ERROR = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (16x8 and 7x4)"
SWALLOWED = "and the program ended (exit 0) without one optimizer step, after step 0"
FLAG = ("-f", "DATALOADER")


def filter_logs(result: Result, *words: str) -> str:
    """What `tdbg filter-logs` prints of the run."""
    command = [sys.executable, "-m", "tdbg", "filter-logs", str(result.folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, env=build_environment({}), timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_traceback_found(result: Result) -> None:
    """Whole, and its last frame is torch's: the program's own line stands further up."""
    found = filter_logs(result, "--errors")
    assert found.count("Traceback (most recent call last):") == 1 and found.rstrip().endswith(ERROR)
    assert f'File "{SOURCE}", line {LINE}, in train' in found and "nn/modules/linear.py" in found


def assert_flag_record_kept(result: Result, *, rank: int = 0) -> None:
    found = filter_logs(result, *FLAG, "--format", "jsonl", "--ranks", str(rank))
    messages = [json.loads(line)["message"] for line in found.splitlines()]
    assert [message for message in messages if message.endswith("batches of 16 samples")] != [], messages


@pytest.mark.cold  # who has torch's launcher loaded, as the warm Python does, may be the launcher
@pytest.mark.parametrize("how", ["logged", "printed"])
def test_an_exception_that_is_swallowed_before_the_first_update_is_an_error(
    watched_runner: Runner, bare_runner: Runner, how: str
) -> None:
    words = build_program_command("early", how)
    result = watched_runner(words, FLAG)
    assert_same_output(result, bare_runner(words))
    assert result.code == 0 and result.list_steps() == []
    finding = result.find_finding("TD-R003")
    assert (finding["severity"], finding["rank"], finding["first_step"]) == ("error", 0, 0)
    assert finding["title"] == f"rank 0: {ERROR}, {how} and swallowed, {SWALLOWED} {OWN_LINE}"
    assert finding["title"] in result.verdict["headline"]
    assert any("verdict: 1 finding (1 error)" in line and OWN_LINE in line for line in result.tdbg_lines), result.stderr
    assert "went on" not in result.stderr
    assert_traceback_found(result)
    assert_flag_record_kept(result)


@pytest.mark.cold  # the exception ends the interpreter
def test_an_exception_that_ends_the_program_before_its_first_update(
    watched_runner: Runner, bare_runner: Runner
) -> None:
    words = build_program_command("early", "uncaught")
    result = watched_runner(words, FLAG)
    assert_same_output(result, bare_runner(words))
    assert result.code == 1 and result.list_steps() == []
    assert result.find_finding("TD-R003")["title"] == f"rank 0: {ERROR}, uncaught, after step 0 {OWN_LINE}"
    assert f"rank 0: {ERROR}, uncaught" in result.verdict["headline"]
    assert_traceback_found(result)
    assert_flag_record_kept(result)


@pytest.mark.parametrize("how", ["logged", "uncaught"])
def test_of_two_ranks_the_one_that_fails_before_its_first_update_is_named(watched_runner: Runner, how: str) -> None:
    """Rank 0 trains to its end, so the program as a whole has taken steps."""
    result = watched_runner(build_torchrun_command("early", how), FLAG)
    assert result.code == (1 if how == "uncaught" else 0), result.stderr
    if how == "uncaught":  # the shapes that do not fit come first: the exception follows from them
        assert (result.codes[0], result.verdict["findings"][0]["rank"]) == ("TD-C009", 1)
    else:
        assert result.codes[0] == "TD-R003"
    finding = result.find_finding("TD-R003")
    assert (finding["severity"], finding["rank"]) == ("error", 1)
    said = f"{SWALLOWED} " if how == "logged" else "after step 0 "
    assert finding["title"].startswith(f"rank 1: {ERROR}, {how}") and finding["title"].endswith(said + OWN_LINE)
    assert Path(result.folder / "rank0000").is_dir()
    assert (result.folder / "rank0001").exists() == (how == "uncaught")  # with a finding of its own it is a rank
    assert_flag_record_kept(result, rank=1)
