"""Trains a small convolutional net that keeps state in every place a second pass could disturb, and prints digests of it.

Batch normalisation, dropout, in-place operations, a counter and a generator of its own, a line printed in forward.
``--ddp`` for torchrun.
"""

import argparse
import hashlib

import torch
import torch.distributed as dist
from common import leave_group, print_fact
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SAMPLES, BATCH = 24, 8


class Pictures(Dataset):
    """Noise, with a class and a name each."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, object]:
        generator = torch.Generator().manual_seed(index)
        return {"image": torch.randn(3, 8, 8, generator=generator), "label": index % 4, "name": f"{index}.png"}


class Net(nn.Module):
    """Two convolutions and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(4 * 8 * 8, 4)
        self.calls = 0
        self.own = torch.Generator().manual_seed(1)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        self.last = image
        print("forward", self.calls)
        image = image + 0.01 * torch.rand(image.shape, generator=self.own)
        return {"logits": self.head(self.drop(self.act(self.norm(self.conv(image)))).flatten(1))}


def compute_digest(net: Net) -> str:
    """Of weights, buffers, gradients and random states, bit for bit."""
    found = hashlib.sha256()
    for parameter in net.parameters():
        found.update(b"none" if parameter.grad is None else parameter.grad.numpy().tobytes())
    for tensor in net.state_dict().values():
        found.update(tensor.numpy().tobytes())
    found.update(torch.get_rng_state().numpy().tobytes() + net.own.get_state().numpy().tobytes())
    hooks = sum(len(module._forward_hooks) for module in net.modules() if module is not net)
    found.update(f"{net.calls} {net.training} {list(vars(net))} {hooks}".encode())
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ddp", action="store_true")
    args = parser.parse_args()
    rank = 0
    if args.ddp:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    torch.manual_seed(0)
    net, data = Net(), Pictures()
    model = DistributedDataParallel(net) if args.ddp else net
    sampler = DistributedSampler(data, shuffle=False) if args.ddp else None
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for batch in DataLoader(data, BATCH, sampler=sampler):
        loss = nn.functional.cross_entropy(model(batch["image"])["logits"], batch.pop("label"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print_fact("step", rank=rank, loss=loss.item(), digest=compute_digest(net))
    net.eval()
    with torch.no_grad():
        for batch in DataLoader(data, BATCH):
            net(batch["image"])
        print_fact("evaluated", rank=rank, digest=compute_digest(net))
    if args.ddp:
        leave_group()


if __name__ == "__main__":
    main()
