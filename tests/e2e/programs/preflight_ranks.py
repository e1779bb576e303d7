"""Two ranks of a small training, below torchrun.

usage: preflight_ranks.py ddp|fsdp|fsdp1|tensor|pipeline
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

KIND = sys.argv[1]


def make_model() -> nn.Module:
    """The model, wrapped or split as asked."""
    model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    if KIND == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if KIND == "fsdp":
        from torch.distributed.fsdp import fully_shard

        return fully_shard(model)
    if KIND == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})


def train_model() -> None:
    """Five updates of the whole model."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        mse_loss(model(torch.randn(4, 8)), torch.randn(4, 3)).backward()
        optimizer.step()
        optimizer.zero_grad()
        print("updated")


def train_stages() -> None:
    """The same in two stages."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank = dist.get_rank()
    stage = nn.Sequential(nn.Linear(8, 16), nn.ReLU()) if rank == 0 else nn.Linear(16, 3)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)

    def compute_loss(output: Tensor, target: Tensor) -> Tensor:
        return mse_loss(output, target)

    schedule = ScheduleGPipe(PipelineStage(stage, rank, 2, torch.device("cpu")), 2, loss_fn=compute_loss)
    for _ in range(5):
        if rank == 0:
            schedule.step(torch.randn(4, 8))
        else:
            schedule.step(target=torch.randn(4, 3))
        optimizer.step()
        optimizer.zero_grad()
        print("updated")


dist.init_process_group("gloo")
torch.manual_seed(0)
train_stages() if KIND == "pipeline" else train_model()
dist.destroy_process_group()
