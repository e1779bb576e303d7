"""Values are read in every step: on a CPU that costs nothing, and nothing is to be said; --healthy they are not."""

import sys

import torch
from torch import nn

CODE = ""
SAYS = ""
OPTIONS = ()
RANKS = 1


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total = 0.0
    for _ in range(8):
        inputs = torch.randn(256, 256)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "--healthy" not in sys.argv:
            total += loss.item() + sum(parameter.grad.norm().item() for parameter in model.parameters())
    print("done")


if __name__ == "__main__":
    main()
