"""The model is written to the disk in the loop, every few steps; --healthy once, after the last."""

import os
import sys

import torch
from torch import nn

CODE = "TD-P113"
SAYS = "a save or a write to the disk"
OPTIONS = ("--active", "8", "--kind", "stacks")
RANKS = 1

EVERY = 6


def save_durably(model: nn.Module) -> None:
    """As safe as it gets: it is on the disk when this returns."""
    with open("checkpoint.pt", "wb") as file:
        torch.save(model.state_dict(), file)
        file.flush()
        os.fsync(file.fileno())


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Embedding(100_000, 128), nn.Flatten(), nn.Linear(128 * 8, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model[2:].parameters(), lr=0.01)
    model[0].requires_grad_(False)
    healthy = "--healthy" in sys.argv
    for step in range(14):
        optimizer.zero_grad()
        words = torch.randint(100_000, (256, 8))
        nn.functional.cross_entropy(model(words), words[:, 0] % 4).backward()
        optimizer.step()
        if not healthy and step % EVERY == 0:
            save_durably(model)
    save_durably(model)
    print("done")


if __name__ == "__main__":
    main()
