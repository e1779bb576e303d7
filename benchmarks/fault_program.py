"""The program of fault_origins.py: trains a small model on gloo ranks and plants one fault, as its one argument says.

The argument is a `Spec` as JSON. A fault is on at one step of one rank; a healthy run has none, or one that is harmless.
"""

import contextlib
import json
import math
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 16
CLASSES = 5


@dataclass(frozen=True)
class Spec:
    """What one run does. step counts from 1; kind ``none`` is a healthy run, of which ``twist`` says what is odd."""

    kind: str  # input, forward, loss, backward, gradient, weights, none
    twist: str  # how the fault is made, or what is odd about a healthy run
    value: str  # nan or inf
    parallel: str  # ddp or fsdp2
    world: int
    rank: int
    step: int
    steps: int
    step_ms: float
    slow_rank: int
    slow_ms: float
    model: str  # mlp, residual, conv
    block: int  # which of the three blocks holds the fault
    optimizer: str  # sgd, momentum, adamw
    clip: bool
    micro: int  # backward passes a step
    views: bool  # gradient_as_bucket_view
    keep_zeros: bool  # zero_grad(set_to_none=False)
    seed: int
    launcher: str  # torchrun, or fork: this process imports torch once and forks its ranks

    @property
    def bad_value(self) -> float:
        """The value that is planted."""
        return math.nan if self.value == "nan" else math.inf


class Plant:
    """The fault, as the parts of the program ask for it. It is on in the last micro-batch of its step."""

    def __init__(self, spec: Spec, rank: int) -> None:
        self.spec, self.mine = spec, rank == spec.rank
        self.step = 0
        self.last = True

    def is_active(self, kind: str) -> bool:
        """True while this fault is to happen."""
        return self.mine and self.last and self.spec.kind == kind and self.step == self.spec.step


class _BadBackward(torch.autograd.Function):
    """Passes its input on, and puts one bad element into the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: float) -> Tensor:
        ctx.value = value
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0].clone()
        grad.view(-1)[0] = ctx.value
        return grad, None


class Act(nn.Module):
    """tanh; the fault of the forward or the backward pass happens here."""

    def __init__(self, plant: Plant, index: int) -> None:
        super().__init__()
        self.plant, self.index = plant, index

    def forward(self, x: Tensor) -> Tensor:
        plant, spec = self.plant, self.plant.spec
        if spec.kind == "none" and spec.twist == "masked sqrt":
            x = x + torch.where(x > 1e9, torch.sqrt((x.detach() * 0).abs()), torch.zeros_like(x))
        if self.index != spec.block:
            return torch.tanh(x)
        if plant.is_active("backward"):
            if spec.twist == "sqrt":
                x = x + torch.sqrt((x * 0).abs()) * 0
            elif spec.twist == "norm":
                x = x + torch.sqrt((x * 0).pow(2).sum(-1, keepdim=True))
            else:
                x = _BadBackward.apply(x, spec.bad_value)
        y = torch.tanh(x)
        if plant.is_active("forward"):
            if spec.twist == "log":
                y = y + torch.log(y[:1] * 0 - (1.0 if spec.value == "nan" else 0.0))
            elif spec.twist == "element":
                y = y.index_put((torch.tensor(0), torch.tensor(0)), torch.tensor(spec.bad_value))
            else:
                y = y * spec.bad_value
        return y


class Block(nn.Module):
    """One layer with its activation; a residual one has a norm and dropout."""

    def __init__(self, plant: Plant, index: int, residual: bool) -> None:
        super().__init__()
        self.residual = residual
        self.norm = nn.LayerNorm(WIDTH) if residual else nn.Identity()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.act = Act(plant, index)
        self.drop = nn.Dropout(0.1 if residual else 0.0)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.drop(self.act(self.fc(self.norm(x))))
        return x + y if self.residual else y


class Masked(nn.Module):
    """Puts zeros where a slot is empty (NaN); the derivative there is zero as well."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(torch.isnan(x), torch.zeros_like(x), x)


def build_model(spec: Spec, plant: Plant) -> nn.Module:
    """The model: a stem, three blocks, a head."""
    blocks = [Block(plant, index, spec.model == "residual") for index in range(3)]
    head = nn.Linear(WIDTH, CLASSES)
    if spec.model == "conv":
        stem: nn.Module = nn.Sequential(nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 2, 3, padding=1), nn.BatchNorm1d(2))
        stem.append(nn.Flatten())  # type: ignore[operator]
        stem.append(nn.Linear(2 * WIDTH, WIDTH))  # type: ignore[operator]
    else:
        stem = nn.Linear(WIDTH, WIDTH)
    parts = [stem, *blocks, head]
    return nn.Sequential(*([Masked()] if spec.twist == "masked input" else []), *parts)


def wrap_model(spec: Spec, model: nn.Module) -> nn.Module:
    """The model as DDP or FSDP2 has it."""
    if spec.parallel == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=spec.views)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (spec.world,))
    for module in model.children():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def make_optimizer(spec: Spec, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer, at a rate that is high in some healthy runs."""
    rate = 2.0 if spec.twist == "high rate" else 0.01
    if spec.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=min(rate, 0.3))
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9 if spec.optimizer == "momentum" else 0.0)


def plant_in_parameter(spec: Spec, plant: Plant, model: nn.Module) -> None:
    """A fault of the gradient of one parameter alone: its hook makes it, before the reduction."""

    def corrupt_gradient(grad: Tensor) -> Tensor:
        if not plant.is_active("gradient"):
            return grad
        bad = grad.clone()
        if spec.twist == "element":
            bad.view(-1)[bad.numel() // 2] = spec.bad_value
        else:
            bad.fill_(spec.bad_value)
        return bad

    block = [module for module in model.modules() if isinstance(module, Block)][spec.block].fc
    if spec.parallel == "ddp":
        block.weight.register_hook(corrupt_gradient)
        return

    def hook_unsharded(module: nn.Module, args: Any) -> None:  # the parameter of a shard is another one in forward
        weight = module.weight
        if not hasattr(weight, "to_local") and not getattr(weight, "hooked", False):
            weight.register_hook(corrupt_gradient)  # type: ignore[union-attr, operator]
            weight.hooked = True  # type: ignore[union-attr, assignment]

    block.register_forward_pre_hook(hook_unsharded)


def overwrite_weight(spec: Spec, model: nn.Module) -> None:
    """Write one bad value into a weight, past autograd, as a load or an average that went wrong does."""
    for name, parameter in model.named_parameters():
        if not name.endswith(f"{spec.block + 1}.fc.weight"):
            continue
        data = parameter.data
        held = data.to_local() if hasattr(data, "to_local") else data
        if spec.twist == "data":
            held.view(-1)[0] = spec.bad_value
        else:
            with torch.no_grad():
                (parameter.to_local() if hasattr(parameter, "to_local") else parameter).view(-1)[0] = spec.bad_value


def make_batch(spec: Spec, plant: Plant, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs and classes of one micro-batch."""
    x = torch.randn(8, WIDTH, generator=generator)
    y = (x[:, :CLASSES]).argmax(1)
    if spec.twist == "masked input":
        x[0, : WIDTH // 2] = math.nan
    if plant.is_active("input"):
        if spec.twist == "all":
            x.fill_(spec.bad_value)
        else:
            x[3, 3] = spec.bad_value
    return x, y


def train_rank(spec: Spec, rank: int) -> None:
    """Train as one of the ranks."""
    torch.manual_seed(spec.seed)
    plant = Plant(spec, rank)
    model = wrap_model(spec, build_model(spec, plant))
    plant_in_parameter(spec, plant, model)
    optimizer = make_optimizer(spec, model)
    generator = torch.Generator().manual_seed(spec.seed + 1000 * rank)
    for step in range(1, spec.steps + 1):
        plant.step = step
        time.sleep((spec.step_ms + (spec.slow_ms if rank == spec.slow_rank else 0.0)) / 1e3)
        if plant.is_active("weights"):
            overwrite_weight(spec, model)
        optimizer.zero_grad(set_to_none=not spec.keep_zeros)
        for index in range(spec.micro):
            plant.last = index == spec.micro - 1
            x, y = make_batch(spec, plant, generator)
            hold = not plant.last and isinstance(model, DistributedDataParallel)
            with model.no_sync() if hold else contextlib.nullcontext():  # type: ignore[operator, union-attr]
                loss = nn.functional.cross_entropy(model(x), y) / spec.micro
                if spec.twist == "high rate":
                    loss = torch.tanh(loss)  # bounded, so that its gradient is
                if plant.is_active("loss"):
                    loss = loss * spec.bad_value if spec.twist == "factor" else loss + torch.log(loss - loss.detach())
                loss.backward()
        if spec.clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    bad = sum(not bool(torch.isfinite(value).all()) for value in map(_get_local_tensor, model.parameters()))
    sys.stdout.write(json.dumps({"rank": rank, "bad_parameters": bad}) + "\n")
    sys.stdout.flush()


def _get_local_tensor(parameter: Tensor) -> Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter  # type: ignore[operator]


def run_rank(rank: int, spec: Spec, rendezvous: str) -> None:
    """One rank, from the process group's beginning to its end."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(spec.world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=spec.world)
    train_rank(spec, rank)
    dist.barrier()
    time.sleep(0.3)  # a bare DDP program on gloo that leaves at once aborts now and then
    dist.destroy_process_group()


def main() -> None:
    spec = Spec(**json.loads(sys.argv[1]))
    if "RANK" in os.environ:
        run_rank(int(os.environ["RANK"]), spec, "env://")
        return
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(run_rank, (spec, f"file://{folder}/meet"), spec.world, start_method="fork")


if __name__ == "__main__":
    main()
