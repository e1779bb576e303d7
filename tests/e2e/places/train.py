"""Two ranks that train in step: `python train.py FAULT STEPS`, on torchrun, in pods or under SLURM; rank 1 has the fault.

FAULT: none, nan or hang.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

NAN_STEP = 12
HANG_STEP = 30


def main(fault: str, steps: int) -> None:
    rank = int(os.environ.setdefault("RANK", os.environ.get("SLURM_PROCID", "0")))
    os.environ.setdefault("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1"))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        inputs = torch.randn(16, 32, generator=generator)
        labels = torch.randint(0, 4, (16,), generator=generator)
        if fault == "nan" and rank == 1 and step == NAN_STEP:
            inputs[3] = float("nan")
        if fault == "hang" and rank == 1 and step == HANG_STEP:
            time.sleep(600)  # planted: hang
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
