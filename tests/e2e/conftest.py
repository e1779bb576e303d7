"""Runs the programs of this folder, bare and under `tdbg run`, and reads what both left behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tdbg.core.events import Event, Step
from tdbg.core.rundir import RunDir
from tdbg.rules.rule_engine import judge_run
from tests.warm import WARMTH

PROGRAMS = Path(__file__).parent / "programs"
BIN = Path(sys.executable).parent
PATIENCE_S = 150.0
ALWAYS_RECORDED = 8  # first steps of a run that are recorded whatever it costs
EVERY_STEP = ("--max-overhead", "100")
# What a launcher or an outer run may have left in the environment of the tests.
FOREIGN = ("TDBG_", "SLURM_", "TORCHELASTIC_", "OMPI_", "PYTHONPATH", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_")


@dataclass
class Result:
    """One finished program: its exit code, what it printed, and (under tdbg) its run directory."""

    code: int
    stdout: str
    stderr: str
    folder: Path = field(default_factory=Path)

    @cached_property
    def run_dir(self) -> RunDir:
        """The run directory."""
        return RunDir(self.folder)

    @cached_property
    def tdbg_lines(self) -> list[str]:
        """The lines of tdbg."""
        return [line for line in self.stderr.splitlines() if line.startswith("tdbg:")]

    def list_printed(self, event: str = "step", rank: int | None = None) -> list[dict[str, Any]]:
        """The facts of one kind that the program printed, of one rank or of all."""
        lines = [json.loads(line) for line in self.stdout.splitlines() if line.startswith('{"event"')]
        return [line for line in lines if line["event"] == event and rank in (None, line.get("rank", 0))]

    def list_events(self, kind: type[Event], rank: int = 0) -> list[Any]:
        """The events of one kind of the process that is the rank."""
        processes = [process for process in self.run_dir.list_processes() if process.rank == rank and process.is_rank]
        return [event for process in processes for event in process.iter_events() if isinstance(event, kind)]

    def list_steps(self, rank: int = 0, phase: str = "train") -> list[Step]:
        """The step records of a rank."""
        return [event for event in self.list_events(Step, rank) if event.phase == phase]

    @cached_property
    def verdict(self) -> dict[str, Any]:
        """The verdict, from the files alone."""
        return judge_run(self.run_dir).as_dict()

    @property
    def codes(self) -> list[str]:
        """The codes of all findings, worst first."""
        return [finding["code"] for finding in self.verdict["findings"]]

    def find_finding(self, code: str) -> dict[str, Any]:
        """The one finding with this code."""
        found = [finding for finding in self.verdict["findings"] if finding["code"] == code]
        assert len(found) == 1, f"{len(found)} findings {code} in {self.codes}\n{self.stderr}"
        return found[0]


def build_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """A clean environment: one thread, no network, nothing of an outer run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    fixed = {
        "PATH": f"{BIN}{os.pathsep}{kept.get('PATH', '')}",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {**kept, **fixed, **extra}


def run_command(words: Sequence[str], cwd: Path, env: Mapping[str, str] = {}) -> Result:
    """Run a command to its end; a test that waits for longer than its patience fails with what was said."""
    process = subprocess.Popen(
        warm_command(words),
        cwd=cwd,
        env=build_environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        pytest.fail(f"{' '.join(words)} did not end within {PATIENCE_S:g} s\n{stdout}\n{stderr}")
    return Result(process.returncode, stdout, stderr)


def warm_command(words: Sequence[str]) -> list[str]:
    """The command, its program for a Python that has torch loaded, unless the test is marked ``cold``."""
    at = words.index("--") + 1 if "--" in words else 0
    if not at and list(words[1:3]) == ["-m", "tdbg"]:
        return list(words)  # no program below it
    return [*words[:at], *WARMTH.translate_command(words[at:], build_environment({}))]


def build_program_command(name: str, *args: str) -> list[str]:
    """The command of a program of this folder."""
    return [sys.executable, str(PROGRAMS / f"{name}.py"), *args]


def build_torchrun_command(
    name: str, *args: str, options: Sequence[str] = ("--standalone", "--nproc-per-node=2")
) -> list[str]:
    """The command that starts two ranks of a program."""
    return ["torchrun", *options, str(PROGRAMS / f"{name}.py"), *args]


Runner = Callable[..., Result]


@pytest.fixture
def watched_runner(tmp_path: Path) -> Runner:
    """``watched(words, options, env)``: the command under `tdbg run`, in a folder of its own."""

    def run_watched(words: Sequence[str], options: Sequence[str] = (), env: Mapping[str, str] = {}) -> Result:
        folder = tmp_path / "run"
        command = [sys.executable, "-m", "tdbg", "run", "--run-dir", str(folder), *options, "--", *words]
        result = run_command(command, tmp_path, env)
        result.folder = folder
        return result

    return run_watched


@pytest.fixture(scope="session")
def bare_runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """``bare(words, env)``: the command without tdbg; a command is run once for all tests."""
    seen: dict[tuple[str, ...], Result] = {}

    def run_bare(words: Sequence[str], env: Mapping[str, str] = {}) -> Result:
        key = (*words, *(f"{name}={value}" for name, value in sorted(env.items())))
        if key not in seen:
            seen[key] = run_command(words, tmp_path_factory.mktemp("bare"), env)
        return seen[key]

    return run_bare


Start = Callable[..., Path]


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Start]:
    """Starts a command under `tdbg run` and waits until its output holds a word."""
    started: list[subprocess.Popen[bytes]] = []

    def start(words: Sequence[str], until: str = "", options: Sequence[str] = ()) -> Path:
        run, output = tmp_path / "run", tmp_path / "out.txt"
        command = [sys.executable, "-m", "tdbg", "run", "--run-dir", str(run), *options, "--", *words]
        with open(output, "wb") as file:
            started.append(
                subprocess.Popen(
                    command,
                    cwd=tmp_path,
                    env=build_environment({}),
                    stdout=file,
                    stderr=file,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        end = time.monotonic() + PATIENCE_S
        while until not in output.read_text():
            assert time.monotonic() < end and started[-1].poll() is None, output.read_text()
            time.sleep(0.1)
        return run

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def assert_same_output(result: Result, expected: Result) -> None:
    """Exit code and stdout are those of the bare program, byte for byte (of several ranks: line by line)."""
    assert result.code == expected.code, result.stderr
    ranks = {line.get("rank", 0) for line in expected.list_printed("step")}
    if len(ranks) > 1:
        assert sorted(result.stdout.splitlines()) == sorted(expected.stdout.splitlines())
    else:
        assert result.stdout == expected.stdout


def assert_same_steps(result: Result, rank: int = 0, *, norms: str = "all", every: bool = False) -> list[Step]:
    """Steps, losses, rates and norms on record equal those that the program printed.

    norms: "all": on every record; "some": wherever there is one, and there is one.
    every: no step is missing. At the default budget that is so for the first eight; these programs make steps of
        a millisecond, of which one percent does not pay for a record each.
    """
    printed = {line["step"]: line for line in result.list_printed("step", rank)}
    steps = result.list_steps(rank)
    numbers = [step.step for step in steps]
    needed = list(printed) if every else list(printed)[:ALWAYS_RECORDED]
    assert numbers[: len(needed)] == needed and numbers == sorted(set(numbers) & set(printed)), numbers
    for step in steps:
        _assert_same_step(step, printed[step.step])
    (row,) = [row for row in result.verdict["ranks"] if row["rank"] == rank]
    assert row["steps"] == max(printed), "steps that were not recorded still count"
    have = [step.grad_norm is not None for step in steps]
    assert all(have) if norms == "all" else any(have), have
    return steps


def _assert_same_step(step: Step, line: dict[str, Any]) -> None:
    assert float(step.loss or "nan") == pytest.approx(line["loss"], rel=1e-6, nan_ok=True), step
    if "lr" in line:
        assert step.lr[0] == pytest.approx(line["lr"]), step
    if step.grad_norm is not None and line.get("norm") is not None:
        assert float(step.grad_norm) == pytest.approx(line["norm"], rel=1e-4), step
    for name in ("epoch", "samples", "micro", "skipped", "scale"):
        if name in line:
            assert getattr(step, name) == line[name], (name, step)


def assert_named_first(result: Result, code: str, words: str) -> None:
    """The first finding has this code, and these words in its title."""
    assert result.code == 0, result.stderr
    finding = result.verdict["findings"][0]
    assert finding["code"] == code and words in finding["title"], result.stderr


def assert_notes_alone(result: Result) -> None:
    """Nothing above a note was found."""
    assert result.code == 0, result.stderr
    assert [one for one in result.verdict["findings"] if one["severity"] != "info"] == [], result.stderr


def assert_no_finding(result: Result) -> None:
    """A healthy run: no finding, nothing of tdbg switched off."""
    assert result.codes == [], result.stderr
    assert result.verdict["trouble"] == []
    assert result.verdict["cost"].get("errors", 0) == 0
