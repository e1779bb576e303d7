"""Two ranks, and the second has longer sequences, so that the first waits for it; --healthy both have the same."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

CODE = "TD-P115"
SAYS = "rank 1 has"
OPTIONS = ("--active", "6")
RANKS = 2


def main() -> None:
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    length = 8 if "--healthy" in sys.argv or rank == 0 else 24
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.parallel.DistributedDataParallel(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(64, length, 64)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    print("done")


if __name__ == "__main__":
    main()
