"""Small trainings with one silent bug in their data each, and the same training without it.

usage: planted_data.py KIND fault|healthy; nothing raises, and nothing of tdbg is named.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

FAULTY = sys.argv[2] == "fault"
FEATURES, CLASSES = 16, 4
Batches = Iterable[tuple[Tensor, Tensor]]


def make_samples(count: int, seed: int, scale: float = 1.0) -> TensorDataset:
    """Inputs and the classes that a linear map gives them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=generator)
    y = (x @ torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(0))).argmax(1)
    return TensorDataset(x * scale, y)


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples with noise from numpy's own generator, or from one that the dataset holds."""

    def __init__(self, *, by_module: bool = False) -> None:
        self.data = make_samples(640, 1)
        self.rng: Any = numpy.random if by_module else numpy.random.default_rng(0)
        self.is_seeded = by_module or FAULTY

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not self.is_seeded:
            self.rng, self.is_seeded = numpy.random.default_rng(torch.initial_seed()), True
        x, y = self.data[index]
        return x + torch.as_tensor(self.rng.normal(0, 0.1, FEATURES), dtype=x.dtype), y


def drop_samples(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A batch without the samples that a check takes for outliers: every other one."""
    kept = [(x, y) for x, y in samples if x.mean() > 0] or samples[:1]
    return torch.stack([x for x, _ in kept]), torch.stack([y for _, y in kept])


def fold_samples(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A batch in which every four samples have become one."""
    x, y = torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])
    return x.view(-1, 4, FEATURES).mean(1), y[::4]


COLLATES = {"dropped": drop_samples, "folded": fold_samples}


@dataclass
class Training:
    """What a training is made of; a bug changes one part."""

    loader: Batches = field(default_factory=lambda: DataLoader(make_samples(640, 1), batch_size=32, shuffle=True))
    checks: Batches = field(default_factory=lambda: DataLoader(make_samples(160, 2), batch_size=32))
    make_model: Callable[[], nn.Module] = lambda: nn.Sequential(
        nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES)
    )
    begin: Callable[[nn.Module, torch.optim.Optimizer], None] = lambda model, optimizer: None
    end_epoch: Callable[[nn.Module, torch.optim.Optimizer, int], None] = lambda model, optimizer, epoch: None
    epochs: int = 4
    step_s: float = 0.004

    def run_training(self) -> None:
        torch.manual_seed(0)
        model = self.make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.begin(model, optimizer)
        for epoch in range(self.epochs):
            model.train()
            for x, y in self.loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                time.sleep(self.step_s)
            model.eval()
            with torch.no_grad():
                hits = sum(int((model(x).argmax(1) == y).sum()) for x, y in self.checks)
            self.end_epoch(model, optimizer, epoch)
        print(f"loss {loss.item():.3f}, {hits} hits")


def make_training(kind: str) -> Training:
    """The training with the part that a bug of this kind changes."""
    match kind:
        case "scaled":
            return Training(checks=DataLoader(make_samples(160, 2, 100.0 if FAULTY else 1.0), batch_size=32))
        case "scaled-early":  # the first pass comes within the opening steps
            many = DataLoader(make_samples(320, 1), batch_size=32, shuffle=True)
            return Training(loader=many, checks=DataLoader(make_samples(60, 2, 50.0 if FAULTY else 1.0), batch_size=60))
        case "scaled-short":  # steps so short that the hooks are away when the pass comes
            many = DataLoader(make_samples(6400, 1), batch_size=32, shuffle=True)
            return Training(loader=many, checks=DataLoader(make_samples(160, 2, 0.01 if FAULTY else 1.0)), step_s=0.0)
        case "bytes":
            top, y = 255.0 if FAULTY else 1.0, torch.arange(640) % CLASSES
            parts = [TensorDataset(torch.rand(640, FEATURES) * top, y[torch.randperm(640)]) for _ in range(2)]
            return Training(DataLoader(parts[0], batch_size=32, shuffle=True), DataLoader(parts[1], batch_size=32))
        case "training-data":  # the splits are drawn twice
            whole = make_samples(800, 1)
            first = random_split(whole, [720, 80], torch.Generator().manual_seed(1))
            second = random_split(whole, [720, 80], torch.Generator().manual_seed(2 if FAULTY else 1))
            return Training(DataLoader(first[0], batch_size=32, shuffle=True), DataLoader(second[1], batch_size=32))
        case "training-file":  # both loaders read the same file
            whole = make_samples(640, 1)
            return Training(
                checks=DataLoader(make_samples(160, 1 if FAULTY else 2), batch_size=32),
                loader=DataLoader(whole, batch_size=32, shuffle=True),
            )
        case "sorted":
            x, y = make_samples(640, 1).tensors
            order = y.argsort(stable=True)
            return Training(DataLoader(TensorDataset(x[order], y[order]), batch_size=32, shuffle=not FAULTY))
        case "grouped":  # one class a batch, in any order of classes
            x, y = make_samples(640, 1).tensors
            order = torch.cat([(y == label).nonzero().flatten()[:96] for label in (2, 0, 3, 1)])
            return Training(DataLoader(TensorDataset(x[order], y[order]), batch_size=24, shuffle=not FAULTY))
        case "same-noise" | "same-noise-spawned":  # a generator of the dataset's own, copied into each worker
            how = "spawn" if kind == "same-noise-spawned" else "fork"
            return Training(
                DataLoader(Noisy(), batch_size=32, shuffle=True, num_workers=2, multiprocessing_context=how), epochs=2
            )
        case "same-seed":

            def seed_worker(worker: int) -> None:
                numpy.random.seed(7 if FAULTY else torch.initial_seed() % 2**32)

            return Training(DataLoader(Noisy(by_module=True), batch_size=32, num_workers=2, worker_init_fn=seed_worker))
        case "dropped" | "folded":
            collate = COLLATES[kind] if FAULTY else None
            return Training(DataLoader(make_samples(640, 1), batch_size=32, shuffle=True, collate_fn=collate))
        case "resumed":
            return resume_training()
    raise SystemExit(f"no kind {kind!r}")


def resume_training() -> Training:
    """A training that goes on from what another has saved, epoch 7, with its optimizer or without it."""
    folder = Path(tempfile.mkdtemp())
    found = Training()
    torch.manual_seed(0)
    model = found.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(4, FEATURES)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 7}, folder / "last.pt")
    kept = torch.load(folder / "last.pt")

    def load_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model.load_state_dict(kept["model"])
        if not FAULTY:
            optimizer.load_state_dict(kept["optimizer"])

    def end_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
        number = kept["epoch"] + 1 + epoch
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": number}
        torch.save(parts, folder / f"epoch{number}.pt")

    found.begin, found.end_epoch = load_state, end_epoch
    return found


if __name__ == "__main__":
    make_training(sys.argv[1]).run_training()
