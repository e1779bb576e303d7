"""Small trainings on several ranks with one silent bug each, for torchrun, and trainings whose ranks may differ.

usage: planted_ranks.py KIND fault|healthy
"""

import sys
import time
from collections.abc import Iterable

import torch
import torch.distributed as dist
from common import leave_group
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

KIND, FAULTY = sys.argv[1], sys.argv[2] == "fault"
ALONE = ("by-hand", "other-seed", "actors", "two-models")  # without DistributedDataParallel
FEATURES, CLASSES = 16, 4


def make_samples(count: int = 1280) -> TensorDataset:
    """Inputs and the classes that a linear map gives them."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, FEATURES, generator=generator)
    return TensorDataset(x, (x @ torch.randn(FEATURES, CLASSES, generator=generator)).argmax(1))


class NoisySamples(Dataset[tuple[Tensor, Tensor]]):
    """Samples with noise that is drawn anew each time."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.data[index]
        return x + 0.1 * torch.randn(FEATURES), y


def average_by_hand(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()  # type: ignore[operator]


def shard_model(body: nn.Sequential) -> nn.Module:
    """Two replicas of the model, each in shards."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicas", "shards"))
    for layer in (body[0], body[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(body, mesh=mesh)
    return body


class LocalNorm(nn.LayerNorm):
    """Normalises this rank's part of the rows: its gradients are of these rows, and nobody sums them."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.to_local(), self.bias.to_local()  # type: ignore[operator]
        return nn.functional.layer_norm(x, self.normalized_shape, weight, bias)


class SplitModel(nn.Module):
    """Tensor parallelism over all ranks: the layers in parts, the norm whole on each rank and over a part of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = LocalNorm(FEATURES) if FAULTY else nn.LayerNorm(FEATURES)
        self.fc1, self.fc2 = nn.Linear(FEATURES, 32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        part = x.chunk(dist.get_world_size())[dist.get_rank()]
        return self.fc2(self.fc1(self.norm(part)).relu())


def split_model() -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))
    plan = {
        "norm": SequenceParallel(sequence_dim=0, use_local_output=True),
        "fc1": ColwiseParallel(input_layouts=Shard(0)),
        "fc2": RowwiseParallel(output_layouts=Replicate()),
    }
    model = SplitModel()
    if FAULTY:
        replicate_norm(model.norm, mesh)
        del plan["norm"]
    return parallelize_module(model, mesh, plan)


def replicate_norm(norm: nn.Module, mesh: DeviceMesh) -> None:
    for name, parameter in list(norm.named_parameters()):
        norm.register_parameter(name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Replicate()])))


def scale_gradients(model: nn.Module, scale: float) -> None:
    for parameter in model.parameters():
        parameter.grad *= scale  # type: ignore[operator]


def wrap_model(body: nn.Sequential) -> nn.Module:
    """The model as this kind trains it."""
    if KIND in ALONE:
        return body
    if KIND == "ignored":  # a head of each rank's own
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(body, ["3.weight", "3.bias"])
        nn.init.constant_(body[3].bias, dist.get_rank())  # type: ignore[arg-type]
    if KIND.startswith("hybrid"):
        return shard_model(body)
    if KIND == "sharded-data":
        for layer in (body[0], body[3]):
            fully_shard(layer)
        return fully_shard(body)
    if KIND == "flat-data":
        return FullyShardedDataParallel(body, device_id=torch.device("cpu"), use_orig_params=True)
    if KIND == "split-norms":
        return split_model()
    model = DistributedDataParallel(body, find_unused_parameters=KIND == "replaced")
    if KIND == "local-sgd":
        group = dist.new_subgroups(1)[0]
        model.register_comm_hook(PostLocalSGDState(None, group, start_localSGD_iter=10), post_localSGD_hook)
    if FAULTY and KIND == "late-init":
        torch.manual_seed(dist.get_rank())
        nn.init.xavier_uniform_(body[3].weight)  # type: ignore[arg-type]
    if FAULTY and KIND == "replaced":
        torch.manual_seed(7)
        body[3] = nn.Linear(32, CLASSES)
    return model


def list_batches() -> Iterable[tuple[Tensor, Tensor]]:
    """What the rank trains on."""
    data: Dataset[tuple[Tensor, Tensor]] = make_samples()
    if KIND == "same-draws":
        torch.manual_seed(5 if FAULTY else dist.get_rank())
        data = NoisySamples(make_samples())
    if KIND == "one-batch":  # overfit on purpose
        return [make_samples()[:16]] * 40
    if (KIND.endswith("-data") and FAULTY) or KIND.startswith("split-"):
        torch.manual_seed(11)
        return DataLoader(data, batch_size=16, shuffle=True)
    return DataLoader(data, batch_size=16, sampler=DistributedSampler(data, seed=3))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    replica = 2 * rank // dist.get_world_size()
    has_own_seed = KIND == "actors" or (KIND == "other-seed" and FAULTY)
    torch.manual_seed(rank if has_own_seed else replica if KIND == "hybrid-init" and FAULTY else 0)
    width = 32 + 8 * rank if KIND == "two-models" else 32
    body = nn.Sequential(nn.Linear(FEATURES, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, CLASSES))
    if KIND == "split-model":
        dist.new_group([0])  # what a tensor-parallel program makes
    model = wrap_model(body)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if KIND == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    for step, (x, y) in zip(range(1, 40), list_batches(), strict=False):
        optimizer.zero_grad()
        past = KIND == "past-wrapper" and FAULTY and step % 10 == 0
        nn.functional.cross_entropy((body if past else model)(x), y).backward()
        if KIND == "other-seed" or (KIND == "by-hand" and not (FAULTY and step == 14)):
            average_by_hand(model)
        if KIND == "clip" and FAULTY and rank == 0 and step >= 10:
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        if KIND == "hybrid-clip" and FAULTY and replica == 0 and step >= 10:
            scale_gradients(model, 1 / step)
        optimizer.step()
        time.sleep(0.004)
    leave_group()


if __name__ == "__main__":
    main()
