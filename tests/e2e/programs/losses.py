"""Two tasks on one backbone, with nulls that are masked, for torchrun on gloo; it calls `tdbg.probes.loss`.

``--fault one-hot`` compares the elements of one-hot rows with the null index, on rank 1 alone.
"""

import argparse

import torch
import torch.distributed as dist
from common import leave_group, print_fact
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tdbg.probes import loss

STEPS, BATCH = 24, 32
CLASSES = {"family": 4, "species": 6}


class Net(nn.Module):
    """A head per task."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.heads = nn.ModuleDict({task: nn.Linear(16, size) for task, size in CLASSES.items()})

    def forward(self, x_BF: torch.Tensor) -> dict[str, torch.Tensor]:
        h_BH = self.body(x_BF)
        return {task: head(h_BH) for task, head in self.heads.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    fault = parser.parse_args().fault
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for step in range(1, STEPS + 1):
        x_BF = torch.randn(BATCH, 8, generator=generator)
        targets = {task: torch.randint(size, (BATCH,), generator=generator) for task, size in CLASSES.items()}
        nulls = {task: target == 0 for task, target in targets.items()}
        if fault == "one-hot" and rank == 1:
            targets["species"] = nn.functional.one_hot(targets["species"], CLASSES["species"])
            nulls["species"] = (targets["species"] == 0).any(1)
        masked = {task: null & (torch.rand(BATCH, generator=generator) < 0.5) for task, null in nulls.items()}
        outputs = model(x_BF)
        loss.null_masking(targets, masked, nulls=nulls, classes=CLASSES, probability=0.5, schedule=(step, 1, 2 * STEPS))
        total = x_BF.new_zeros(())
        for task, target in targets.items():
            indices = target.argmax(1) if target.ndim == 2 else target
            each_B = nn.functional.cross_entropy(outputs[task], indices, reduction="none")
            total = total + (each_B * ~masked[task]).sum() / (~masked[task]).sum().clamp(min=1)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        counts = {task: int(null.sum()) for task, null in nulls.items()}
        hidden = {task: int(mask.sum()) for task, mask in masked.items()}
        print_fact("step", rank=rank, step=step, loss=total.item(), nulls=counts, masked=hidden)
    leave_group()


if __name__ == "__main__":
    main()
