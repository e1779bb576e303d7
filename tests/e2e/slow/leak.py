"""Losses are kept for a plot, each with all that led to it; --healthy their numbers are kept."""

import sys

import torch
from torch import nn

CODE = "TD-P116"
SAYS = "grows by"
OPTIONS = ("--kind", "memory", "--active", "5")
RANKS = 1


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    healthy = "--healthy" in sys.argv
    losses = []
    for _ in range(12):
        inputs = torch.randn(256, 128)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward(retain_graph=not healthy)
        optimizer.step()
        losses.append(loss.item() if healthy else loss)
    print("done")


if __name__ == "__main__":
    main()
