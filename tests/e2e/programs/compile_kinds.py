"""Compiled trainings, one after another in one process; after each, what Dynamo itself counted is printed.

usage: compile_kinds.py KIND...    a kind is PART[.VARIATION...], such as whole, step.dynamic or loss.break.aot_eager

Under torchrun the model is wrapped in DDP, and what is compiled is the wrapped model.
"""

import os
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from common import leave_group, print_fact
from torch import Tensor, nn
from torch._dynamo import convert_frame
from torch._dynamo import utils as dynamo_utils
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

PARTS = ("whole", "method", "submodule", "submethod", "forward", "loss", "optimizer", "step", "evaluation")
VARIATIONS = (
    *("dynamic", "break", "fullgraph", "late", "evaluated", "accumulated"),
    *("clipped", "autocast", "checkpointed", "adam"),
)
BACKENDS = ("aot_eager", "inductor")
GROUPS = ("stats", "frames", "graph_break", "unimplemented", "resumes")
STEPS, LATE_STEPS, MORE_STEPS = 6, 400, 60  # the last: of a late kind, as tdbg changes how it counts every 32
SIZE = 8


class Block(nn.Module):
    """A residual layer with dropout; ``breaks`` ends the graph in the middle of it."""

    def __init__(self, variations: set[str]) -> None:
        super().__init__()
        self.norm, self.fc, self.drop = nn.LayerNorm(SIZE), nn.Linear(SIZE, SIZE), nn.Dropout(0.1)
        self.breaks = "break" in variations

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc(self.norm(x))
        if self.breaks:
            torch._dynamo.graph_break()
        out: Tensor = x + self.drop(hidden).tanh()
        return out


class Net(nn.Module):
    """Two blocks and a head."""

    def __init__(self, variations: set[str]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(variations) for _ in range(2))
        self.head = nn.Linear(SIZE, 1)
        self.checkpointed = "checkpointed" in variations

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)  # type: ignore[assignment]
        out: Tensor = self.head(x)
        return out


class Training:
    """One training of a kind; each part that can be compiled is an attribute."""

    def __init__(self, part: str, variations: set[str]) -> None:
        self.part, self.variations = part, variations
        self.backend = next((name for name in BACKENDS if name in variations), "eager")
        self.model = Net(variations)
        self.called: nn.Module = self.model
        if dist.is_initialized():
            self.called = DistributedDataParallel(self.model)
        parameters = list(self.model.parameters())
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)
        if "adam" in variations:
            self.optimizer = torch.optim.AdamW(parameters, lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 4)
        self.criterion: Callable[[Tensor, Tensor], Tensor] = self.compute_loss
        self.train_step: Callable[[Tensor, Tensor], Tensor] = self.run_step
        self.predict_loss: Callable[[Tensor, Tensor], Tensor] = self.run_forward
        self.evaluated: nn.Module = self.called

    def compile_part(self) -> None:
        """Compile what the kind says."""
        wanted: dict[str, Any] = {"backend": self.backend, "fullgraph": "fullgraph" in self.variations}
        if self.part == "whole":
            self.called = self.evaluated = torch.compile(self.called, **wanted)
        elif self.part == "method":
            self.called.compile(**wanted)
        elif self.part == "submodule":
            self.model.blocks[0] = torch.compile(self.model.blocks[0], **wanted)
        elif self.part == "submethod":
            self.model.blocks[1].compile(**wanted)
        elif self.part == "forward":
            self.predict_loss = torch.compile(self.predict_loss, **wanted)
        elif self.part == "loss":
            self.criterion = torch.compile(self.criterion, **wanted)
        elif self.part == "optimizer":
            self.optimizer.step = torch.compile(self.optimizer.step, **wanted)  # type: ignore[method-assign]
        elif self.part == "step":
            self.train_step = torch.compile(self.train_step, **wanted)
        elif self.part == "evaluation":
            self.evaluated = torch.compile(self.called, **wanted)

    def compute_loss(self, out: Tensor, target: Tensor) -> Tensor:
        """Mean squared error."""
        error = out - target
        if "break" in self.variations and self.part == "loss":
            torch._dynamo.graph_break()
        return error.square().mean()

    def run_forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Model and loss."""
        with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in self.variations):
            return self.criterion(self.called(x), y)

    def run_step(self, x: Tensor, y: Tensor) -> Tensor:
        """One step of training."""
        self.optimizer.zero_grad()
        loss = self.predict_loss(x, y)
        loss.backward()
        if "accumulated" in self.variations:
            self.predict_loss(x.flip(0), y.flip(0)).backward()
        if "clipped" in self.variations:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, x: Tensor, y: Tensor) -> float:
        """One pass over a batch in evaluation mode."""
        self.model.eval()
        loss = self.criterion(self.evaluated(x), y)
        self.model.train()
        return loss.item()

    def train(self) -> list[str]:
        """Train, and return each loss to its last bit."""
        late = LATE_STEPS if "late" in self.variations else 0
        data = torch.randn((late + (MORE_STEPS if late else STEPS)) * 16, SIZE)
        batches = DataLoader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=16)
        losses: list[float] = []
        for number, (x, y) in enumerate(batches):
            if number == late:
                self.compile_part()
            size = 4 + number % 5 if "dynamic" in self.variations else 16
            losses.append(self.train_step(x[:size], y[:size]).item())
            self.schedule.step()
            if number % 4 == 1 and (self.part == "evaluation" or "evaluated" in self.variations):
                losses.append(self.evaluate(x, y))
        return [loss.hex() for loss in losses]


def shorten_reason(text: str) -> str:
    """A graph break's reason in a line, without addresses; torch words that of a skipped function in two ways."""
    skipped = re.search(r"the function `(\S+)` .*should not be traced", text)
    return f"skipped {skipped[1]}" if skipped else re.sub("0x[0-9a-f]+", "0x", text.partition("\n")[0])


def count_compiled() -> dict[str, object]:
    """What Dynamo counted since the last reset: its own counters, and each compilation it tried."""
    tried = dynamo_utils.get_compilation_metrics()
    codes = [ref() for ref in convert_frame.input_codes.seen]
    return {
        **{
            f"{group}: {shorten_reason(str(name))}": count
            for group in GROUPS
            for name, count in sorted(dynamo_utils.counters[group].items())
        },
        "compiled": [f"{one.co_name} {one.fail_type or ''}".strip() for one in tried],
        "recompiled": [one.co_name for one in tried if str(one.compile_id).partition("/")[2] not in ("0", "")],
        "of_tdbg": sorted(code.co_name for code in codes if code is not None and "/tdbg/" in code.co_filename),
    }


def main() -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    dynamo_utils.set_compilation_metrics_limit(1000)
    for kind in sys.argv[1:]:
        torch._dynamo.reset()
        dynamo_utils.counters.clear()
        dynamo_utils.clear_compilation_metrics()
        torch.manual_seed(0)
        part, *variations = kind.split(".")
        assert part in PARTS and {*VARIATIONS, *BACKENDS} >= set(variations), kind
        error = ""
        losses: list[str] = []
        try:
            losses = Training(part, set(variations)).train()
        except Exception as raised:  # a pair that torch itself refuses: it has to be refused alike
            error = type(raised).__name__
        print_fact(
            "kind", kind=kind, rank=int(os.environ.get("RANK", "0")), error=error, losses=losses, **count_compiled()
        )
    if ranks > 1:
        leave_group()


if __name__ == "__main__":
    main()
