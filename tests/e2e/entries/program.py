"""A training that passes every place where tdbg may stand on a machine without accelerator; prints its losses.

argv: the parts to take besides plain training (``compile``, ``trackers``; ``debuggers``: attached to the model by the program
itself, where tdbg watches; ``pair``: instead of it, two ranks, one not watched),
and ``raise`` to end with an exception.
"""

import observer  # isort: skip  # first: it has to see what tdbg registers

import argparse
import contextlib
import copy
import io
import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("parts", nargs="*")
parser.add_argument("--debug-null-masking", action="store_true")
args = parser.parse_args()
logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
log = logging.getLogger("train")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

if observer.MODE == "list":
    observer.record_torch_registrations(torch)


class Squares(Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.full((8,), float(index)) / 16
        return x, x[:2].square()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.act = nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        observer.run_tick()
        x = x + self.act(self.norm(self.first(x)))
        y, _ = self.attention(x[:, None], x[:, None], x[:, None])
        return x + y[:, 0]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = Block(), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = checkpoint(self.block, x, use_reentrant=False) if x.requires_grad else self.block(x)
        observer.run_tick()
        if "by_hand" in self._modules:
            self.by_hand(x[:, None])
        return {"y": self.head(x)}


def run_once(torch_module: object) -> None:
    """Things a program does once."""
    torch.jit.script(nn.Linear(2, 2))
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            raise ValueError("swallowed")
        except ValueError:
            traceback.print_exc()
            traceback.format_exc()
    subprocess.run([sys.executable, "-S", "-c", "raise SystemExit(3)"], check=False)
    child = multiprocessing.get_context("fork").Process(target=os._exit, args=(3,))
    child.start()
    child.join()
    with contextlib.redirect_stderr(io.StringIO()):
        thread = threading.Thread(target=lambda: [][0])  # type: ignore[index]
        thread.start()
        thread.join()


def make_configs() -> None:
    """Configurations that take flags."""
    from omegaconf import OmegaConf
    from yacs.config import CfgNode

    observer.run_tick()
    cfg = CfgNode({"DEBUG": CfgNode({"NULL_MASKING": False}), "LR": 0.1})
    cfg.merge_from_list(["LR", 0.1])
    observer.run_tick()
    cfg.freeze()
    observer.run_tick()
    OmegaConf.merge(OmegaConf.create({"debug": {"null_masking": False}}), {"lr": 0.1})


def attach_debuggers(model: nn.Module) -> list[object]:
    """Every kind of hook that a debugger attached by hand has, until the program ends."""
    from tdbg.debuggers import ActivationStats, Attention, FeatureMap, ForwardDebugger, Gradients, LayerOutput

    class Own(ForwardDebugger):
        def process_forward(self, module: nn.Module, input: object, output: torch.Tensor) -> object:
            return float(output.detach().sum())

    class ByHand(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x)

    model.by_hand = ByHand()
    debuggers = [
        *(FeatureMap("head"), ActivationStats("head"), LayerOutput("head"), Gradients("head"), Own("head")),
        *(Attention("block.attention"), Attention("by_hand")),
    ]
    model.block.norm.register_forward_hook(FeatureMap("block.norm").forward_hook_fn)
    return [debugger.attach(model) for debugger in debuggers]


ATTACHED: list[object] = []


def train_parts() -> None:
    torch.manual_seed(0)
    model = Net()
    if "debuggers" in args.parts and "TDBG_RUN_DIR" in os.environ:
        ATTACHED.extend(attach_debuggers(model))
    observer.leave_root_modules_alone()
    observer.run_tick()
    if "compile" in args.parts:
        model.block.compile(backend="eager")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    other = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    observer.run_tick()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(other)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    loss_of, step = nn.MSELoss(), 0
    observer.OBJECTS += [model, loss_of, optimizer, other, scheduler, plateau, scaler]
    train_loader = DataLoader(Squares(), batch_size=4, shuffle=False)
    val_loader = DataLoader(Squares(), batch_size=8)
    observer.OBJECTS += [train_loader, val_loader]
    for epoch in range(5):
        for x, y in train_loader:
            observer.run_tick()
            step += 1
            optimizer.zero_grad()
            observer.run_tick()
            with torch.autocast("cpu", enabled=False):
                output = model(x.requires_grad_(epoch == 4))["y"]
            observer.run_tick()
            loss = loss_of(output, y)
            if step % 5 == 0:
                loss.backward()
                observer.run_tick()
                nn.utils.clip_grad_norm_(model.parameters(), 10.0)
                observer.run_tick()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                observer.run_tick()
                scaler.unscale_(optimizer)
                observer.run_tick()
                scaler.step(optimizer)
                observer.run_tick()
                scaler.update()
            observer.run_tick()
            scheduler.step()
            observer.run_tick()
            print(f"LOSS {step} {loss.item():.9f}")
            observer.run_tick()
            log.debug("step %d", step)
            observer.run_tick()
            log.warning("step %d", step)
            observer.run_tick()
        model.eval()
        observer.run_tick()
        with torch.no_grad():
            for x, y in val_loader:
                value = loss_of(model(x)["y"], y)
        model.train()
        model.zero_grad()
        other.zero_grad()
        observer.run_tick()
        print(f"EVAL {epoch} {value.item():.9f}")
        plateau.step(value.item())
        observer.run_tick()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.pt"
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
            observer.run_tick()
            state = torch.load(path)
            observer.run_tick()
            model.load_state_dict(state["model"])
            observer.run_tick()
            optimizer.load_state_dict(state["optimizer"])
        observer.run_tick()
        warnings.warn(f"epoch {epoch}", stacklevel=1)
        observer.run_tick()
        if epoch == 1:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                model(torch.ones(1, 8))
            observer.run_tick()
            copy.deepcopy(model)
            observer.run_tick()
            torch.jit.script(model.head)
            observer.run_tick()
    total = sum(float(p.double().sum()) for p in model.parameters())
    print(f"WEIGHTS {total:.12f}")


def train_distributed(rank: int, world: int, store: str) -> None:
    """Steps under DDP, with buckets of its own and as views, and under FSDP2."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    observer.run_tick()
    for kind in ("DDP", "views", "FSDP2") if world > 1 else ("DDP",):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        if kind == "FSDP2":
            model = fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
        else:
            model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=kind == "views")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        observer.run_tick()
        for step in range(3):
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            observer.run_tick()
            optimizer.step()
            optimizer.zero_grad()
            observer.run_tick()
            total = loss.detach().clone()
            dist.all_reduce(total)
            observer.run_tick()
            dist.barrier()
            observer.run_tick()
            print(f"{kind} {step} {total.item():.9f}")
    dist.barrier()
    dist.destroy_process_group()


def distribute_pair(store: str) -> None:
    """This process is rank 0; rank 1 is a process that nobody watches."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("TDBG_", "ENTRIES_", "PYTHON"))}
    words = [sys.executable, __file__, "peer", store]
    peer = subprocess.Popen(words, env=plain, stdout=subprocess.DEVNULL)
    try:
        train_distributed(0, 2, store)
    finally:
        peer.wait(timeout=60)


def track_metrics() -> None:
    """Packages that metrics go through."""
    import torchmetrics
    from torch.utils.tensorboard import SummaryWriter

    metric = torchmetrics.MeanMetric()
    both = torchmetrics.MetricCollection([torchmetrics.MeanMetric()])
    with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:
        for step in range(3):
            observer.run_tick()
            metric.update(float(step))
            print(f"METRIC {metric.compute().item():.6f}")
            observer.run_tick()
            both.update(float(step))
            both.compute()
            both.reset()
            observer.run_tick()
            writer.add_scalar("loss", float(step), step)
            observer.run_tick()
            writer.add_scalars("both", {"a": float(step)}, step)
            observer.run_tick()


if "peer" in args.parts:
    train_distributed(1, 2, args.parts[1])
    sys.exit()
make_configs()
observer.run_tick()
run_once(torch)
observer.run_tick()
if "pair" not in args.parts:  # with a GradScaler at work, tdbg leaves the gradients of single ranks to it
    train_parts()
if "trackers" in args.parts:
    track_metrics()
with tempfile.TemporaryDirectory() as scratch:
    distribute_pair(f"{scratch}/store") if "pair" in args.parts else train_distributed(0, 1, f"{scratch}/store")
observer.run_tick()
if "raise" in args.parts:
    raise ValueError("the end")
