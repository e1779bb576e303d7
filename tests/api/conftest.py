"""A clean API for each test, and programs run outside and inside of a run."""

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tdbg.api import flag_values as api_flags
from tdbg.api import session, user_metrics, watching
from tdbg.probes.regions import TOTALS
from tests.e2e.conftest import warm_command

FOREIGN = ("TDBG_", "SLURM_", "TORCHELASTIC_", "PYTHONPATH", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_")


@pytest.fixture(autouse=True)
def reset_session() -> Iterator[None]:
    """Nothing of an earlier test is left, and nothing of this one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    left = session._own
    if left is not None:
        watching.stop_session(left)
    api_flags.get_live_flags().clear()
    api_flags._reported.clear()
    user_metrics._refused.clear()
    TOTALS.clear()
    torch.autograd.set_detect_anomaly(False)
    assert left is None, f"a watch of {left.owner} was left behind"


@pytest.fixture
def logged_messages(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the logger ``tdbg`` was told in this test."""
    caplog.set_level(logging.DEBUG, logger="tdbg")
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("tdbg")]


@pytest.fixture
def signal_sender() -> Iterator[Callable[[Callable[[], object]], Callable[[], None]]]:
    """Makes a call the handler of a signal; returns what sends it, once. Whoever waits for itself is told so."""

    def raise_timeout(number: int, frame: object) -> None:
        raise TimeoutError("it waits for itself")

    def set_handler(act: Callable[[], object]) -> Callable[[], None]:
        waiting = [signal.SIGUSR1]
        signal.signal(signal.SIGUSR1, lambda number, frame: act())
        return lambda: signal.raise_signal(waiting.pop()) if waiting else None

    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGALRM)}
    signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, 10)
    yield set_handler
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


def small_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def train_model(steps: int, *, bad_at: int = 0, model: nn.Module | None = None, optimizer: Any = None) -> nn.Module:
    """A short training; the batch of one step may hold a NaN."""
    model = small_model() if model is None else model
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, steps + 1):
        x_NF, y_N = torch.randn(6, 8), torch.randint(0, 4, (6,))
        if step == bad_at:
            x_NF[0, 0] = float("nan")
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x_NF), y_N).backward()
        optimizer.step()
    return model


@dataclass
class Done:
    """A program that has ended."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def printed_json(self) -> Any:
        """The JSON it printed last."""
        assert self.code == 0, self.stderr
        return json.loads(self.stdout.splitlines()[-1])

    def read_events(self, kind: str = "", where: str = "**") -> list[dict[str, Any]]:
        """The events on record, of all processes or of one folder."""
        files = sorted(self.folder.glob(f"{where}/events.jsonl"))
        lines = [line for path in files for line in path.read_text().splitlines()]
        found = [json.loads(line) for line in lines]
        return [event for event in found if not kind or event["type"] == kind]

    @property
    def log_lines(self) -> list[str]:
        """The lines of rank 0's debug log, without their headers."""
        path = self.folder / "rank0000" / "debug_log_rank0.txt"
        return [line.split(" ", 4)[4] for line in path.read_text().splitlines()] if path.exists() else []


HEADER = """
import json, sys
import torch
from torch import nn
import tdbg

def train(steps, after=lambda step: None, bad_at=0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, steps + 1):
        x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
        if step == bad_at:
            x[0, 0] = float("nan")
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        after(step)
    return model
"""


@pytest.fixture
def program_runner(tmp_path: Path) -> Callable[..., Done]:
    """``program(code, options)``: run Python code bare, or under `tdbg run` with these options."""

    def run_program(
        code: str,
        options: Sequence[str] | None = None,
        *,
        header: str = HEADER,
        launcher: Sequence[str] = (sys.executable,),
    ) -> Done:
        path, folder = tmp_path / "program.py", tmp_path / "run"
        path.write_text(header + textwrap.dedent(code))
        words = [*launcher, str(path)]
        if options is not None:
            words = [sys.executable, "-m", "tdbg", "run", "--quiet", "--run-dir", str(folder), *options, "--", *words]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        kept.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
        kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        done = subprocess.run(warm_command(words), capture_output=True, text=True, timeout=150, env=kept, cwd=tmp_path)
        return Done(done.returncode, done.stdout, done.stderr, folder)

    return run_program
