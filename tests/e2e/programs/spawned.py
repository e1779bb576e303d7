"""Two ranks of torch.multiprocessing, of which the second fails at the step given.

spawned.py START_METHOD STEP
"""

import os
import sys

import torch
from torch import multiprocessing, nn


def run_rank(rank: int, bad_step: int) -> None:
    """Train without the other rank; what the second raises ends it."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 9):
        if rank == 1 and step == bad_step:
            raise ValueError("planted in the second rank")
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    multiprocessing.start_processes(run_rank, (int(sys.argv[2]),), nprocs=2, start_method=sys.argv[1])
