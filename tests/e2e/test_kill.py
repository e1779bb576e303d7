"""`kill -9` of a whole run at random moments: the directory stays readable and no complete record is lost."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tdbg.core.events import Step
from tdbg.core.rundir import RunDir
from tests.e2e.conftest import BIN, build_environment, build_program_command, run_command

KILLS = int(os.environ.get("TDBG_TEST_KILLS", "6"))  # 50 by hand: TDBG_TEST_KILLS=50 pytest tests/e2e/test_kill.py


@pytest.mark.timeout(60 * KILLS)
def test_a_killed_run_loses_nothing(tmp_path: Path) -> None:
    chance = random.Random(KILLS)
    interrupted = 0
    for index in range(KILLS):
        folder, witness = tmp_path / f"run{index}", tmp_path / f"witness{index}"
        command = [str(BIN / "tdbg"), "run", "--quiet", "--max-overhead", "100", "--run-dir", str(folder), "--"]
        process = subprocess.Popen(
            [*command, *build_program_command("witness", str(witness), "100000")],
            cwd=tmp_path,
            env=build_environment({}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _wait_for_steps(witness, process)
        time.sleep(chance.uniform(0, 0.5))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(0.2)  # the kernel ends the program, whose last write may still be on its way
        done = [line.split() for line in witness.read_text().splitlines(keepends=True) if line.endswith("\n")]
        _check_run(folder, [(int(step), float(loss)) for step, loss in done])
        interrupted += bool(done)
    assert interrupted == KILLS


def _wait_for_steps(witness: Path, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + 60
    while not (witness.exists() and witness.stat().st_size):
        assert process.poll() is None and time.monotonic() < until, "the program did not start to step"
        time.sleep(0.02)


def _check_run(folder: Path, done: list[tuple[int, float]]) -> None:
    report = run_command([sys.executable, "-m", "tdbg", "report", str(folder), "--json"], folder)
    assert report.code == 0, report.stderr
    assert "Traceback" not in report.stderr
    (rank,) = [process for process in RunDir(folder).list_processes() if process.is_rank]
    steps = [event for event in rank.iter_events() if isinstance(event, Step)]
    assert [event.step for event in steps] == list(range(1, len(steps) + 1)), "a record in the middle is missing"
    assert len(steps) >= len(done), "a step the program had finished has no record"
    for (step, loss), record in zip(done, steps, strict=False):
        assert (record.step, record.loss) == (step, loss)
