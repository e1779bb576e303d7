"""A main that catches its own crash, logs it and exits 0."""

import logging
import sys

import torch
from common import regression, tell
from torch import nn

log = logging.getLogger("swallows")


def train() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = regression(32).tensors
    for step in range(1, 11):
        if step == 5:
            x = x[:, :7]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        tell("step", step=step, loss=loss.item())


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    try:
        train()
    except RuntimeError:
        log.exception("training failed")
    tell("done")
