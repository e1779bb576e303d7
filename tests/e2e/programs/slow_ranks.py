"""Data-parallel training on gloo in which one rank is slower than the others, in one of several ways; or none is.

slow_ranks.py KIND [--rank RANK] [--by MODE] [--steps N] [--ms MS] [--extra MS]

KIND: what RANK (1) spends --extra milliseconds (30) a step in, from step 20 on; see KINDS. MODE: ddp, or hand: gradients
are averaged by hand. A step takes about --ms milliseconds (20) besides. For torchrun; without its variables --nprocs
ranks are spawned. Shapes: B batch, F features.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from common import leave_group, print_fact
from torch import Tensor, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FROM, FEATURES = 20, 16


def burn_time(ms: float) -> None:
    """Keep the processor busy."""
    end = time.perf_counter() + ms / 1e3
    while time.perf_counter() < end:  # planted: slow-forward, growing
        sum(range(200))  # planted: slow-forward, growing


class Samples(Dataset[Tensor]):
    """Random rows; reading one can be made to take longer."""

    extra_s = 0.0

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return 8 * self.count

    def __getitem__(self, index: int) -> Tensor:
        if self.extra_s:
            time.sleep(self.extra_s / 8)
        return torch.randn(FEATURES, generator=torch.Generator().manual_seed(index + dist.get_rank() * 10**6))


class Block(nn.Module):
    """A layer that can be made to take longer."""

    extra_ms = 0.0

    def __init__(self, ms: float) -> None:
        super().__init__()
        self.layers, self.ms = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 4)), ms

    def forward(self, x_BF: Tensor) -> Tensor:
        burn_time(self.ms)
        if self.extra_ms:
            self.run_slowly()
        out: Tensor = self.layers(x_BF)
        return out

    def run_slowly(self) -> None:
        burn_time(self.extra_ms)


def write_log(ms: float) -> None:
    """What a rank does after its update, such as drawing samples."""
    time.sleep(ms / 1e3)


def save_checkpoint(model: nn.Module, ms: float) -> None:
    """A checkpoint to a slow disk."""
    path = Path(tempfile.gettempdir()) / f"checkpoint-{os.getpid()}.pt"
    torch.save(model.state_dict(), path)
    time.sleep(ms / 1e3)  # planted: checkpoints
    path.unlink()


# kind -> milliseconds of a step, given the step and the usual extra ones
COURSES: dict[str, Callable[[int, float], float]] = {
    "bursts": lambda step, ms: 8 * ms if step // 10 % 4 == 0 else 0.0,
    "growing": lambda step, ms: ms * (step - FROM) / 60,
    "pause": lambda step, ms: 3000.0 if step == 100 else 0.0,
}
KINDS = ("none", "data", "forward", "log", "checkpoint", *COURSES)


def average_by_hand(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()  # type: ignore[operator]


def train(options: argparse.Namespace) -> None:
    slow = dist.get_rank() == options.rank and options.kind != "none"
    body, data = Block(options.ms / 2), Samples(options.steps)
    model = DistributedDataParallel(body) if options.by == "ddp" else body
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step, x_BF in enumerate(DataLoader(data, batch_size=8), 1):
        extra_ms = options.extra if slow and step >= FROM else 0.0
        if extra_ms and options.kind in COURSES:
            extra_ms = COURSES[options.kind](step, options.extra)
        kind = "forward" if options.kind in COURSES else options.kind
        body.extra_ms = extra_ms if kind == "forward" else 0.0
        data.extra_s = extra_ms / 1e3 if kind == "data" else 0.0
        loss = nn.functional.cross_entropy(model(x_BF), x_BF[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        if options.by == "hand":
            average_by_hand(body)
        optimizer.step()
        burn_time(options.ms / 2)
        if kind == "log" and extra_ms:
            write_log(extra_ms)
        if kind == "checkpoint" and extra_ms and step % 25 == 0:
            save_checkpoint(body, 25 * extra_ms)
    print_fact("done", rank=dist.get_rank())


def run_training(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    train(options)
    leave_group()


def run_rank(rank: int, options: argparse.Namespace) -> None:
    """One rank that `torch.multiprocessing` started."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(options.nprocs), MASTER_ADDR="127.0.0.1")
    run_training(options)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--by", choices=("ddp", "hand"), default="ddp")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ms", type=float, default=20.0)
    parser.add_argument("--extra", type=float, default=30.0)
    parser.add_argument("--nprocs", type=int, default=2)
    options = parser.parse_args()
    if "RANK" in os.environ:
        run_training(options)
    else:
        os.environ["MASTER_PORT"] = str(29500 + os.getpid() % 2000)
        multiprocessing.spawn(run_rank, (options,), nprocs=options.nprocs)


if __name__ == "__main__":
    main()
