"""Train a small character-level transformer on Python's own library: the program behind `tdbg demo`.

A plain training script: it knows nothing of tdbg and runs by itself, ``python demo_train.py``.
With ``--fault`` it breaks at one step, in one of the ways that training programs really break.

Shapes: B batch, T characters, C channels, V vocabulary.
"""

import argparse
import math
import sys
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

FAULTS = ("none", "forward-inf", "backward-nan", "inf-grad", "bad-batch", "lr-spike")
CONTEXT = 64
BATCH = 16
CHANNELS = 96
LAYERS = 4
HEADS = 4
TEXT_BYTES = 1_000_000


def read_text() -> str:
    """Source code of the standard library, the one text that is on every machine with Python."""
    folder = Path(sysconfig.get_path("stdlib"))
    parts, size = [], 0
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore")
        parts.append("".join(char for char in text if char == "\n" or 32 <= ord(char) < 127))
        size += len(parts[-1])
        if size >= TEXT_BYTES:
            break
    return "".join(parts)


class Characters(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Windows of the text: the characters, which of them to show, and the characters that follow.

    Some characters are hidden from the model (token dropout); ``shown_T`` is 0 there, else 1.
    """

    def __init__(self, text: str, windows: int, bad_window: int = -1) -> None:
        alphabet = sorted(set(text))
        index = {char: number for number, char in enumerate(alphabet)}
        self.vocabulary = len(alphabet)
        self.data = torch.tensor([index[char] for char in text], dtype=torch.long)
        self.windows = windows
        self.bad_window = bad_window
        self.starts = torch.randint(len(text) - CONTEXT - 1, (windows,))
        self.shown_NT = (torch.rand(windows, CONTEXT) > 0.02).float()

    def __len__(self) -> int:
        return self.windows

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        start = int(self.starts[number])
        piece = self.data[start : start + CONTEXT + 1]
        shown_T = self.shown_NT[number].clone()
        if number == self.bad_window:
            shown_T[7] = float("nan")
        return piece[:-1], shown_T, piece[1:]


class Linear(nn.Linear):
    """A linear layer; while ``faulty``, one of its outputs overflows."""

    faulty = False

    def forward(self, input: Tensor) -> Tensor:
        out = super().forward(input)
        return out.index_fill(-1, torch.tensor(0), math.inf) if self.faulty else out


class Act(nn.Module):
    """GELU; while ``faulty``, a term that is 0 forward and NaN backward joins it."""

    faulty = False

    def forward(self, x_BTC: Tensor) -> Tensor:
        out_BTC = functional.gelu(x_BTC)
        return out_BTC + 0.0 * torch.sqrt(0.0 * x_BTC) if self.faulty else out_BTC


class Block(nn.Module):
    """Attention and a two-layer perceptron, each on a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(CHANNELS)
        self.qkv = nn.Linear(CHANNELS, 3 * CHANNELS)
        self.out = nn.Linear(CHANNELS, CHANNELS)
        self.norm2 = nn.LayerNorm(CHANNELS)
        self.fc = Linear(CHANNELS, 4 * CHANNELS)
        self.act = Act()
        self.proj = nn.Linear(4 * CHANNELS, CHANNELS)

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.out(self.attend(self.qkv(self.norm1(x_BTC))))
        hidden: Tensor = self.proj(self.act(self.fc(self.norm2(x_BTC))))
        return x_BTC + hidden

    @staticmethod
    def attend(qkv_BTC: Tensor) -> Tensor:
        """Causal self-attention over ``HEADS`` heads."""
        batch, length, _ = qkv_BTC.shape
        q, k, v = (part.reshape(batch, length, HEADS, -1).transpose(1, 2) for part in qkv_BTC.chunk(3, dim=-1))
        mixed: Tensor = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, CHANNELS)


class Model(nn.Module):
    """A decoder-only transformer over characters."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, CHANNELS)
        self.positions = nn.Embedding(CONTEXT, CHANNELS)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(CHANNELS)
        self.head = nn.Linear(CHANNELS, vocabulary)

    def forward(self, chars_BT: Tensor, shown_BT: Tensor) -> Tensor:
        x_BTC = self.characters(chars_BT) * shown_BT[..., None] + self.positions.weight[: chars_BT.shape[1]]
        for block in self.blocks:
            x_BTC = block(x_BTC)
        out_BTV: Tensor = self.head(self.norm(x_BTC))
        return out_BTV


class InfGradient:
    """A gradient hook that overflows while ``faulty``."""

    faulty = False

    def __call__(self, grad: Tensor) -> Tensor:
        return torch.full_like(grad, math.inf) if self.faulty else grad


def plant_fault(model: Model, fault: str) -> Linear | Act | InfGradient:
    """What breaks once its ``faulty`` is set; for faults elsewhere, something that nobody calls."""
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    if fault == "forward-inf":
        return blocks[2].fc
    if fault == "backward-nan":
        return blocks[1].act
    hook = InfGradient()
    if fault == "inf-grad":
        blocks[3].proj.weight.register_hook(hook)
    return hook


def learning_rate_factor(step: int, steps: int) -> float:
    """Linear warm-up over 20 steps, then a cosine down to a tenth."""
    if step < 20:
        return (step + 1) / 20
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - 20) / max(1, steps - 20)))


def parse_args(argv: list[str]) -> argparse.Namespace:
    """The command line of the script."""
    parser = argparse.ArgumentParser(description="Train a small character-level transformer.")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps")
    parser.add_argument("--fault", choices=FAULTS, default="none", help="what breaks")
    parser.add_argument("--fault-step", type=int, default=0, help="step at which it breaks (default: 3/5 of --steps)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, batches and dropout")
    args = parser.parse_args(argv)
    args.fault_step = args.fault_step or max(1, args.steps * 3 // 5)
    return args


def train(args: argparse.Namespace) -> None:
    """The training loop, as anyone would write it; the fault is switched on at its step."""
    torch.manual_seed(args.seed)
    bad_window = (args.fault_step - 1) * BATCH + 3 if args.fault == "bad-batch" else -1
    data = Characters(read_text(), args.steps * BATCH, bad_window)
    loader = DataLoader(data, batch_size=BATCH)
    model = Model(data.vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, args.steps))
    planted = plant_fault(model, args.fault)

    for step, (chars_BT, shown_BT, next_BT) in enumerate(loader, start=1):
        planted.faulty = step == args.fault_step
        if args.fault == "lr-spike" and step >= args.fault_step:
            optimizer.param_groups[0]["lr"] *= 300
        optimizer.zero_grad()
        logits_BTV = model(chars_BT, shown_BT)
        loss = functional.cross_entropy(logits_BTV.flatten(0, 1), next_BT.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step == 1 or step % 20 == 0 or step == args.steps:
            print(f"step {step:4d}/{args.steps}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    train(parse_args(sys.argv[1:]))
