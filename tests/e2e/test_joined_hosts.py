"""Two `torchrun` agents, each with a run directory of its own, as on hosts without a common file system; then `tdbg join`."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tdbg.core.rundir import RunDir
from tdbg.rules.rule_engine import judge_run
from tests.e2e.conftest import build_environment, build_torchrun_command, warm_command

PATIENCE_S = 150.0
Start = Callable[..., list[subprocess.Popen[str]]]


@pytest.fixture
def start_hosts(tmp_path: Path) -> Iterator[Start]:
    """Starts the two agents of one job; whatever is left of them afterwards is ended."""
    agents: list[subprocess.Popen[str]] = []

    def start_agents(program: str, *words: str, options: tuple[str, ...] = ()) -> list[subprocess.Popen[str]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for rank in (0, 1):
            meeting = ["--nnodes=2", "--nproc-per-node=1", f"--node-rank={rank}", "--master-addr=127.0.0.1"]
            job = build_torchrun_command(program, *words, options=[*meeting, f"--master-port={port}"])
            run = [
                sys.executable,
                "-m",
                "tdbg",
                "run",
                "--run-dir",
                str(tmp_path / f"host{rank}"),
                *options,
                "--",
                *job,
            ]
            pipe = subprocess.PIPE
            agents.append(
                subprocess.Popen(
                    warm_command(run), cwd=tmp_path, env=build_environment({}), stdout=pipe, stderr=pipe, text=True,
                    start_new_session=True,
                )
            )  # fmt: skip
        return agents

    yield start_agents
    for agent in agents:
        if agent.poll() is None:
            os.killpg(agent.pid, signal.SIGKILL)


def join_hosts(folder: Path) -> RunDir:
    """The joined run, by the command line."""
    words = [sys.executable, "-m", "tdbg", "join", "host1", "host0", "-o", "whole"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "host1: host " in done.stdout and "clock agrees within" in done.stdout
    return RunDir(folder / "whole")


def test_a_nan_of_one_host_is_named_in_the_joined_run(start_hosts: Start, tmp_path: Path) -> None:
    said = [
        agent.communicate(timeout=PATIENCE_S)[1] for agent in start_hosts("faults", "conv", "bad-batch", "--rank", "1")
    ]
    assert "from another rank" in said[0], "rank 0's own directory does not know which"
    verdict = judge_run(join_hosts(tmp_path))
    first = next(finding for finding in verdict.findings if finding.code == "TD-N001")
    assert (first.rank, first.first_step, first.phase) == (1, 3, "input")
    assert [row["rank"] for row in verdict.ranks] == [0, 1] and verdict.exit["code"] == 0


def test_a_rank_that_hangs_on_one_host_is_named_in_the_joined_run(start_hosts: Start, tmp_path: Path) -> None:
    agents = start_hosts("hangs", "sleep", "1", options=("--threshold", "DISTRIBUTED.hang_s=3"))
    wait_until(lambda: all(has_told_hang(tmp_path, rank) for rank in (0, 1)))
    for agent in agents:
        agent.send_signal(signal.SIGTERM)
    for agent in agents:
        agent.communicate(timeout=PATIENCE_S)
    found = [finding for finding in judge_run(join_hosts(tmp_path)).findings if finding.code == "TD-R006"]
    assert [finding.rank for finding in found] == [1]
    assert "it is asleep at hangs.py" in found[0].title


def has_told_hang(folder: Path, rank: int) -> bool:
    """True once the rank wrote that it makes no progress."""
    path = folder / f"host{rank}" / f"rank{rank:04d}" / "events.jsonl"
    return path.exists() and b'"quiet_s"' in path.read_bytes()


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for something; a test that waits too long fails."""
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.2)
