"""A training that goes on until a file appears, for those who change it while it runs. One rank, or DDP on gloo.

``--spike STEP``: the loss of that one step is fifty times as high. ``--evaluate``: no training, only evaluation.
``lost_ms`` of its last line: how long it was not let run, as far as a sleeping thread can tell.
"""

import argparse
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from common import leave_group, print_fact
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 384
MAX_STEPS = 20_000
NAP_S, LATE_S = 0.005, 0.020


def is_over(until: Path, world: int) -> bool:
    """True on all ranks in the same step."""
    over = torch.tensor(float(until.exists()))
    if world > 1:
        dist.all_reduce(over, dist.ReduceOp.MAX)
    return bool(over)


class Naps(threading.Thread):
    """Sleeps, and sums up by how much it woke too late: the machine had other things to do, or kept what holds the GIL.

    A hook that computes does not make it late: Python hands the GIL over every 5 ms.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.lost_s = 0.0

    def run(self) -> None:
        while True:
            began = time.perf_counter()
            time.sleep(NAP_S)
            late = time.perf_counter() - began - NAP_S
            self.lost_s += late if late > LATE_S else 0.0


def make_network() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


def train_model(model: nn.Module, rank: int, world: int, until: Path, spike: int) -> int:
    """Train until the file is there; returns the steps done."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(1, MAX_STEPS):
        x = torch.randn(256, WIDTH, generator=generator)
        optimizer.zero_grad()
        loss: Tensor = nn.functional.mse_loss(model(x), x.mean(1, keepdim=True)) + 1.0
        (loss * 50.0 if step == spike else loss).backward()
        optimizer.step()
        if step % 10 == 0 and is_over(until, world):
            return step
    return MAX_STEPS


def evaluate_model(model: nn.Module, until: Path) -> int:
    """Evaluate until the file is there; returns the calls made."""
    model.eval()
    for call in range(1, MAX_STEPS):
        with torch.no_grad():
            model(torch.randn(256, WIDTH))
        if until.exists():
            return call
    return MAX_STEPS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("until", type=Path)
    parser.add_argument("--spike", type=int, default=0)
    parser.add_argument("--evaluate", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    naps = Naps()
    naps.start()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    model = make_network()
    if world > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    rank = dist.get_rank() if world > 1 else 0
    if args.evaluate:
        steps = evaluate_model(model, args.until)
    else:
        steps = train_model(model, rank, world, args.until, args.spike)
    print_fact("done", rank=rank, steps=steps, lost_ms=round(1000 * naps.lost_s, 1))
    if world > 1:
        leave_group()


if __name__ == "__main__":
    main()
