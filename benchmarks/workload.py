"""The training programs of overhead.py: a 6-layer GPT of width 256, or a small convolutional net. No tdbg in here.

    python benchmarks/workload.py gpt|conv --steps 220 --warmup 20 --report FILE [--with PEER] [--fault FAULT] [--no-reference]

``--with``: another debugging tool stands beside the loop, as its own documentation has it: anomaly (torch's
``set_detect_anomaly``), hf-debug (transformers' ``DebugUnderflowOverflow``), wandb-watch (``log="all"``, every
step, offline). ``--fault``: the GPT is ill at step 5: forward-inf in blocks.3.fc, backward-nan in blocks.2.act,
harmless (a NaN inside backward that reaches no gradient). Under torchrun the ranks train with DDP, rank 1 is ill.

Runs on CUDA where there is one, else on the CPU with one thread. FILE gets, as JSON: seconds of wall and
process time over the measured steps, and how many hooks and patches were found in torch at the end. On the CPU also
``relative``: the process time of each step by that of some 2 ms of plain operations before and after it, as the core
of a virtual machine may run at half its speed for seconds; and ``reference_s``, the wall time of these operations, which
is in that of the run. ``--no-reference``: without them.
Shapes: B batch, T time, C channels, V vocabulary.
"""

import argparse
import inspect
import itertools
import json
import math
import os
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as module_globals
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH = 6, 256, 8, 512, 128
BATCHES = 16


FAULT_STEP = 5


class Fc(nn.Linear):
    """A linear layer; while ``ill`` one output is Inf."""

    ill = False

    def forward(self, input: Tensor) -> Tensor:
        out = super().forward(input)
        return out.index_fill(-1, torch.tensor(1, device=out.device), math.inf) if self.ill else out


class Act(nn.GELU):
    """GELU; while ``ill`` a term joins that is 0 forward and NaN backward, or (``harmless``) one that relu masks."""

    ill = harmless = False

    def forward(self, input: Tensor) -> Tensor:
        out = super().forward(input)
        if self.harmless:
            out = out + 0.0 * torch.sqrt(torch.relu(out))
        return out + 0.0 * torch.sqrt(0.0 * input) if self.ill else out


class Block(nn.Module):
    """A transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.act, self.proj = Fc(WIDTH, 4 * WIDTH), Act(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x_BTC: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x_BTC)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTC = x_BTC + self.out(mixed.transpose(1, 2).flatten(2))
        out_BTC: Tensor = x_BTC + self.proj(self.act(self.fc(self.norm2(x_BTC))))
        return out_BTC


class Gpt(nn.Module):
    """Five million parameters over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids_BT: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.blocks(self.tokens(ids_BT) + self.places.weight))).flatten(0, 1)
        return out


def build_conv_net() -> nn.Module:
    """Six convolutions with BatchNorm, 0.16 million parameters."""
    widths = (3, 16, 32, 48, 64, 64, 128)
    layers: list[nn.Module] = []
    for number, (start, end) in enumerate(itertools.pairwise(widths)):
        layers += [nn.Conv2d(start, end, 3, stride=1 + number % 2, padding=1), nn.BatchNorm2d(end), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def build_workload(name: str) -> tuple[nn.Module, TensorDataset, int]:
    """Model, data and batch size."""
    if name == "gpt":
        ids = torch.randint(VOCABULARY, (BATCHES, LENGTH + 1))
        return Gpt(), TensorDataset(ids[:, :-1], ids[:, 1:]), 1
    images = torch.randn(BATCHES * 16, 3, 32, 32)
    return build_conv_net(), TensorDataset(images, torch.randint(10, (len(images),))), 16


def count_hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Every hook and every replaced function of torch that this program did not put there itself."""
    optimizers = inspect.getmodule(torch.optim.Optimizer)
    watched = {
        "global module": [
            value
            for name, value in vars(module_globals).items()
            if name.startswith("_global_") and isinstance(value, dict)
        ],
        "global optimizer": [value for name, value in vars(optimizers).items() if name.startswith("_global_optimizer")],
        "module": [value for part in model.modules() for name, value in vars(part).items() if name.endswith("_hooks")],
        "parameter": [part._backward_hooks or {} for part in model.parameters()],
        "accumulated": [getattr(part, "_post_accumulate_grad_hooks", None) or {} for part in model.parameters()],
        "optimizer": [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks],
    }
    functions = [
        torch.autograd.backward,
        torch.amp.GradScaler.scale,
        torch.amp.GradScaler.step,
        nn.utils.clip_grad_norm_,
        _BaseDataLoaderIter.__next__,
        torch.optim.Optimizer.__init__,
        nn.Module.__call__,
    ]
    home = str(Path(torch.__file__).parent)
    counts = {name: sum(len(kept) for kept in hooks) for name, hooks in watched.items()}
    return {
        **counts,
        "patch": sum(
            not inspect.unwrap(made, stop=_is_foreign).__code__.co_filename.startswith(home) for made in functions
        ),
    }


def _is_foreign(made: object) -> bool:
    """Stop unwrapping at a function that is not torch's own."""
    code = getattr(made, "__code__", None)
    return code is not None and "torch" not in Path(code.co_filename).parts


def set_fault(model: nn.Module, fault: str, ill: bool) -> None:
    """Make the GPT ill, or well again."""
    if fault == "forward-inf":
        model.blocks[3].fc.ill = ill
    elif fault:
        setattr(model.blocks[2].act, "harmless" if fault == "harmless" else "ill", ill)


class Peer:
    """Another tool, set up as its documentation says; `step` is what it wants called once a step."""

    def __init__(self, name: str, model: nn.Module) -> None:
        self.kept: object = None
        self.step = lambda loss: None
        if name == "anomaly":
            torch.autograd.set_detect_anomaly(True)
        elif name == "hf-debug":
            from transformers.debug_utils import DebugUnderflowOverflow

            self.kept = DebugUnderflowOverflow(model)
        elif name == "wandb-watch":
            import wandb

            run = wandb.init(
                mode="offline", dir=tempfile.mkdtemp(prefix="wandb-"), settings=wandb.Settings(silent=True)
            )
            run.watch(model, log="all", log_freq=1)
            self.step = lambda loss: run.log({"loss": loss.item()})


def train_workload(
    name: str, steps: int, warmup: int, peer_name: str = "", fault: str = "", *, references: bool = True
) -> dict[str, object]:
    """Train, and measure the steps after the warm-up."""
    torch.manual_seed(0)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    ill_here = os.environ.get("RANK", "1") == "1"
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, data, batch = build_workload(name)
    model.to(device)
    peer = Peer(peer_name, model)
    inner = model
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(data, batch_size=batch, shuffle=True)
    done, wall, cpu = 0, 0.0, 0.0
    reference = Reference() if device == "cpu" and references else None
    while done < warmup + steps:
        for x, target in loader:
            if done == warmup:
                wall, cpu = read_clocks(device)
            if reference is not None and done >= warmup:
                reference.lap()
            if done == warmup + steps:
                break
            set_fault(inner, fault, done + 1 == FAULT_STEP and ill_here)
            loss = functional.cross_entropy(model(x.to(device)), target.to(device).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            peer.step(loss)
            done += 1
    wall_end, cpu_end = read_clocks(device)
    if reference is not None:
        cpu_end -= reference.own_s
    if ranks > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "parameters": sum(part.numel() for part in model.parameters()),
        "steps": steps,
        "wall_s": wall_end - wall,
        "cpu_s": cpu_end - cpu,
        "relative": reference.relative if reference is not None else None,
        "reference_s": reference.wall_s if reference is not None else 0.0,
        "hooks": count_hooks(model, optimizer),
    }


class Reference:
    """Process time of steps by that of plain operations beside them, which no tool has a part in."""

    def __init__(self) -> None:
        self.held, self.weights = torch.ones(8, 64), torch.full((64, 64), 0.01)
        self.relative = self.own_s = self.others_s = self.wall_s = 0.0
        self.last_s: float | None = None  # the operations before the step
        self.begun = 0.0
        self._take_time()

    def lap(self) -> None:
        """Between two steps; before the first and after the last as well."""
        entered, before_s = time.perf_counter(), time.process_time()
        after_s = self._take_time()
        self.wall_s += time.perf_counter() - entered
        others_s = time.process_time() - before_s - after_s  # other threads, during the operations
        if self.last_s is not None:
            self.relative += (before_s - self.begun + self.others_s) / ((self.last_s + after_s) / 2)
        self.last_s, self.others_s = after_s, others_s
        self.own_s += after_s
        self.begun = time.process_time()

    def _take_time(self) -> float:
        begun = time.thread_time()  # of this thread alone: a tool's threads may be at work
        with torch.no_grad():
            for _ in range(200):
                torch.addmm(self.held, self.held, self.weights).tanh().sum()
        return time.thread_time() - begun


def read_clocks(device: str) -> tuple[float, float]:
    """Wall and process time, once the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def main() -> None:
    """Run one workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=("gpt", "conv"))
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--with", dest="peer", default="", choices=("", "anomaly", "hf-debug", "wandb-watch"))
    parser.add_argument("--fault", default="", choices=("", "forward-inf", "backward-nan", "harmless"))
    parser.add_argument("--no-reference", action="store_true", help="no plain operations beside the steps")
    options = parser.parse_args()
    references = not options.no_reference
    found = train_workload(
        options.workload, options.steps, options.warmup, options.peer, options.fault, references=references
    )
    options.report.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
