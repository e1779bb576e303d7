"""Three unlike models, and one planted fault; alone, or as DDP ranks under torchrun.

usage: faults.py gpt|conv|rnn FAULT [--at STEP] [--rank R] [--guard] [--device cuda]

``--at``: the step, by default 3; five more steps follow. FAULT is none, forward-inf, backward-nan, inf-grad, bad-batch or harmless. ``--rank R``: only that rank is
ill. ``--guard``: the program skips its update when the gradient norm is not finite, as careful ones do.
Shapes: B batch, T time, C channels, H and W height and width.
"""

import argparse
import math
import os
from typing import Any

import torch
import torch.distributed as dist
from common import leave_group, make_tokens, print_fact
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

FAULTS = ("none", "forward-inf", "backward-nan", "inf-grad", "bad-batch", "harmless")
BATCH, STEPS_AFTER, VOCABULARY = 8, 5, 20


class Linear(nn.Linear):
    """A linear layer; while ``ill`` one output is Inf, or (``ill_gradient``) the weight's gradient is."""

    ill = ill_gradient = False

    def forward(self, input: Tensor) -> Tensor:
        weight = InfBackward.apply(self.weight) if self.ill_gradient else self.weight
        out = functional.linear(input, weight, self.bias)
        return out.index_fill(-1, torch.tensor(1, device=out.device), math.inf) if self.ill else out


class InfBackward(torch.autograd.Function):
    """The identity, with a backward that overflows: a broken kernel of one's own."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return torch.full_like(grads[0], math.inf)


class Conv(nn.Conv2d):
    """A convolution; while ``ill`` one of its outputs is Inf."""

    ill = False

    def forward(self, input: Tensor) -> Tensor:
        out = super().forward(input)
        return out.index_fill(1, torch.tensor(1, device=out.device), math.inf) if self.ill else out


class Act(nn.Module):
    """GELU; while ``ill`` a term joins that is 0 forward and NaN backward."""

    ill = False

    def forward(self, x: Tensor) -> Tensor:
        out = functional.gelu(x)
        return out + 0.0 * torch.sqrt(0.0 * x) if self.ill else out


class Root(nn.Module):
    """The square root of something that is not negative; its backward is NaN at 0 where nothing flows in."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(x)


class Masked(nn.Module):
    """Adds nothing: 0 * sqrt(relu(x)). The NaN in its inside backward is masked by the backward of relu."""

    ill = False

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.root = Root()

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.0 * self.root(self.relu(x)) if self.ill else x


class Block(nn.Module):
    """A transformer block with one head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.fc, self.act, self.proj = Linear(32, 64), Act(), Linear(64, 32)
        self.masked = Masked()
        self.drop = nn.Dropout(0.1)

    def forward(self, x_BTC: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x_BTC)).chunk(3, dim=-1)
        x_BTC = x_BTC + self.drop(self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))
        hidden = self.masked(self.act(self.fc(self.norm2(x_BTC))))
        out_BTC: Tensor = x_BTC + self.drop(self.proj(hidden))
        return out_BTC


class Gpt(nn.Module):
    """Six blocks over tokens, each with a weight (token dropout) as float input."""

    places = {"forward-inf": "blocks.3.fc", "backward-nan": "blocks.2.act", "inf-grad": "blocks.4.proj.weight"}
    harmless = "blocks.2.masked"

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, VOCABULARY)

    def forward(self, ids_BT: Tensor, shown_BT: Tensor) -> Tensor:
        x_BTC = self.embed(ids_BT) * shown_BT[..., None]
        for block in self.blocks:
            x_BTC = block(x_BTC)
        out: Tensor = self.head(self.norm(x_BTC)).flatten(0, 1)
        return out


class ConvNet(nn.Module):
    """Three stages of convolution, BatchNorm and activation over small images."""

    places = {"forward-inf": "stages.1.conv", "backward-nan": "stages.2.act", "inf-grad": "stages.0.norm.weight"}
    harmless = "stages.1.masked"

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(self.make_stage(start, end) for start, end in ((3, 8), (8, 16), (16, 16)))
        self.head = nn.Linear(16, 10)

    @staticmethod
    def make_stage(start: int, end: int) -> nn.ModuleDict:
        """One stage, its parts by name."""
        conv = Conv(start, end, 3, stride=2, padding=1)
        return nn.ModuleDict({"conv": conv, "norm": nn.BatchNorm2d(end), "act": Act(), "masked": Masked()})

    def forward(self, x_BCHW: Tensor) -> Tensor:
        for stage in self.stages:
            for part in stage.values():
                x_BCHW = part(x_BCHW)
        out: Tensor = self.head(x_BCHW.mean(dim=(2, 3)))
        return out


class Rnn(nn.Module):
    """An embedding, a GRU and a perceptron; predicts the next number and takes a float feature."""

    places = {"forward-inf": "mix", "backward-nan": "squash", "inf-grad": "gru.weight_hh_l0"}
    harmless = "masked"

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.mix, self.drop = Linear(17, 32), nn.Dropout(0.2)
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.squash, self.masked = Act(), Masked()
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, ids_BT: Tensor, feature_BT: Tensor) -> Tensor:
        x_BTC = self.drop(self.mix(torch.cat([self.embed(ids_BT), feature_BT[..., None]], dim=-1)))
        out: Tensor = self.head(self.masked(self.squash(self.gru(x_BTC)[0]))).flatten(0, 1)
        return out


MODELS: dict[str, type[Gpt] | type[ConvNet] | type[Rnn]] = {"gpt": Gpt, "conv": ConvNet, "rnn": Rnn}


def make_data(name: str, rank: int, at: int, bad: bool) -> TensorDataset:
    """The rank's samples, target last; with ``bad`` one number of the batch of step ``at`` is NaN."""
    generator = torch.Generator().manual_seed(100 + rank)
    count, ill = (at + STEPS_AFTER) * BATCH, (at - 1) * BATCH + 5
    if name == "conv":
        images = torch.randn(count, 3, 12, 12, generator=generator)
        images[ill, 1, 4, 7] = math.nan if bad else 0.5
        return TensorDataset(images, torch.randint(10, (count,), generator=generator))
    ids = make_tokens(count, 13, VOCABULARY, seed=rank)
    floats = torch.rand(count, 12, generator=generator)
    floats[ill, 3] = math.nan if bad else 0.5
    return TensorDataset(ids[:, :-1], floats, ids[:, 1:])


class Fault:
    """Switches the fault on at its step and off again."""

    def __init__(self, name: str, model: Gpt | ConvNet | Rnn, at: int) -> None:
        self.name, self.model, self.at, self.on = name, model, at, False
        self.place = model.places.get(name, "")
        if name == "inf-grad" and isinstance(model, ConvNet):
            model.get_parameter(self.place).register_hook(self._overflow_gradient)

    def _overflow_gradient(self, grad: Tensor) -> Tensor:
        return torch.full_like(grad, math.inf) if self.on else grad

    def prepare_step(self, step: int) -> None:
        """Called before the forward pass."""
        self.on = step == self.at
        if self.name in ("forward-inf", "backward-nan"):
            self.model.get_submodule(self.place).ill = self.on  # type: ignore[assignment]
        elif self.name == "harmless":
            self.model.get_submodule(self.model.harmless).ill = True  # type: ignore[assignment]
        elif self.name == "inf-grad" and isinstance(self.model, Gpt):
            self.model.get_submodule(self.place.rpartition(".")[0]).ill_gradient = self.on  # type: ignore[assignment]

    def spoil_gradient(self) -> None:
        """The RNN's gradient is spoilt by the program itself, behind autograd's back."""
        if self.on and self.name == "inf-grad" and isinstance(self.model, Rnn):
            gradient = self.model.get_parameter(self.place).grad
            assert gradient is not None
            gradient[0, 0] = math.inf


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--at", type=int, default=3)
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--guard", action="store_true")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def train_model(args: argparse.Namespace, rank: int, ddp: bool) -> None:
    """The training loop."""
    torch.manual_seed(0)
    plain = MODELS[args.model]().to(args.device)
    here = args.fault if args.rank in (-1, rank) else "none"
    fault = Fault(here, plain, args.at)
    model: nn.Module = DistributedDataParallel(plain) if ddp else plain
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = make_data(args.model, rank, args.at, here == "bad-batch")
    for step, batch in enumerate(DataLoader(data, batch_size=BATCH), start=1):
        fault.prepare_step(step)
        optimizer.zero_grad()
        *inputs, target = (tensor.to(args.device) for tensor in batch)
        loss = functional.cross_entropy(model(*inputs), target.flatten())
        loss.backward()
        fault.spoil_gradient()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        updated = not args.guard or bool(norm.isfinite())
        if updated:
            optimizer.step()
        print_fact("step", rank=rank, step=step, loss=loss.item(), norm=norm.item(), updated=updated)
    print_fact("done", rank=rank, weights=sum(p.detach().double().sum().item() for p in plain.parameters()))


def main() -> None:
    args = parse_arguments()
    ddp = "WORLD_SIZE" in os.environ
    if ddp:
        dist.init_process_group("gloo" if args.device == "cpu" else "nccl")
    train_model(args, dist.get_rank() if ddp else 0, ddp)
    if ddp:
        leave_group()


if __name__ == "__main__":
    main()
