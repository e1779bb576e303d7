"""Trains a small net with in-place operations over two epochs, each followed by a validation pass.

It keeps what its layers put out by hooks of its own, as clones, and saves them for the test. ``--ddp`` for torchrun.
"""

import argparse
import contextlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from common import leave_group, print_fact
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

SAMPLES, BATCH, EPOCHS = 24, 8, 2


class Pictures(Dataset):
    """Noise with a label; each sample names itself."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, object]:
        generator = torch.Generator().manual_seed(self.seed + index)
        return {
            "inputs": torch.randn(3, 8, 8, generator=generator),
            "labels": index % 4,
            "meta_info": {"idx": 100 + index},
        }


class Net(nn.Module):
    """A convolution whose output is written into, a layer that runs twice, and one that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.mix = nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4 * 8 * 8, 4)
        self.unused = nn.Linear(2, 2)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BCHW = self.act(self.conv(x_BCHW))
        x_BCHW = self.mix(self.mix(x_BCHW))
        return self.head(x_BCHW.flatten(1))


class Kept:
    """What the program itself sees of its layers."""

    def __init__(self, net: Net) -> None:
        self.found: dict[str, Tensor] = {}
        self.place = ""
        for name in ("conv", "mix", "head"):
            getattr(net, name).register_forward_hook(lambda _, __, out, name=name: self.keep_output(name, out))

    def keep_output(self, name: str, out: Tensor) -> None:
        """Clone an output; of a second call in the same pass, under a name of its own."""
        key = f"{self.place}/{name}:output"
        key = f"{self.place}/{name}#1:output" if key in self.found else key
        self.found[key] = out.detach().clone()
        if out.requires_grad and name == "conv":
            place = self.place
            out.register_hook(lambda grad: self.found.__setitem__(f"{place}/conv:grad", grad.clone()))


def wait_for_a_datapoint() -> None:
    """Until tdbg's writer, a thread of its own, has put something on disk."""
    from tdbg.core.errors import TdbgError
    from tdbg.pages.read.page_set import PageSet

    until = time.monotonic() + 30
    while time.monotonic() < until:
        with contextlib.suppress(TdbgError), PageSet.open(os.environ["TDBG_RUN_DIR"]) as pages:
            if next(iter(pages), None) is not None:
                return
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--die-at", type=int, default=0)
    parser.add_argument("--nan-at", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--progress", type=Path, help="a file that each step begins with a line in")
    args = parser.parse_args()
    rank = 0
    if args.ddp:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net()
    kept = Kept(net)
    model = DistributedDataParallel(net, find_unused_parameters=True) if args.ddp else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train, val = (DataLoader(Pictures(seed), BATCH, shuffle=False) for seed in (0, 1000))
    step = passes = 0
    for _epoch in range(args.epochs):
        model.train()
        for batch in train:
            step += 1
            if step == args.die_at:
                wait_for_a_datapoint()
                os.kill(os.getpid(), 9)
            kept.place = f"train{step}"
            if args.progress is not None:
                with args.progress.open("a") as file:
                    file.write(f"{step}\n")
            time.sleep(args.pause)
            scale = float("nan") if step == args.nan_at else float(rank + 1)
            loss = nn.functional.cross_entropy(model(batch["inputs"] * scale), batch["labels"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for batch in val:
                passes += 1
                kept.place = f"val{passes}"
                model(batch["inputs"] * (rank + 1))
    torch.save(kept.found, Path(f"kept{rank}.pt"))
    print_fact("done", rank=rank, steps=step, passes=passes)
    if args.ddp:
        leave_group()


if __name__ == "__main__":
    main()
