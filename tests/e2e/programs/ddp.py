"""DDP on gloo, for torchrun: every rank has its own data and loss; the gradients are averaged.

``--stop-early RANK`` lets that rank leave its loop before the others; ``--die RANK HOW`` ends it badly.
"""

import argparse
import os
import signal
import sys

import torch
import torch.distributed as dist
from common import leave_group, make_regression, print_fact
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def end_process(how: str) -> None:
    """End this process the way that was asked for."""
    if how == "raise":
        raise RuntimeError("planted: this rank is unwell")
    if how == "leave":
        os._exit(0)  # sys.exit aborts now and then: see leave_group
    if how.isdigit():
        sys.exit(int(how))
    os.kill(os.getpid(), getattr(signal, how))


def train_rank(
    rank: int, world: int, steps: int = 8, die_rank: int = -1, die_how: str = "raise", die_step: int = 4
) -> None:
    """Train ``steps`` steps as one of ``world`` ranks; the process group exists."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x_all, y_all = make_regression(16 * steps, seed=rank).tensors
    for step in range(1, steps + 1):
        if die_rank >= 0 and step == die_step:
            dist.barrier()  # all have done the step before
            if rank == die_rank:
                end_process(die_how)
        piece = slice(16 * (step - 1), 16 * step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x_all[piece]), y_all[piece])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print_fact("step", rank=rank, step=step, loss=loss.item(), norm=norm.item(), lr=0.05)
    print_fact("done", rank=rank, steps=steps, world=world)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--die", nargs=2, metavar=("RANK", "HOW"), default=("-1", "raise"))
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train_rank(dist.get_rank(), dist.get_world_size(), die_rank=int(args.die[0]), die_how=args.die[1])
    leave_group()


if __name__ == "__main__":
    main()
