"""Mistakes of somebody's first training, and the same training without them. Nothing of tdbg is named.

usage: newcomers.py KIND fault|healthy. Shapes: B batch, F features, C classes.
"""

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset

KIND, FAULTY = sys.argv[1], sys.argv[2] == "fault"
SAMPLES, FEATURES, CLASSES, BATCH, EPOCHS = 2560, 48, 10, 64, 8
STEP_S = 0.004  # so that a step is none of microseconds


class Classifier(nn.Module):
    """Layers that see the features, and a head that names the class."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(FEATURES, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x_BF: Tensor) -> Tensor:
        return self.head(self.trunk(x_BF))


class Archive(Dataset[tuple[Tensor, Tensor]]):
    """Samples that are unpacked one by one, which takes a while."""

    def __init__(self, samples: TensorDataset) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if FAULTY:
            time.sleep(0.001)
        x, y = self.samples[index]
        return x, y


def make_samples(count: int, seed: int) -> TensorDataset:
    """Features from 0 to 1, and the class that a linear map gives to what they are above one half."""
    x = torch.rand(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    true_FC = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, ((x - 0.5) @ true_FC).argmax(1))


def normalise(samples: TensorDataset) -> TensorDataset:
    x, y = samples.tensors
    return TensorDataset((x - 0.5) / 0.29, y)


def number_by_name(samples: TensorDataset) -> TensorDataset:
    """Classes in the order of their folders' names, in which fold-10 comes before fold-2."""
    x, y = samples.tensors
    folders = sorted(f"fold-{label + 1}" for label in range(CLASSES))
    return TensorDataset(x, torch.tensor([folders.index(f"fold-{label + 1}") for label in range(CLASSES)])[y])


def make_loaders() -> tuple[DataLoader[tuple[Tensor, Tensor]], DataLoader[tuple[Tensor, Tensor]]]:
    """Of training and of validation."""
    train, val = normalise(make_samples(SAMPLES, 1)), normalise(make_samples(640, 2))
    if KIND == "unscaled-validation" and FAULTY:
        val = TensorDataset(make_samples(640, 2).tensors[0] * 255, val.tensors[1])
    if KIND == "label-order":
        train = number_by_name(train)
        val = val if FAULTY else number_by_name(val)
    source = Archive(train) if KIND == "slow-reader" else train
    return DataLoader(source, batch_size=BATCH, shuffle=True), DataLoader(val, batch_size=128)


def make_optimizer(model: Classifier) -> torch.optim.Optimizer:
    """Rates of the parts come from factors of a configuration, of which one may be 0."""
    factors = {"trunk": 1.0, "head": 0.0 if FAULTY and KIND in ("head-rate", "zero-head") else 1.0}
    groups = [{"params": model.get_submodule(part).parameters(), "lr": 1e-3 * by} for part, by in factors.items()]
    return torch.optim.AdamW(groups)


def make_model() -> Classifier:
    model = Classifier()
    if KIND == "zero-head":
        nn.init.zeros_(model.head.weight)
    return model


def train_epoch(
    model: nn.Module,
    loader: DataLoader[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    keep: Callable[[Tensor], None],
) -> float:
    model.train()
    for x_BF, y_B in loader:
        logits_BC = model(x_BF)
        loss = cross_entropy(logits_BC, y_B)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        keep(loss)
        time.sleep(STEP_S)
    return loss.item()


def measure_accuracy(model: nn.Module, loader: DataLoader[tuple[Tensor, Tensor]]) -> float:
    model.eval()
    with torch.no_grad():
        pairs = [(model(x_BF).argmax(1), y_B) for x_BF, y_B in loader]
    return torch.cat([guess_B == y_B for guess_B, y_B in pairs]).float().mean().item()


def train_masked() -> None:
    """Most targets are hidden, in some batches all of them."""
    model, criterion = Classifier(), nn.CrossEntropyLoss(ignore_index=-1, label_smoothing=0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, 61):
        x_BF, y_B = make_samples(BATCH, step).tensors
        hidden_B = torch.rand(BATCH) < 0.9
        hidden_B[0] = False
        if FAULTY and step == 31:
            hidden_B[:] = True
        loss = criterion(model(x_BF), y_B.masked_fill(hidden_B, -1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    torch.manual_seed(0)
    if KIND == "masked-batch":
        return train_masked()
    model, (loader, val_loader), kept = make_model(), make_loaders(), []
    optimizer = make_optimizer(model)
    ballast = torch.ones(200_000, requires_grad=True)
    keeps = FAULTY and KIND == "kept-losses"
    for epoch in range(3 if KIND == "slow-reader" else EPOCHS):
        loss = train_epoch(
            model, loader, optimizer, lambda one: kept.append(one + (ballast * 0.0).exp().mean()) if keeps else None
        )
        accuracy = measure_accuracy(model, val_loader)
        print(f"epoch {epoch} train_loss {loss:.4f} val_acc {accuracy:.4f}", flush=True)
    return None


if __name__ == "__main__":
    main()
