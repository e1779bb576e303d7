"""Train from a loader that reads a whole file for each sample, or from one that has read it: slow|quick, workers."""

import sys

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FILE = "shard.npy"


class Shards(Dataset[torch.Tensor]):
    """Rows of one file."""

    def __init__(self, slow: bool) -> None:
        self.rows = None if slow else numpy.load(FILE)

    def __len__(self) -> int:
        return 2560

    def __getitem__(self, index: int) -> torch.Tensor:
        rows = numpy.load(FILE) if self.rows is None else self.rows
        return torch.from_numpy(rows[index % len(rows)].copy())


def train(slow: bool, workers: int) -> None:
    numpy.save(FILE, numpy.random.default_rng(0).standard_normal((1536, 3072)).astype("float32"))
    torch.manual_seed(0)
    how = "fork" if workers else None
    loader = DataLoader(Shards(slow), batch_size=32, shuffle=True, num_workers=workers, multiprocessing_context=how)
    net = nn.Linear(3072, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(1 if slow else 2):
        for x_BF in loader:
            loss = net(x_BF).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"loss {loss.item()!r}")


if __name__ == "__main__":
    train(sys.argv[1] == "slow", int(sys.argv[2]))
