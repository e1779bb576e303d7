"""A classifier without a line of tdbg: ignored targets, class weights, label smoothing; ``--fault`` plants one mistake.

Of several ranks, which train on their own here, the last one makes it.
"""

import argparse
import os

import torch
from common import print_fact
from torch import nn

FAULTS = ("none", "ignored", "weights", "empty", "inverted", "rows", "null", "compiled")
STEPS, BAD_STEP, CLASSES = 40, 23, 5
SHARES = torch.tensor([0.5, 0.25, 0.15, 0.1, 0.0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=FAULTS, default="none")
    fault = parser.parse_args().fault
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    fault = fault if rank == world - 1 else "none"
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    weight = torch.tensor([1.0, 0.6, 0.4, 0.2, 0.0] if fault == "inverted" else [1.0, 2.0, 3.0, 5.0, 0.0])
    criterion = nn.CrossEntropyLoss(weight=weight, label_smoothing=0.1)
    by_hand = torch.compile(lambda y, t: criterion(y, t), backend="aot_eager") if fault == "compiled" else criterion
    for step in range(1, STEPS + 1):
        x, target = torch.randn(64, 8), torch.multinomial(SHARES, 64, replacement=True)
        target[torch.rand(64) < 0.3] = -100
        if step == BAD_STEP and fault == "ignored":
            target[:] = -100
        if step == BAD_STEP and fault == "weights":
            target[:] = 4
        if step == BAD_STEP and fault == "empty":
            x, target = x[:0], target[:0]
        if fault == "null":
            target[target == -100] = 0
        if fault == "rows":
            rows = nn.functional.one_hot(target.clamp(min=0), CLASSES) + 0.1
            loss = nn.functional.cross_entropy(model(x), rows)
        else:
            loss = by_hand(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print_fact("step", rank=rank, step=step, loss=loss.item(), ignored=int((target == -100).sum()))


if __name__ == "__main__":
    main()
