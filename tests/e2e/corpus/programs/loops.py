"""Healthy trainings whose loop, precision or wrapping is what matters.

usage: loops.py KIND
"""

import math
from collections.abc import Iterator

import parts
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, CyclicLR, LinearLR, MultiStepLR, SequentialLR
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, get_worker_info


class Net(nn.Module):
    """Some layers with batch norm and dropout."""

    def __init__(self, *, recompute: bool = False) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(parts.FEATURES, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.middle = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(32, parts.CLASSES)
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.recompute and self.training:
            return self.head(checkpoint(self.middle, hidden, use_reentrant=False))
        return self.head(self.middle(hidden))


def accumulation() -> None:
    """Four batches a step, the leftover of an epoch too; clip; the loop of pytorch/examples with its prints."""
    train, validation = parts.load_split(parts.draw_classes, train=4400, batch=32)
    model, record = Net(), parts.Record()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(9):
        model.train()
        optimizer.zero_grad()
        for at, (x, y) in enumerate(train):
            loss = functional.cross_entropy(model(x), y)
            (loss / 4).backward()
            record.add_loss(loss)
            if (at + 1) % 4 == 0 or at + 1 == len(train):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        print(f"Train Epoch: {epoch} Loss: {loss.item():.6f} Accuracy: {parts.measure_accuracy(model, validation):.3f}")
    record.print_summary()


def warm_restarts() -> None:
    """A rate that falls to almost zero and starts again, per step, after a warm-up."""
    train, validation = parts.load_split(parts.draw_classes)
    model, record = Net(), parts.Record()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    warm = LinearLR(optimizer, 1e-3, total_iters=20)
    schedule = SequentialLR(optimizer, [warm, CosineAnnealingWarmRestarts(optimizer, 50, 2)], [20])
    for step, (x, y) in parts.repeat_batches(train, 380):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        record.add_loss(loss)
        if step % 95 == 0:
            print(f"step {step} acc {parts.measure_accuracy(model, validation):.3f} lr {schedule.get_last_lr()[0]:.2e}")
    record.print_summary()


def cyclic() -> None:
    """A triangular rate with momentum against it."""
    train, _ = parts.load_split(parts.draw_classes)
    model, record = Net(), parts.Record()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    schedule = CyclicLR(optimizer, 0.001, 0.1, step_size_up=40)
    for _, (x, y) in parts.repeat_batches(train, 320):
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        record.add_loss(loss)
    record.print_summary()


def weight_averaging() -> None:
    """Stochastic weight averaging from the middle on, with its statistics of batch norm made at the end."""
    train, validation = parts.load_split(parts.draw_classes)
    model, record = Net(), parts.Record()
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule, later = MultiStepLR(optimizer, [3], 0.5), SWALR(optimizer, swa_lr=0.01, anneal_epochs=2)
    for epoch in range(9):
        model.train()
        for x, y in train:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            record.add_loss(loss)
        if epoch >= 5:
            average.update_parameters(model)
            later.step()
        else:
            schedule.step()
    update_bn(train, average)
    print(f"averaged: {parts.measure_accuracy(average, validation):.3f}")
    record.print_summary()


def saved_and_resumed() -> None:
    """A checkpoint every epoch; a second part goes on from the last one with all of its state."""
    train, validation = parts.load_split(parts.draw_classes)
    path, record = parts.make_folder() / "last.pt", parts.Record()

    def train_epochs(epochs: range) -> None:
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        if epochs[0]:
            kept = torch.load(path, weights_only=True)
            model.load_state_dict(kept["model"])
            optimizer.load_state_dict(kept["optimizer"])
            schedule.load_state_dict(kept["schedule"])
            assert kept["epoch"] + 1 == epochs[0]
        for epoch in epochs:
            model.train()
            for x, y in train:
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                record.add_loss(loss)
            schedule.step()
            print(f"epoch {epoch} val_acc {parts.measure_accuracy(model, validation):.3f}")
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
            }
            torch.save({**state, "epoch": epoch}, path)

    train_epochs(range(5))
    train_epochs(range(5, 10))
    record.print_summary()


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Samples without an end, each worker its own."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = get_worker_info()
        seed = 100 + (worker.id if worker else 0)
        while True:
            yield from parts.draw_classes(320, seed=seed)
            seed += 2


def streamed() -> None:
    """An endless stream over two workers; the program counts steps alone and never evaluates."""
    model, record = Net(), parts.Record()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, foreach=True)
    loader = iter(DataLoader(Stream(), batch_size=32, num_workers=2, persistent_workers=True))
    for _ in range(320):
        x, y = next(loader)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
    record.print_summary()


def cross_validation() -> None:
    """Five folds, a model and an optimizer each."""
    data, record = parts.draw_classes(800, seed=1), parts.Record()
    order = torch.randperm(800)
    for fold, held in enumerate(order.chunk(5)):
        rest = torch.cat([piece for at, piece in enumerate(order.chunk(5)) if at != fold])
        train = DataLoader(Subset(data, rest.tolist()), 32, shuffle=True)
        validation = DataLoader(Subset(data, held.tolist()), 32)
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(5):
            model.train()
            for x, y in train:
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                record.add_loss(loss)
        print(f"fold {fold}: {parts.measure_accuracy(model, validation):.3f}")


def search() -> None:
    """A search over rates, one of them 0.1 of the other, then the best once more on all data."""
    train, validation = parts.load_split(parts.draw_classes)
    scores = {}
    for rate in (1e-4, 1e-3, 1e-2, None):
        chosen = max(scores, key=scores.get) if rate is None else rate
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=chosen)
        data = train
        if rate is None:
            data = DataLoader(ConcatDataset([train.dataset, validation.dataset]), 32, shuffle=True)
        for _ in range(3):
            model.train()
            for x, y in data:
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        if rate is not None:
            scores[rate] = parts.measure_accuracy(model, validation)
    print(scores)


def bfloat16_autocast() -> None:
    """Forward and loss under autocast, evaluation too."""
    train, validation = parts.load_split(parts.draw_classes)
    model, record = Net(), parts.Record()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    for epoch in range(8):
        model.train()
        for x, y in train:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            record.add_loss(loss)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            print(f"epoch {epoch} acc {parts.measure_accuracy(model, validation):.3f}")
    record.print_summary()


def float16_scaler() -> None:
    """Half precision with a scaler, unscaled before the clip; the first steps are skipped until the scale fits."""
    train, validation = parts.load_split(parts.draw_classes)
    model, record = Net(), parts.Record()
    optimizer, scaler = torch.optim.Adam(model.parameters(), lr=2e-3), torch.amp.GradScaler("cpu", growth_interval=100)
    for step, (x, y) in parts.repeat_batches(train, 330):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        record.add_loss(loss)
        if step % 110 == 0:
            print(f"acc {parts.measure_accuracy(model, validation):.3f}")
    record.print_summary()


def bfloat16_weights() -> None:
    """Weights in bfloat16 with a rate large enough to move them."""
    model, record = (
        nn.Sequential(nn.Linear(parts.FEATURES, 32), nn.GELU(), nn.Linear(32, parts.CLASSES)),
        parts.Record(),
    )
    model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    train, _ = parts.load_split(parts.draw_classes)
    for _, (x, y) in parts.repeat_batches(train, 320):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x.bfloat16()).float(), y)
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
    record.print_summary()


def double_precision() -> None:
    """float64 by default, Rprop on the full batch."""
    torch.set_default_dtype(torch.float64)
    x, scores = parts.draw_table(400, seed=1)
    model, record = (
        nn.Sequential(nn.Linear(parts.FEATURES, 16), nn.Tanh(), nn.Linear(16, parts.CLASSES)),
        parts.Record(),
    )
    optimizer = torch.optim.Rprop(model.parameters(), lr=1e-3)
    for _ in range(320):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x.double()), scores.double())
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
    record.print_summary()


def recomputed() -> None:
    """Activation checkpointing."""
    train, validation = parts.load_split(parts.draw_classes)
    model, record = Net(recompute=True), parts.Record()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, (x, y) in parts.repeat_batches(train, 320):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
        if step % 160 == 0:
            print(f"acc {parts.measure_accuracy(model, validation):.3f}")
    record.print_summary()


def compiled() -> None:
    """A compiled model (without code generation), trained and evaluated."""
    train, validation = parts.load_split(parts.draw_classes)
    model, record = Net(), parts.Record()
    fast = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(8):
        model.train()
        for x, y in train:
            optimizer.zero_grad()
            loss = functional.cross_entropy(fast(x), y)
            loss.backward()
            optimizer.step()
            record.add_loss(loss)
        model.eval()
        with torch.no_grad():
            hits = sum(int((fast(x).argmax(1) == y).sum()) for x, y in validation)
        print(f"epoch {epoch} acc {hits / 256:.3f}")
    record.print_summary()


def fused_into_backward() -> None:
    """An optimizer for each parameter that steps as soon as its gradient is there."""
    model, record = (
        nn.Sequential(nn.Linear(parts.FEATURES, 32), nn.ReLU(), nn.Linear(32, parts.CLASSES)),
        parts.Record(),
    )
    optimizers = {p: torch.optim.Adam([p], lr=2e-3, foreach=False) for p in model.parameters()}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    train, _ = parts.load_split(parts.draw_classes)
    for _, (x, y) in parts.repeat_batches(train, 320):
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        record.add_loss(loss)
    record.print_summary()


def two_optimizers() -> None:
    """Muon for hidden matrices, AdamW for the rest, a schedule each."""
    train, validation = parts.load_split(parts.draw_classes)
    model, record = Net(), parts.Record()
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "head" not in name]
    ids = {id(p) for p in matrices}
    optimizers = [
        torch.optim.Muon(matrices, lr=0.01, weight_decay=0.0),
        torch.optim.AdamW([p for p in model.parameters() if id(p) not in ids], lr=2e-3),
    ]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1.0 if step < 200 else max(0.05, 1 - (step - 200) / 130))
        for one in optimizers
    ]
    for step, (x, y) in parts.repeat_batches(train, 330):
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        model.zero_grad(set_to_none=True)
        record.add_loss(loss)
        if step % 110 == 0:
            print(f"acc {parts.measure_accuracy(model, validation):.3f}")
    record.print_summary()


def curriculum() -> None:
    """Easy samples first, then all; noise on the gradient that gets less."""
    data, record = parts.draw_classes(1280, seed=1), parts.Record()
    model = Net()
    easy = data.tensors[0].norm(dim=1).argsort()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(12):
        count = min(1280, 640 + 80 * epoch)
        for x, y in DataLoader(Subset(data, easy[:count].tolist()), 32, shuffle=True):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            for parameter in model.parameters():
                parameter.grad.add_(torch.randn_like(parameter), alpha=0.01 / math.sqrt(1 + epoch))
            optimizer.step()
            record.add_loss(loss)
    record.print_summary()


KINDS = {
    "accumulation": accumulation,
    "warm-restarts": warm_restarts,
    "cyclic": cyclic,
    "weight-averaging": weight_averaging,
    "saved-and-resumed": saved_and_resumed,
    "streamed": streamed,
    "cross-validation": cross_validation,
    "search": search,
    "bfloat16-autocast": bfloat16_autocast,
    "float16-scaler": float16_scaler,
    "bfloat16-weights": bfloat16_weights,
    "double-precision": double_precision,
    "recomputed": recomputed,
    "compiled": compiled,
    "fused-into-backward": fused_into_backward,
    "two-optimizers": two_optimizers,
    "curriculum": curriculum,
}

if __name__ == "__main__":
    parts.run_kind(KINDS)
