"""DDP on gloo, for torchrun: at step 3 rank 1 does something else for a while, and the others wait for it.

``--for SECONDS``.
``--in backward`` lets the others wait in the reducer, ``--in all_reduce`` in a call of the program's own.
"""

import argparse
import time

import torch
import torch.distributed as dist
from common import leave_group, make_regression, print_fact
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def evaluate_alone(seconds: float) -> None:
    """What only one rank does."""
    time.sleep(seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--for", dest="seconds", type=float, default=6.0)
    parser.add_argument("--in", dest="place", default="all_reduce")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x_all, y_all = make_regression(16 * 5, seed=rank).tensors
    for step in range(1, 6):
        piece = slice(16 * (step - 1), 16 * step)
        if step == 3 and rank == 1:
            evaluate_alone(args.seconds)
        loss = nn.functional.mse_loss(model(x_all[piece]), y_all[piece])
        if args.place == "all_reduce":
            dist.all_reduce(loss.detach().clone())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print_fact("step", rank=rank, step=step)
    leave_group()


if __name__ == "__main__":
    main()
