"""FSDP2 (``fully_shard``) on gloo, for torchrun: parameters and gradients are shards."""

import torch
import torch.distributed as dist
from common import leave_group, make_regression, print_fact
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Block(nn.Module):
    """One residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.fc = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.fc(self.norm(x)))


def compute_local_norm(model: nn.Module) -> float:
    """The norm of this rank's shards alone."""
    square = 0.0
    for parameter in model.parameters():
        if isinstance(parameter.grad, DTensor):
            square += float(parameter.grad.to_local().double().pow(2).sum())
    return square**0.5


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), Block(), Block(), nn.Linear(16, 1))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in (model[1], model[2]):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x_all, y_all = make_regression(16 * 6, seed=rank).tensors
    for step in range(1, 7):
        piece = slice(16 * (step - 1), 16 * step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x_all[piece]), y_all[piece])
        loss.backward()
        shard = compute_local_norm(model)
        total = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norm = total.full_tensor().item() if isinstance(total, DTensor) else total.item()
        optimizer.step()
        print_fact("step", rank=rank, step=step, loss=loss.item(), norm=norm, shard_norm=shard)
    print_fact("done", rank=rank, steps=6)
    leave_group()


if __name__ == "__main__":
    main()
