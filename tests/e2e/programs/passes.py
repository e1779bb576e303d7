"""Trains with accumulation, autocast, checkpointing, in-place operations, attention of two kinds and a frozen part.

Each epoch ends with a validation pass under inference mode in which a Grad-CAM runs the model once more a batch. Hooks
of its own keep clones of outputs and gradients, under the number of the pass, for the test. ``--scripted`` scripts a part.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from common import print_fact
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, random_split

from tdbg.debuggers import GradCAM

WATCHED = ("stem", "block.fc", "block.attn", "look", "head")


class Sequences(Dataset):
    """Twelve sequences of five tokens."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Tensor:
        return torch.randn(5, 8, generator=torch.Generator().manual_seed(index))


class Block(nn.Module):
    """Writes into what its first layer gave, then attends."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Conv1d(8, 8, 1)
        self.act = nn.ReLU(inplace=True)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x_BTC: Tensor) -> Tensor:
        h_BTC = self.act(self.fc(x_BTC.transpose(1, 2)).mul_(2)).transpose(1, 2)
        return x_BTC + self.attn(h_BTC, h_BTC, h_BTC, need_weights=False)[0]


class Look(nn.Module):
    """Causal attention by the function."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x_BTC: Tensor) -> Tensor:
        query, key, value = self.qkv(x_BTC).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


class Net(nn.Module):
    """A frozen stem, a checkpointed block, attention, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8).requires_grad_(False)
        self.block, self.look, self.head = Block(), Look(), nn.Linear(8, 3)

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = self.stem(x_BTC)
        x_BTC = checkpoint(self.block, x_BTC, use_reentrant=False) if self.training else self.block(x_BTC)
        return self.head(self.look(x_BTC)).mean(1)


class Kept:
    """What the program itself sees of its layers: the first call in a pass; again in backward is no call."""

    def __init__(self) -> None:
        self.found: dict[str, Tensor] = {}
        self.number = 0
        self.on = True

    def make_hook(self, name: str) -> Callable[..., None]:
        """The hook of one layer."""

        def keep_output(module: nn.Module, args: Any, output: Any) -> None:
            tensor, more = (output[0], ".0") if isinstance(output, tuple) else (output, "")
            key = f"{self.number}/{name}"
            if not self.on or f"{key}:output{more}" in self.found:
                return
            self.found[f"{key}:output{more}"] = tensor.detach().clone()
            if tensor.requires_grad:
                tensor.register_hook(lambda grad: self.found.__setitem__(f"{key}:grad{more}", grad.clone()))

        return keep_output


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scripted", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    net, kept = Net(), Kept()
    if args.scripted:
        net.look = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    for name in WATCHED if not args.scripted else ("stem", "head"):
        net.get_submodule(name).register_forward_hook(kept.make_hook(name))
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    train, val = (
        DataLoader(part, 2, shuffle=True)
        for part in random_split(Sequences(), [8, 4], generator=torch.Generator().manual_seed(1))
    )
    seen: list[float] = []
    camera = GradCAM("head" if args.scripted else "block.fc")
    for _ in range(2):
        net.train()
        for micro, x_BTC in enumerate(train, start=1):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out_BK = net(x_BTC)
            out_BK.float().pow(2).mean().backward()
            kept.number += 1
            if micro % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
        net.eval()
        for x_BTC in val:
            with torch.inference_mode():
                net(x_BTC)
            kept.on = False
            seen.append(float(camera({"inputs": x_BTC}, net)["gradcam"].sum()))
            kept.on = True
            kept.number += 1
    torch.save(kept.found, "kept0.pt")
    print_fact("done", passes=kept.number, steps=4, maps=len(seen))


if __name__ == "__main__":
    main()
