"""The program that the README speaks of: layers with attention, epochs, any number of ranks; ends early where a file is."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from common import leave_group
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    """Attention and what follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x_BC: Tensor) -> Tensor:
        return x_BC + self.mlp(self.attn(x_BC).tanh())


class Net(nn.Module):
    """Two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(16, 1)

    def forward(self, x_BC: Tensor) -> Tensor:
        for layer in self.layers:
            x_BC = layer(x_BC)
        return self.head(x_BC)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--until", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: nn.Module = Net()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
        torch.manual_seed(dist.get_rank())  # each rank has its own samples
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(args.epochs):
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
        if args.until is not None and args.until.exists():
            break
    if dist.is_initialized():
        leave_group()


if __name__ == "__main__":
    main()
