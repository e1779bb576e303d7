"""`tdbg stacks` on live runs and on what a hang left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import PATIENCE_S, Start, build_environment, build_program_command, build_torchrun_command

WAITS = """
import signal, sys, time, torch
{}
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def wait_long():
    print("waits", flush=True)
    time.sleep(120)
for step in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
wait_long()
"""
OWN_HANDLER = "signal.signal(signal.SIGRTMIN + 6, lambda *_: print('mine', flush=True))"


def ask_stacks(run: Path, *options: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "tdbg", "stacks", str(run), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=build_environment({}))
    return done.returncode, done.stdout, done.stderr


def list_functions(answer: str, process: str) -> list[str]:
    """The calls of a process's main thread, from the outside inwards."""
    stacks: list[dict[str, Any]] = json.loads(answer)["data"]["stacks"]
    (found,) = [one for one in stacks if one["process"] == process and one["thread"] == "MainThread"]
    return [frame["function"] for frame in found["frames"]]


@pytest.mark.cold
def test_ranks_that_hang_are_asked_while_they_hang_and_shown_afterwards(start_run: Start) -> None:
    """Both wait in native code: one in a collective, one in a lock."""
    words = build_torchrun_command("hangs", "lock", "1")
    run = start_run(words, "TD-R006", ("--threshold", "DISTRIBUTED.hang_s=3"))
    code, answer, errors = ask_stacks(run, "--json")
    assert code == 0, errors
    assert "wait_for_lock" in list_functions(answer, "rank 1")
    assert "backward" in list_functions(answer, "rank 0") and "wait_for_lock" not in list_functions(answer, "rank 0")
    code, text, _ = ask_stacks(run)
    assert code == 0 and text.startswith("stacks now, ") and "ranks 0-1:" in text and "rank 1:" in text
    (supervisor,) = [json.loads((run / "run.json").read_text())["supervisor"]["pid"]]
    os.killpg(os.getpgid(supervisor), signal.SIGKILL)
    end = time.monotonic() + PATIENCE_S
    while "saved" not in (text := ask_stacks(run)[1]) and time.monotonic() < end:
        time.sleep(0.5)
    assert text.startswith("stacks saved at the last hang, ") and "in wait_for_lock" in text


@pytest.mark.cold
def test_a_single_process_is_asked_and_goes_on(start_run: Start, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS.format(""))
    run = start_run([sys.executable, "waits.py"], "waits")
    for _ in range(3):
        code, text, errors = ask_stacks(run)
        assert code == 0 and text.splitlines()[-1].endswith("in wait_long"), text + errors


@pytest.mark.cold
def test_a_signal_that_the_program_uses_is_left_alone(start_run: Start, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS.format(OWN_HANDLER))
    run = start_run([sys.executable, "waits.py"], "waits")
    time.sleep(1.0)
    code, text, errors = ask_stacks(run)
    assert code == 1 and "rank 0: " in errors and "--stack-signal" in errors, text
    assert "mine" not in (tmp_path / "out.txt").read_text()


@pytest.mark.cold
@pytest.mark.parametrize(("chosen", "code"), [("USR2", 0), ("SIGRTMIN+7", 0), ("none", 1)])
def test_the_signal_can_be_chosen(start_run: Start, tmp_path: Path, chosen: str, code: int) -> None:
    (tmp_path / "waits.py").write_text(WAITS.format(OWN_HANDLER))
    run = start_run([sys.executable, "waits.py"], "waits", ("--stack-signal", chosen))
    found, text, errors = ask_stacks(run)
    assert found == code and ("wait_long" in text) == (code == 0), text + errors


def test_a_run_that_ended_well_has_none(watched_runner: Callable[..., Any]) -> None:
    result = watched_runner(build_program_command("plain"))
    code, text, errors = ask_stacks(result.folder)
    assert (code, text) == (2, "") and "no live rank" in errors
    assert not list(result.folder.glob("rank*/stacks_now.txt")), "nobody asked"
