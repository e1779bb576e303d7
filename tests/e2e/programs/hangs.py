"""DDP on gloo: at step 20 one rank does not go on, in one of several ways; or it takes its time, and all is well.

hangs.py KIND [RANK [SECONDS]]

RANK does it (1). SECONDS is how long a healthy kind takes (6). For torchrun; without its variables two ranks are spawned.
"""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from common import leave_group, print_fact
from torch import Tensor, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

AT, STEPS = 20, 30


class StepOver(Exception):
    """The step is left out."""


class LoopLeft(Exception):
    """The loop is left."""


def fall_asleep(seconds: float) -> None:
    time.sleep(3600)  # planted: sleep


def wait_for_lock(seconds: float) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # planted: lock


def read_pipe(seconds: float) -> None:
    path = Path(tempfile.mkdtemp()) / "pipe"
    os.mkfifo(path)
    path.read_bytes()  # planted: disk


def receive_nothing(seconds: float) -> None:
    dist.recv(torch.ones(1), src=1 - dist.get_rank())


def skip_step(seconds: float) -> None:
    raise StepOver


def leave_loop(seconds: float) -> None:
    raise LoopLeft


def compute_long(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10_000))


def save_long(seconds: float) -> None:
    """A checkpoint on a slow disk."""
    reading, writing = os.pipe()
    threading.Thread(target=drain_slowly, args=(reading, seconds), daemon=True).start()
    with os.fdopen(writing, "wb") as file:
        torch.save(torch.zeros(1_000_000), file)


def drain_slowly(reading: int, seconds: float) -> None:
    time.sleep(seconds)
    while os.read(reading, 1 << 20):
        pass


def evaluate_long(seconds: float) -> None:
    model = nn.Linear(16, 4).eval()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with torch.no_grad():
            model(torch.zeros(2, 16))
        time.sleep(0.2)


KINDS: dict[str, Callable[[float], None]] = {
    "sleep": fall_asleep,
    "lock": wait_for_lock,
    "pipe": read_pipe,
    "recv": receive_nothing,
    "skip": skip_step,
    "leave": leave_loop,
    "compute": compute_long,
    "save": save_long,
    "evaluate": evaluate_long,
}


class Samples(Dataset[Tensor]):
    """Random rows; reading one of step 20 never ends, if it is to."""

    def __init__(self, rank: int, stuck: bool) -> None:
        self.rank, self.stuck = rank, stuck

    def __len__(self) -> int:
        return 8 * STEPS

    def __getitem__(self, index: int) -> Tensor:
        parent = os.getppid()
        while self.stuck and index == 8 * (AT - 1) and os.getppid() == parent:
            time.sleep(0.2)  # and no longer: a worker that sleeps does not notice that its rank was ended
        return torch.randn(16, generator=torch.Generator().manual_seed(2 * index + self.rank))


def train(kind: str, who: int, seconds: float) -> None:
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    stuck = rank == who and kind in ("dataset", "worker")
    loader = DataLoader(Samples(rank, stuck), batch_size=8, num_workers=int(kind == "worker"))
    for step, x in enumerate(loader, 1):
        if step == AT and rank == who and kind in KINDS:
            try:
                KINDS[kind](seconds)
            except StepOver:
                continue
            except LoopLeft:
                break
        loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
    dist.barrier()
    print_fact("done", rank=rank)


def run_rank(rank: int, kind: str, who: int, seconds: float) -> None:
    """One rank that `torch.multiprocessing` started."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
    run_training(kind, who, seconds)


def run_training(kind: str, who: int, seconds: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(kind, who, seconds)
    leave_group()


if __name__ == "__main__":
    given = (sys.argv[1], int((sys.argv[2:] or ["1"])[0]), float((sys.argv[3:] or ["6"])[0]))
    if "RANK" in os.environ:
        run_training(*given)
    else:
        os.environ["MASTER_PORT"] = str(29500 + os.getpid() % 2000)
        multiprocessing.spawn(run_rank, given, nprocs=2)
