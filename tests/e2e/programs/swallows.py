"""A main that catches its own crash, logs it and exits 0."""

import logging
import sys

import torch
from common import make_regression, print_fact
from torch import nn

log = logging.getLogger("swallows")


def train_model() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = make_regression(32).tensors
    for step in range(1, 11):
        if step == 5:
            x = x[:, :7]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        print_fact("step", step=step, loss=loss.item())


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    try:
        train_model()
    except RuntimeError:
        log.exception("training failed")
    print_fact("done")
