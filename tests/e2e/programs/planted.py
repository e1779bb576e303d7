"""Small trainings with one silent bug each, and the same training without it.

usage: planted.py KIND fault|healthy; nothing raises, and nothing of tdbg is named.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

FAULTY = sys.argv[2] == "fault"
EPOCHS = 3
CLASSES = 4


class Net(nn.Module):
    """A small classifier with a layer that it may or may not call."""

    def __init__(self, *, calls_side: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 32), nn.ReLU())
        self.side = nn.Linear(32, 32)
        self.head = nn.Linear(32, CLASSES)
        self.calls_side = calls_side

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        return self.head(hidden + self.side(hidden) if self.calls_side else hidden)


def make_samples(count: int = 640, *, constant: bool = False, seed: int = 1) -> TensorDataset:
    """Inputs and the classes that a linear map gives them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 16, generator=generator)
    y = (x @ torch.randn(16, CLASSES, generator=generator)).argmax(1)
    return TensorDataset(torch.full_like(x, 0.5) if constant else x, y)


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """A stream; every worker reads all of it, unless each takes its share."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        info = torch.utils.data.get_worker_info()
        first, stride = (info.id, info.num_workers) if info is not None and not FAULTY else (0, 1)
        data = make_samples(320)
        return (data[index] for index in range(first, len(data), stride))


class Slow(Dataset[tuple[Tensor, Tensor]]):
    """Samples that take a while to read."""

    def __init__(self) -> None:
        self.data = make_samples()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(0.001 if FAULTY else 0.0)
        x, y = self.data[index]
        return x, y


@dataclass
class Training:
    """What a training is made of; a bug changes one part."""

    model: nn.Module = field(default_factory=Net)
    loader: DataLoader[tuple[Tensor, Tensor]] | None = None
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = lambda model: torch.optim.AdamW(
        model.parameters(), lr=1e-3
    )
    make_scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None
    schedule: str = "epoch"  # when it steps: epoch, batch, before (the update), never
    zeroes: str = "before"  # when gradients are reset: before, between (backward and update), never
    evaluates: bool = False
    evaluates_in_training_mode: bool = False
    epochs: int = EPOCHS
    keep: Callable[[Tensor], object] = lambda loss: None
    dtype: torch.dtype = torch.float32
    before_step: Callable[[int, torch.optim.Optimizer], None] = lambda step, optimizer: None
    step_s: float = 0.005

    def run_training(self) -> None:
        model = self.model.to(self.dtype)
        loader = DataLoader(make_samples(), batch_size=32, shuffle=True) if self.loader is None else self.loader
        checks = DataLoader(make_samples(128, seed=2), batch_size=32)  # of others than training's
        optimizer = self.make_optimizer(model)
        scheduler = self.make_scheduler(optimizer) if self.make_scheduler else None
        step = 0
        for _ in range(self.epochs):
            model.train()
            for x, y in loader:
                step += 1
                self.before_step(step, optimizer)
                if self.zeroes == "before":
                    optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x.to(self.dtype)).float(), y)
                loss.backward()
                if self.zeroes == "between":
                    optimizer.zero_grad()
                if scheduler and self.schedule == "before":
                    scheduler.step()
                optimizer.step()
                if scheduler and self.schedule == "batch":
                    scheduler.step()
                self.keep(loss)
                time.sleep(self.step_s)
            if scheduler and self.schedule == "epoch":
                scheduler.step()
            if self.evaluates:
                model.train(self.evaluates_in_training_mode)
                with torch.no_grad():
                    for x, _ in checks:
                        model(x.to(self.dtype))
        print(f"loss {loss.item():.3f}")


def load_prefixed_model() -> Net:
    """A model that begins from a checkpoint whose keys may have a prefix."""
    folder = Path(tempfile.mkdtemp())
    torch.save(
        {("module." if FAULTY else "") + name: value for name, value in Net().state_dict().items()}, folder / "a"
    )
    model = Net()
    model.load_state_dict(torch.load(folder / "a"), strict=False)
    return model


def make_dead_model() -> Net:
    model = Net()
    if FAULTY:
        nn.init.constant_(model.body[3].bias, -50.0)
    return model


def make_blocked_model() -> Net:
    """The gradient stops at a frozen layer of zeros."""
    model = Net()
    if FAULTY:
        nn.init.zeros_(model.head.weight)
        model.head.weight.requires_grad_(False)
    return model


def make_group_optimizer(rate: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
    def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
        head = list(model.get_submodule("head").parameters())
        rest = [p for p in model.parameters() if not any(p is one for one in head)]
        return torch.optim.AdamW([{"params": rest, "lr": 1e-3}, {"params": head, "lr": rate}])

    return make_optimizer


def make_group_schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """A linear decay to 0, of the length of the training; of the head, of five steps."""

    def make_decay(steps: int) -> Callable[[int], float]:
        return lambda step: max(1 - step / steps, 0.0)

    return LambdaLR(optimizer, [make_decay(100), make_decay(5 if FAULTY else 100)])


def make_headless_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for name, p in model.named_parameters() if not (FAULTY and "head" in name)], lr=1e-3)


def make_swapper(model: Net) -> Callable[[int, torch.optim.Optimizer], None]:
    """A new head at step 80; the optimizer of the healthy twin is given it."""

    def swap_head(step: int, optimizer: torch.optim.Optimizer) -> None:
        if step == 80:
            model.head = nn.Linear(32, CLASSES)
            if not FAULTY:
                optimizer.param_groups[0]["params"] = list(model.parameters())

    return swap_head


def raise_rate(step: int, optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 1.0 if FAULTY and step >= 35 else 1e-3


class SlowToSave:
    """Takes its time to be saved, as gigabytes do."""

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        time.sleep(5.0)
        return str, ("slow",)


def make_saver() -> Callable[[int, torch.optim.Optimizer], None]:
    """Saves and waits every 20 steps; the healthy twin saves what is small, and goes on."""
    folder = Path(tempfile.mkdtemp())

    def save_and_wait(step: int, optimizer: torch.optim.Optimizer) -> None:
        if step % 20 == 15:
            extra = {"slow": SlowToSave()} if FAULTY else {}
            torch.save({"step": step, "optimizer": optimizer.state_dict(), **extra}, folder / "a")
            time.sleep(2.0 if FAULTY else 0.0)

    return save_and_wait


def make_keeper() -> Callable[[Tensor], object]:
    kept: list[object] = []
    ballast = torch.ones(250_000, requires_grad=True)
    return lambda loss: kept.append(loss * ballast) if FAULTY else None


def make_training(kind: str) -> Training:
    """The training with the part that a bug of this kind changes."""
    cosine = CosineAnnealingLR
    match kind:
        case "unused":
            return Training(model=Net(calls_side=not FAULTY))
        case "partial-load":
            return Training(model=load_prefixed_model())
        case "evaluation-mode":
            return Training(evaluates=True, evaluates_in_training_mode=FAULTY)
        case "late-evaluation":
            many = DataLoader(make_samples(1600), batch_size=16, shuffle=True)
            return Training(evaluates=True, evaluates_in_training_mode=FAULTY, loader=many, epochs=2, step_s=0.001)
        case "no-reset":
            return Training(zeroes="never" if FAULTY else "before")
        case "thrown-away":
            return Training(zeroes="between" if FAULTY else "before")
        case "constant":
            return Training(loader=DataLoader(make_samples(constant=FAULTY), batch_size=32, shuffle=True))
        case "repeated":
            return Training(loader=DataLoader(Stream(), batch_size=16, num_workers=2))
        case "sampler-epoch":
            sampler = DistributedSampler(make_samples(1280), num_replicas=2, rank=0)
            loader = DataLoader(sampler.dataset, batch_size=32, sampler=sampler)
            found = Training(loader=loader)
            if not FAULTY:
                found.before_step = lambda step, optimizer: sampler.set_epoch(step // 20)
            return found
        case "dead":
            return Training(model=make_dead_model())
        case "blocked":
            return Training(model=make_blocked_model())
        case "leak":
            return Training(keep=make_keeper(), epochs=6)
        case "starved":
            return Training(loader=DataLoader(Slow(), batch_size=32), epochs=4)
        case "spike":
            return Training(before_step=raise_rate)
        case "zero-rate":
            return Training(make_scheduler=lambda o: LambdaLR(o, lambda step: 0.0 if FAULTY and step else 1.0))
        case "schedule-first":
            return Training(make_scheduler=lambda o: StepLR(o, 10, 0.5), schedule="before" if FAULTY else "batch")
        case "schedule-never":
            return Training(make_scheduler=lambda o: cosine(o, 60), schedule="never" if FAULTY else "batch")
        case "schedule-unit":
            return Training(make_scheduler=lambda o: cosine(o, 3 if FAULTY else 60), schedule="batch")
        case "left-out":
            return Training(make_optimizer=make_headless_optimizer)
        case "swapped-head":
            model = Net()
            return Training(model=model, before_step=make_swapper(model), epochs=20)
        case "group-rate":
            return Training(make_optimizer=make_group_optimizer(0.0 if FAULTY else 1e-3))
        case "group-rate-falls":
            return Training(
                make_optimizer=make_group_optimizer(1e-3),
                make_scheduler=make_group_schedule,
                schedule="batch",
                epochs=5,
            )
        case "group-rate-negative":
            return Training(make_optimizer=make_group_optimizer(-1e-3 if FAULTY else 1e-3))
        case "time-lost":
            return Training(before_step=make_saver(), epochs=4)
        case "stuck":
            rate = 1e-6 if FAULTY else 1e-2
            return Training(
                make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=rate),
                dtype=torch.bfloat16,
                epochs=4,
                step_s=0.01,
            )
    raise SystemExit(f"no kind {kind!r}")


if __name__ == "__main__":
    torch.manual_seed(0)
    make_training(sys.argv[1]).run_training()
