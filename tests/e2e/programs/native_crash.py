"""A rank that native code ends. KIND: collective (rank 0 alone calls one more), pointer (a bad address), none."""

import ctypes
import sys

import torch
import torch.distributed as dist
from torch import nn

STEPS, LAST = 60, 30


def read_bad_address() -> None:
    ctypes.string_at(0)


def main(kind: str) -> None:
    torch.manual_seed(0)
    model: nn.Module = nn.Linear(16, 4)
    if kind == "collective":
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, STEPS + 1):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == LAST and kind == "pointer":
            read_bad_address()
        if step == LAST and kind == "collective" and dist.get_rank() == 0:
            dist.all_reduce(loss.detach())
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
