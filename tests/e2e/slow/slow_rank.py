"""Two ranks whose batches come from far away, for the second from farther; --healthy both are as near."""

import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

CODE = "TD-P115"
SAYS = "rank 1 does"
OPTIONS = ("--active", "8")
RANKS = 2


def main() -> None:
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    away_s = 0.06 if "--healthy" in sys.argv or rank == 0 else 0.15
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(12):
        time.sleep(away_s)
        optimizer.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
    gc.collect()
    dist.barrier()
    time.sleep(0.3)  # as in leave_group of programs/common.py: without it the way out aborts now and then
    dist.destroy_process_group()
    print("done")


if __name__ == "__main__":
    main()
