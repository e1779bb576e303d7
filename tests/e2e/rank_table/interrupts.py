"""Ctrl-C in the middle of a fault: how long the end takes, what is left, and what the verdict says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.e2e.conftest import build_environment
from tests.e2e.rank_table.cases import FAULTS, LOST, Case

START_S, END_S = 60.0, 15.0  # until the fault begins; from Ctrl-C on
LATER_S = 1.0  # after the rank at fault has come to it
LOOK_S = 0.05


class Ending(NamedTuple):
    """How a run ended: what is wrong (empty: nothing), seconds from Ctrl-C on, and what the verdict begins with."""

    wrong: str
    seconds: float
    told: str


def interrupt_case(case: Case, folder: Path, *, is_early: bool) -> Ending:
    """Run a case, press Ctrl-C in the middle of its fault, and judge the end.

    is_early: a second after the fault began; else once it was told.
    """
    run, output = folder / f"stop-{case.kind}-{case.ranks}-{case.by}-{is_early}", folder / "out.txt"
    limit = ("--threshold", f"DISTRIBUTED.hang_s={case.hang_s}")
    command = [sys.executable, "-m", "tdbg", "run", "--run-dir", str(run), *limit, "--", *case.build_command()]
    with open(output, "wb") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=build_environment({}),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        return _interrupt_process(case, process, run, output, is_early=is_early)
    finally:
        for left in list_processes(run):
            left.kill()
        if process.poll() is None:
            process.kill()
            process.wait()


def _interrupt_process(
    case: Case, process: subprocess.Popen[bytes], run: Path, output: Path, *, is_early: bool
) -> Ending:
    if not _wait_for_fault(process, output, is_early=is_early):
        return Ending(f"the fault did not begin within {START_S:g} s", 0.0, output.read_text()[-500:])
    begun = time.monotonic()
    is_running = process.poll() is None
    if is_running:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the launcher and its ranks as well
    while (process.poll() is None or list_processes(run)) and time.monotonic() < begun + END_S + 1:
        time.sleep(LOOK_S)
    seconds = time.monotonic() - begun
    left = [f"{one.pid} {' '.join(one.cmdline())[:120]}" for one in list_processes(run)]
    if process.poll() is None or left or seconds > END_S:
        return Ending(f"not all gone {seconds:.1f} s after Ctrl-C: {', '.join(left) or 'tdbg itself'}", seconds, "")
    wrong = _judge_verdict(case, run, is_running=is_running, is_told=not is_early)
    return Ending(wrong, seconds, _read_headline(run))


def _wait_for_fault(process: subprocess.Popen[bytes], output: Path, *, is_early: bool) -> bool:
    """True once the fault goes on, or the run ended because of it."""
    until = time.monotonic() + START_S
    words = '"event": "fault"' if is_early else "TD-R006"
    while words not in output.read_text():
        if time.monotonic() > until:
            return False
        if process.poll() is not None:
            return '"event": "fault"' in output.read_text()
        time.sleep(LOOK_S)
    time.sleep(LATER_S)
    return True


def _judge_verdict(case: Case, run: Path, *, is_running: bool, is_told: bool) -> str:
    """Empty if the verdict names the fault, or run.json has when the run was told to stop."""
    if not (run / "report.json").exists():
        return "no report.json"
    verdict = json.loads((run / "report.json").read_text(encoding="utf-8"))
    info = json.loads((run / "run.json").read_text(encoding="utf-8"))
    codes = FAULTS[case.kind].codes if case.kind in FAULTS else ()
    named = [found for found in verdict["findings"] if found["code"] in codes]
    if not info.get("end"):
        return "run.json has no end"
    if is_told and not named:
        return "the hang was told, and is not in the verdict"
    if not named and not (info.get("stop_times") or not is_running):
        return "neither the fault is named, nor that the run was interrupted"
    errors = [found for found in verdict["findings"] if found["severity"] == "error" and found["code"] not in codes]
    wrong = [found for found in errors if not (named and any(words in found["title"] for words in LOST))]
    return f"also an error: {wrong[0]['code']} {wrong[0]['title']}" if wrong else ""


def _read_headline(run: Path) -> str:
    verdict = json.loads((run / "report.json").read_text(encoding="utf-8"))
    codes = ", ".join(f"{found['code']} {found['severity']}" for found in verdict["findings"])
    return f"{verdict['headline']} [{codes}]"


def list_processes(run: Path) -> list[psutil.Process]:
    """What lives of a run: every process that was started with its directory in the environment."""
    found = []
    for process in psutil.process_iter():
        try:
            values = process.environ().values()
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if not is_zombie and any(str(run) in value for value in values):
            found.append(process)
    return found
