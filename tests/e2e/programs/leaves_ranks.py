"""Two spawned ranks hear Ctrl-C and take some seconds to end, as if they saved something; their parent ends at once.

usage: leaves_ranks.py SECONDS
"""

import os
import signal
import sys
import time
from types import FrameType

import torch
import torch.distributed as dist
from common import print_fact
from torch import multiprocessing, nn


def end_later(number: int, frame: FrameType | None) -> None:
    time.sleep(float(sys.argv[1]))
    sys.exit(130)


def end_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(130)


def run_rank(rank: int) -> None:
    """One rank, which trains until it is told to end."""
    signal.signal(signal.SIGINT, end_later)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(1, 100_000):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        time.sleep(0.01)
        if step == 20:
            dist.barrier()
            print_fact("trains", rank=rank)


if __name__ == "__main__":
    os.environ["MASTER_PORT"] = str(29500 + os.getpid() % 2000)
    started = multiprocessing.spawn(run_rank, nprocs=2, join=False)
    signal.signal(signal.SIGINT, end_at_once)
    while not started.join():
        pass
