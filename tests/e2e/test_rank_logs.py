"""The logs of two real ranks: what both say, where they differ, and who went quiet first."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = """
import logging, os, signal, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, wrong, stopped = dist.get_rank(), int(sys.argv[1]), int(sys.argv[2])
open(f"{os.getpid()}.pid", "w").close()
form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
logging.basicConfig(filename=f"train_rank{rank}.log", level=logging.INFO, format=form)
log = logging.getLogger("train")
log.info("rank %d of %d, pid %d, model at %#x", rank, dist.get_world_size(), os.getpid(), id(log))
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 31):
    x = torch.ones(8, 4)
    if rank == 1 and step == wrong:
        x *= 2
    loss = model(x).pow(2).mean()
    log.info("step %d: loss %.6f", step, loss.item())
    if rank == 1 and step == stopped:
        os.kill(os.getpid(), signal.SIGSTOP)
    log.info("step %d: backward", step)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 10 == 0:
        log.info("step %d: checkpoint\\n    of two lines", step)
log.info("done")
dist.barrier()
time.sleep(0.3)  # the other rank may still read
logging.shutdown()
os._exit(0)  # Python's own way out of DDP on gloo aborts now and then: see leave_group in programs/common.py
"""


@pytest.fixture(autouse=True)
def _working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)


@pytest.fixture
def started_processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    ranks = [int(path.stem) for path in Path().glob("*.pid")]  # torchrun starts them in sessions of their own
    for process in started:
        for pid in (process.pid, *ranks):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def start_training(wrong: int, stopped: int) -> subprocess.Popen[bytes]:
    words = ["torch.distributed.run", "--nproc-per-node=2", "--standalone", "train.py", str(wrong), str(stopped)]
    return subprocess.Popen([sys.executable, "-m", *words], start_new_session=True, stderr=subprocess.DEVNULL)


def filter_logs(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tdbg", "filter-logs", ".", *words], capture_output=True, text=True)


def test_two_ranks_collapsed_and_diverged(started_processes: list[subprocess.Popen[bytes]]) -> None:
    started_processes.append(start_training(wrong=17, stopped=0))
    assert started_processes[0].wait(120) == 0
    lines = sum(path.read_text().count("\n") for path in Path().glob("train_rank*.log"))
    collapsed = filter_logs("--collapse")
    heads = [line for line in collapsed.stdout.splitlines() if line.startswith("[r")]
    both = [line for line in heads if line.startswith("[r0-1] ")]
    own = [line for line in heads if line.startswith("[r0] ")]
    assert any("rank 0 of 2" in line or "rank 1 of 2" in line for line in both)
    assert len(own) >= 3 and collapsed.stdout.count("    of two lines") == 3
    assert 2 * len(both) + (len(heads) - len(both)) + 3 == lines  # nothing is lost, nothing is said twice
    diverged = filter_logs("--diverge")
    assert "tdbg: the first step in which ranks differ: 17\n" in diverged.stderr
    assert "step 17: loss" in diverged.stdout and "checkpoint" not in diverged.stdout
    assert "step 16" not in diverged.stdout


def test_a_stopped_rank_is_the_first_to_be_silent(started_processes: list[subprocess.Popen[bytes]]) -> None:
    started_processes.append(start_training(wrong=0, stopped=12))
    last = {Path("train_rank0.log"): "step 12: backward", Path("train_rank1.log"): "step 12: loss"}
    end = time.monotonic() + 120
    while not all(log.exists() and text in log.read_text() for log, text in last.items()) and time.monotonic() < end:
        time.sleep(0.1)
    done = filter_logs("--silent")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["rank", "1", "0"] and "step 12: loss" in rows[1][-1]
    assert "tdbg: r1 went quiet first after step 12" in done.stderr
    assert "tdbg: r0 went on: step 12: backward" in done.stderr
