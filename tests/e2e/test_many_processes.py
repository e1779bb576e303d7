"""Programs of several ranks, whoever starts them: each rank has its own records, equal to its own printout."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tdbg.core.events import Start
from tests.e2e.conftest import (
    PATIENCE_S,
    Result,
    Runner,
    assert_no_finding,
    assert_same_output,
    assert_same_steps,
    build_environment,
    build_program_command,
    build_torchrun_command,
)


def list_rank_folders(result: Result) -> list[str]:
    """The labels of all processes that are ranks or stepped beside one."""
    return [process.label for process in result.run_dir.list_processes() if process.rank is not None]


def test_torchrun_ddp(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_torchrun_command("ddp")
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    for rank in (0, 1):
        assert_same_steps(result, rank)
        (start,) = result.list_events(Start, rank)
        assert (start.rank, start.local_rank, start.world_size) == (rank, rank, 2)
    assert list_rank_folders(result) == ["rank0000", "rank0001"]
    assert_no_finding(result)


def test_torchrun_fsdp2(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_torchrun_command("fsdp2")
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    squares = [0.0] * 6
    for rank in (0, 1):
        printed = result.list_printed("step", rank)
        steps = result.list_steps(rank)
        assert [step.step for step in steps] == [line["step"] for line in printed]
        for number, (step, line) in enumerate(zip(steps, printed, strict=True)):
            assert float(step.loss or "nan") == pytest.approx(line["loss"], rel=1e-6)
            norm = float(step.grad_norm or "nan")
            wanted = line["shard_norm"] if step.sharded else line["norm"]
            assert norm == pytest.approx(wanted, rel=1e-4)
            squares[number] += norm**2 if step.sharded else norm**2 / 2
    totals = [line["norm"] for line in result.list_printed("step", 0)]
    assert [square**0.5 for square in squares] == pytest.approx(totals, rel=1e-4)
    assert_no_finding(result)


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_ranks_started_by_multiprocessing(watched_runner: Runner, bare_runner: Runner, method: str) -> None:
    words = build_program_command("processes", method)
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    for rank in (0, 1):
        assert_same_steps(result, rank)
    assert list_rank_folders(result) == ["rank0000", "rank0001"]
    assert_no_finding(result)


def test_lightnings_own_launcher(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("lightning_fit", "--devices", "2")
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    for rank in (0, 1):
        assert_same_steps(result, rank)
    assert_no_finding(result)


def free_port() -> int:
    """A port nobody listens on right now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.parametrize("joined_by", ["run-dir", "rendezvous"])
def test_two_agents_of_one_job_join_one_run(tmp_path: Path, joined_by: str) -> None:
    """``torchrun --nnodes=2`` twice on the loopback, each under its own `tdbg run`."""
    job = f"job-{os.getpid()}-{joined_by}"
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--rdzv-id={job}"]
    words = build_torchrun_command("ddp", options=["--nnodes=2", "--nproc-per-node=1", *meeting])
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "tdbg", "run", "--run-dir", str(folder), "--", *words]
    env = build_environment({"TORCHELASTIC_RUN_ID": job} if joined_by == "rendezvous" else {})
    agents = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for _ in range(2)
    ]
    try:
        outs = [agent.communicate(timeout=PATIENCE_S) for agent in agents]
    finally:
        for agent in agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
    assert [agent.returncode for agent in agents] == [0, 0], outs
    result = Result(0, "".join(out for out, _ in outs), "".join(err for _, err in outs), folder)
    for rank in (0, 1):
        assert_same_steps(result, rank)
    assert list_rank_folders(result) == ["rank0000", "rank0001"]
    assert sum("verdict" in line for line in result.tdbg_lines) == 1, "one agent speaks"
    assert_no_finding(result)


def test_a_batch_is_not_run_again_on_one_rank_where_its_forward_pass_communicates(watched_runner: Runner) -> None:
    """Its collective would meet another one's of the rank that goes on, and end the job or hang it."""
    result = watched_runner(build_torchrun_command("collective_forward"))
    assert result.code == 0, result.stderr
    finding = result.find_finding("TD-N001")
    assert (finding["rank"], finding["first_step"]) == (0, 4)


ENDINGS = [
    ("7", "TD-R002", "exited with code 7"),
    ("SIGKILL", "TD-R002", "SIGKILL"),
    ("raise", "TD-R003", "RuntimeError: planted"),
    ("leave", "TD-R007", "ended with exit code 0 after step 3, and rank 0 then failed in a collective"),
]


@pytest.mark.cold  # a launcher reports the ids of its own children
@pytest.mark.parametrize(("how", "code", "shown"), ENDINGS)
def test_the_verdict_names_the_rank_that_died_and_how(watched_runner: Runner, how: str, code: str, shown: str) -> None:
    result = watched_runner(build_torchrun_command("ddp", "--die", "1", how))
    assert result.code == 1, "torchrun's own exit code"
    worst = result.verdict["findings"][0]
    assert (worst["code"], worst["rank"]) == (code, 1), "the rank that died comes first, not the one it took along"
    assert shown in worst["title"]
    assert {row["rank"]: row["steps"] for row in result.verdict["ranks"]} == {0: 3, 1: 3}
    assert len(result.tdbg_lines) <= 20


@pytest.mark.cold  # the processes are told by their ids
@pytest.mark.parametrize("when", ["during", "after"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_that_train_while_their_parent_evaluates(watched_runner: Runner, method: str, when: str) -> None:
    """Hogwild: no process group, so no ranks; a process that never trained is no restart of one that did."""
    result = watched_runner(build_program_command("hogwild", method, when))
    assert result.code == 0, result.stderr
    trained = {line["pid"]: line["steps"] for line in result.list_printed("trained")}
    (parent,) = result.list_printed("evaluated")
    assert sorted(trained.values()) == [12, 20]
    assert "2 training processes without a process group, 20 steps" in result.verdict["headline"]
    rows = {row["pid"]: row for row in [*result.verdict["ranks"], *result.verdict["others"]]}
    assert {pid: row["steps"] for pid, row in rows.items()} == {**trained, parent["pid"]: 0}
    assert rows[parent["pid"]]["evals"] == parent["calls"]
    assert {row["attempts"] for row in rows.values()} == {1} and {row["ended"] for row in rows.values()} == {"ended"}
    verdict = "\n".join(result.tdbg_lines)
    for pid, steps in trained.items():
        assert f"process {pid}: step {steps}, ended, loss " in verdict, verdict
    assert f"process {parent['pid']}: {parent['calls']} evaluation calls, ended" in verdict
    assert not any(word in verdict for word in ("attempt", "restart"))
    assert_no_finding(result)
