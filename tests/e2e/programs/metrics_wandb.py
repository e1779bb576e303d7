"""A plain loop that logs to an offline Weights & Biases run: numbers, tensors, a nested dict, words, NaN, uneven keys."""

import os
import sys

os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_DIR=sys.argv[1])

import torch
import wandb
from common import make_regression, print_fact
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    run = wandb.init(project="p", settings=wandb.Settings(x_disable_stats=True))
    x, y = make_regression(32).tensors
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(6):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wandb.log(
            {"train/loss": loss, "half": {"step": step / 2}, "word": f"w{step}"}, step=10 * step, commit=step % 2 == 0
        )
        print_fact("step", step=step + 1, loss=loss.item())
        if step == 3:
            wandb.log({"nan": float("nan"), "flag": True, "none": None, "picture": wandb.Html("<p>")}, step=10 * step)
    run.finish()
    print_fact("done", steps=6)


if __name__ == "__main__":
    main()
