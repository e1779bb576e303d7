"""A small model that was really trained, and its answers: a hierarchy of three tasks with null labels."""

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from tdbg.metrics.tracker.metrics_tracker import MetricsTracker
from tdbg.metrics.tracker.subset_metrics import SubsetMetricWrapper

CLASSES = {"species": 8, "genus": 4, "family": 2}
NULL = -100  # torch's own "ignore"


class Batch(NamedTuple):
    """Scores (N, C) and true classes (N) of each task, the loss of each sample (N) and the region of each."""

    scores: dict[str, torch.Tensor]
    targets: dict[str, torch.Tensor]
    losses: torch.Tensor
    regions: list[str]


class Tree(nn.Module):
    """One head a task."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.ReLU())
        self.heads = nn.ModuleDict({task: nn.Linear(24, count) for task, count in CLASSES.items()})

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.body(x)
        return {task: head(hidden) for task, head in self.heads.items()}


def make_data(samples: int, seed: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Points around eight centres; a fifth of the labels is null, some samples have none at all."""
    made = torch.Generator().manual_seed(seed)
    centres = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    species = torch.randint(0, 8, (samples,), generator=made)
    x = centres[species] + 0.9 * torch.randn(samples, 6, generator=made)
    targets = {"species": species, "genus": species // 2, "family": species // 4}
    for task in targets:
        null = torch.rand(samples, generator=made) < 0.2
        targets[task] = torch.where(null, NULL, targets[task])
    for task in targets:
        targets[task][::17] = NULL
    return x, targets


def compute_losses(scores: dict[str, torch.Tensor], targets: dict[str, torch.Tensor]) -> torch.Tensor:
    """(N): the sum over tasks, zero for a null label."""
    each = [nn.functional.cross_entropy(scores[t], targets[t], ignore_index=NULL, reduction="none") for t in CLASSES]
    return torch.stack(each).sum(0)


def make_batches(samples: int = 203, size: int = 16) -> list[Batch]:
    """Validation answers of a model after a short training, in batches of which the last is smaller."""
    torch.manual_seed(0)
    model = Tree()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(30):
        x, targets = make_data(64, step)
        loss = compute_losses(model(x), targets).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, targets = make_data(samples, 1000)
    regions = np.random.default_rng(0).choice(["europe", "asia", "africa"], samples, p=[0.6, 0.3, 0.1]).tolist()
    regions[-size:] = ["europe"] * size  # the last batch knows one region
    found = []
    with torch.no_grad():
        for at in range(0, samples, size):
            part = slice(at, at + size)
            true = {task: labels[part] for task, labels in targets.items()}
            scores = model(x[part])
            found.append(Batch(scores, true, compute_losses(scores, true), regions[part]))
    return found


def make_tracker() -> MetricsTracker:
    """A tracker of the three tasks."""
    return MetricsTracker(hierarchy=CLASSES, null_label=NULL)


def feed_tracker(tracker: MetricsTracker, found: list[Batch]) -> None:
    """As a validation loop would."""
    tracker.start_val_phase("val")
    subsets = SubsetMetricWrapper(tracker, "val")
    for batch in found:
        tracker.update_val_metrics({"loss": batch.losses.mean(dtype=torch.float64)}, len(batch.losses))
        tracker.update_predictions(batch.scores, batch.targets, top=(1, 3))
        right = (batch.scores["family"].argmax(1) == batch.targets["family"]).float()
        subsets.update({"accuracy": right}, batch.regions)
