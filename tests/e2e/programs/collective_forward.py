"""DDP whose forward pass averages over the ranks itself; the loss of rank 0 is NaN once, and all ranks skip that step."""

import torch
import torch.distributed as dist
from common import leave_group, print_fact
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Synchronised(nn.Module):
    """Centres its output by the mean over all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        mean = y.detach().mean(0)
        dist.all_reduce(mean)
        return y - mean / dist.get_world_size()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Synchronised())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, 9):
        optimizer.zero_grad()
        loss = (model(torch.randn(16, 8)) - 1).square().mean()
        if step == 4:
            (loss * float("nan" if rank == 0 else 1)).backward()
            continue
        loss.backward()
        optimizer.step()
        print_fact("step", rank=rank, step=step, loss=loss.item())
    print_fact("done", rank=rank)
    leave_group()


if __name__ == "__main__":
    main()
