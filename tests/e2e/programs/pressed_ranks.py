"""Data-parallel training on gloo, each rank bound to a CPU of its own, whose steps take CPU time rather than wall time.

pressed_ranks.py [--samples N]

Once tdbg has looked at the host so many times, rank 1 has many threads that multiply matrices; after as many looks more, and
one, all is over: however busy the machine is. Shapes: B batch, F features.
"""

import argparse
import os
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from common import print_fact
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

BATCH, FEATURES, LOOPS, THREADS = 8, 16, 400_000, 8


class Block(nn.Module):
    """A layer, and work for the processor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 4)

    def forward(self, x_BF: Tensor) -> Tensor:
        count = 0
        for number in range(LOOPS):
            count += number
        out: Tensor = self.layer(x_BF)
        return out


def multiply() -> None:
    """Keep a processor busy outside of Python."""
    matrix = torch.randn(400, 400)
    while True:
        matrix = torch.nn.functional.normalize(matrix @ matrix)


def start_threads() -> None:
    for _ in range(THREADS):
        threading.Thread(target=multiply, daemon=True).start()


def count_samples() -> int:
    """How often tdbg has written what presses on this host."""
    files = Path(os.environ["TDBG_RUN_DIR"]).glob("pressure/*.jsonl")
    return sum(len(file.read_bytes().splitlines()) for file in files)


def agree(is_so: bool) -> bool:
    """True on all ranks if it is so on one."""
    answer = torch.tensor(float(is_so))
    dist.all_reduce(answer, dist.ReduceOp.MAX)
    return bool(answer)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, cpus = dist.get_rank(), sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    torch.manual_seed(rank)
    model = DistributedDataParallel(Block())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    loader = DataLoader(TensorDataset(torch.randn(BATCH * 10_000, FEATURES)), batch_size=BATCH)
    is_pressed, wanted = False, options.samples
    for (x_BF,) in loader:
        if agree(rank == 0 and count_samples() >= wanted):
            if is_pressed:
                break
            is_pressed, wanted = True, 2 * options.samples + 1
            if rank == 1:
                start_threads()
        loss = nn.functional.cross_entropy(model(x_BF), x_BF[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print_fact("done", rank=rank)
    dist.barrier()
    os._exit(0)  # the threads have no end


if __name__ == "__main__":
    main()
