"""Runs healthy programs under `tdbg run`, and counts what watched them and what was found."""

import ast
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tdbg.core.events import Observation, Step
from tdbg.core.rundir import RunDir
from tests.e2e.conftest import build_environment

PROGRAMS = Path(__file__).parent / "programs"
TIME_LIMIT_S = 240.0
LEAST_STEPS = 300
PREFLIGHT = "preflight"  # in the place of a level: one batch is tried, and no step is made
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node=2")
RANKED = ("data-parallel", "accumulated", "sharded")  # kinds of ranks.py that torchrun starts


@dataclass(frozen=True)
class Program:
    """A program of the corpus: its name, and the command that runs it."""

    name: str
    words: tuple[str, ...]


@dataclass
class Outcome:
    """A program that ran under tdbg at one level. above: findings that are no notes; notes: the codes of those that are."""

    name: str
    level: str
    code: int = 0
    seconds: float = 0.0
    steps: int = 0
    step_ms: float = 0.0
    rules: int = 0
    armed: int = 0
    looks: int = 0
    above: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """True if the program ran for long enough, and nothing above a note was found."""
        is_long = self.steps >= LEAST_STEPS or self.level == PREFLIGHT
        return self.code == 0 and is_long and not self.above and not self.trouble

    def as_row(self) -> dict[str, Any]:
        """Plain data."""
        return vars(self)


def list_hand_programs() -> list[Program]:
    """The programs that were written by hand, file by file."""
    programs = [
        name_program(path.stem, kind)
        for path in sorted(PROGRAMS.glob("*.py"))
        for kind in _read_kinds(path.read_text(encoding="utf-8"))
    ]
    return [*programs, name_program("ranks", "hogwild")]


def _read_kinds(source: str) -> list[str]:
    """The keys of ``KINDS`` in a program, which is not imported: it starts to train."""
    return list(_read_makers(ast.parse(source)))


def _read_makers(tree: ast.Module) -> dict[str, str]:
    """The keys of ``KINDS`` with the function that each one runs."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "KINDS":
            assert isinstance(statement.value, ast.Dict)
            pairs = zip(statement.value.keys, statement.value.values, strict=True)
            return {ast.literal_eval(key): _find_function_name(maker) for key, maker in pairs if key is not None}
    return {}


def _find_function_name(maker: ast.expr) -> str:
    """The function that is named, or that a lambda calls."""
    return next(one.id for one in ast.walk(maker) if isinstance(one, ast.Name))


def describe_hand_programs() -> dict[str, str]:
    """What each program that was written by hand is: the first line of its function's docstring."""
    lines: dict[str, str] = {}
    for path in sorted(PROGRAMS.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
        makers = _read_makers(tree) | ({"hogwild": "hogwild"} if path.stem == "ranks" else {})
        for kind, maker in makers.items():
            text = ast.get_docstring(functions[maker]) or kind.replace("-", " ")
            lines[f"{path.stem}/{kind}"] = text.splitlines()[0].rstrip(".").replace("|", "/")
    return {one.name: lines[one.name] for one in list_hand_programs()}


def name_program(stem: str, kind: str) -> Program:
    """One kind of one file."""
    start = TORCHRUN if kind in RANKED and stem == "ranks" else (sys.executable,)
    return Program(f"{stem}/{kind}", (*start, str(PROGRAMS / f"{stem}.py"), kind))


def run_program(program: Program, level: str, folder: Path) -> Outcome:
    """Run a program under tdbg in a folder of its own, which keeps the run directory and both outputs."""
    folder.mkdir(parents=True)
    options = {"basic": [], PREFLIGHT: ["--preflight"]}.get(level, ["--level", level])
    words = [sys.executable, "-m", "tdbg", "run", "--run-dir", str(folder / "run"), *options, "--", *program.words]
    began = time.perf_counter()
    with open(folder / "stdout", "wb") as stdout, open(folder / "stderr", "wb") as stderr:
        code = _run_command(words, folder, stdout.fileno(), stderr.fileno())
    outcome = Outcome(program.name, level, code, time.perf_counter() - began)
    if (folder / "run" / "report.json").exists():
        _read_run(outcome, folder / "run")
    elif not code:
        outcome.trouble.append("no report was written")
    return outcome


def _run_command(words: Sequence[str], folder: Path, stdout: int, stderr: int) -> int:
    """The exit code; 124 after the time limit."""
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=build_environment({}),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        return process.wait(TIME_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return 124


def _read_run(outcome: Outcome, path: Path) -> None:
    """Add what the verdict says of a run, and how many observations its ranks made."""
    verdict = json.loads((path / "report.json").read_text(encoding="utf-8"))
    watched = verdict["watched"]
    outcome.steps = max(watched.get("steps", 0), watched.get("eval_calls", 0))
    outcome.rules, outcome.armed = watched.get("rules", 0), watched.get("rules_armed", 0)
    times = []
    for process in RunDir(path).list_processes():
        for event in process.iter_events():
            outcome.looks += isinstance(event, Observation)
            if isinstance(event, Step) and event.step_ms:
                times.append(event.step_ms)
    outcome.step_ms = statistics.median(times) if times else 0.0
    for finding in verdict["findings"]:
        if finding["severity"] == "info":
            outcome.notes.append(finding["code"])
        else:
            outcome.above.append(f"{finding['code']} {finding['severity']}: {finding['title']}")
    outcome.trouble += verdict["trouble"]
