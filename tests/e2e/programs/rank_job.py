"""What rank_faults.py and rank_twins.py train: a small model, data that can come slowly, and all that a rank holds.

Shapes: B batch, F features.
"""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from slow_ranks import burn_time
from torch import Tensor, nn
from torch.utils.data import Dataset

AT, FEATURES, BATCH = 20, 16, 8  # AT: the step at which faults begin
STEP_MS, EXTRA_MS = 10.0, 40.0
NOISE = 0.1


class Samples(Dataset[Tensor]):
    """Random rows, other ones on each rank; reading one can take longer, or for ever, or draw noise."""

    def __init__(self, count: int, seed: int, *, noisy: bool = False) -> None:
        self.count, self.seed, self.noisy = count, seed, noisy
        self.extra_s, self.stuck_at = 0.0, -1

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        parent = os.getppid()
        while index == self.stuck_at and os.getppid() == parent:  # planted: loader
            time.sleep(0.2)  # planted: loader
        if self.extra_s:
            time.sleep(self.extra_s / BATCH)  # planted: slow-data
        row = torch.randn(FEATURES, generator=torch.Generator().manual_seed(index + 10**6 * self.seed))
        return row + NOISE * torch.randn(FEATURES) if self.noisy else row


class Block(nn.Module):
    """A layer that can take longer; with ``loops`` it needs so much of a CPU instead of so much time."""

    extra_ms = 0.0
    loops = 0

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x_BF: Tensor) -> Tensor:
        if self.loops:
            count_up(self.loops)
        else:
            burn_time(STEP_MS / 2 + self.extra_ms)
        out: Tensor = self.layers(x_BF)
        return out


def count_up(loops: int) -> int:
    """Work for the processor, however long it takes."""
    count = 0
    for number in range(loops):
        count += number
    return count


@dataclass
class Job:
    """What a rank trains with."""

    rank: int
    world: int
    is_guilty: bool
    body: Block
    model: nn.Module
    data: Samples
    group: "dist.ProcessGroup"  # of all ranks, beside the world's
    no_sync: Callable[[], contextlib.AbstractContextManager[None]]  # inside it gradients are not averaged
