"""What a run of a trial is answered with, and whether that is right."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 300


def run_quietly(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE_S, **more)


def read_first_finding(run: Path, family: str = "") -> str:
    """The first finding of a run, of all or of a family (``TD-R``), read anew by `tdbg report`."""
    done = subprocess.run(
        [sys.executable, "-m", "tdbg", "report", str(run), "--json"], capture_output=True, text=True, check=False
    )
    found = json.loads(done.stdout)["data"]["findings"] if done.stdout else []
    findings = [finding for finding in found if finding["code"].startswith(family)]
    return f"{findings[0]['code']} {findings[0]['title']}" if findings else "silent"


def read_restarts(run: Path) -> str:
    """The line of the report that says how each attempt went."""
    page = run_quietly(sys.executable, "-m", "tdbg", "report", str(run)).stdout
    return next((line for line in page.splitlines() if line.startswith("restarts:")), "no restart")


def judge_answer(trial: str, said: str, *wanted: str) -> bool:
    return print_answer(trial, said, all(words in said for words in wanted))


def print_answer(trial: str, said: str, right: bool) -> bool:
    print(f"{'right' if right else 'WRONG':<6}{trial:<44}{said[:150]}")
    sys.stdout.flush()
    return right


def find_line(program: Path, mark: str) -> str:
    """``file:line`` of the one line of a program that is marked as this fault."""
    lines = program.read_text(encoding="utf-8").splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if line.endswith(f"# planted: {mark}"))
    return f"{program.name}:{number}"


def wait_for_steps(events: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not (events.exists() and '"type":"step"' in events.read_text(encoding="utf-8", errors="replace")):
        if time.monotonic() > deadline:
            raise TimeoutError(events)
        time.sleep(0.5)
    time.sleep(5)
