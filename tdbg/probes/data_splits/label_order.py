"""Whether a loader gives its samples in the order of their labels."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from tdbg.core.observations.data_splits import LabelOrder
from tdbg.probes.dataloader import batch_contents
from tdbg.probes.dataloader.batch_contents import Part
from tdbg.probes.dataloader.feeds import is_stream, iter_samplers

if TYPE_CHECKING:
    from tdbg.runtime.torch_compat import BatchIterator

LEAST_BATCHES = 4
LEAST_IN_BATCH = 4  # labels: fewer are equal by chance
LEAST_PER_CLASS = 4  # samples a label: labels that hardly repeat are no classes
SORTED_CLASSES = 3  # two may be sorted by chance, or stand for a phase
CHANCE = 1e-6  # of so many batches with one label each, were the labels in random order


@dataclass(slots=True)
class Order:
    """The labels of the batches of a pass, as far as they followed each other."""

    path: str = ""
    batches: int = 0
    samples: int = 0
    single: int = 0
    smallest: int = 0  # labels in the smallest batch
    counts: dict[int, int] = field(default_factory=dict)
    last: int | None = None
    rises: bool = True
    falls: bool = True

    def add_labels(self, labels: list[int]) -> None:
        """The labels of the next batch."""
        self.smallest = len(labels) if not self.batches else min(len(labels), self.smallest)
        self.batches += 1
        self.samples += len(labels)
        self.single += len(set(labels)) == 1
        for label in labels:
            self.counts[label] = self.counts.get(label, 0) + 1
            if self.last is not None:
                self.rises = self.rises and label >= self.last
                self.falls = self.falls and label <= self.last
            self.last = label

    @property
    def is_sorted(self) -> bool:
        """True if labels of three classes or more rise, or fall, all the way."""
        return (self.rises or self.falls) and len(self.counts) >= SORTED_CLASSES

    @property
    def is_grouped(self) -> bool:
        """True if every batch has one label, of two or more, and no random order would give that."""
        if self.single < self.batches or len(self.counts) < 2 or self.smallest < LEAST_IN_BATCH:
            return False
        alike = sum((count / self.samples) ** self.smallest for count in self.counts.values())
        return bool(alike**self.batches < CHANCE)

    def judge_order(self, dataset: str) -> LabelOrder | None:
        """What is to be told of it; None while the order is none, or too few labels were seen."""
        are_classes = self.samples >= LEAST_PER_CLASS * len(self.counts)
        if self.batches < LEAST_BATCHES or not are_classes or not (self.is_sorted or self.is_grouped):
            return None
        return LabelOrder(
            dataset=dataset,
            label=self.path,
            batches=self.batches,
            samples=self.samples,
            classes=len(self.counts),
            single=self.single,
            is_sorted=self.is_sorted,
        )


def is_sequential(loader_iter: "BatchIterator") -> bool:
    """True if a loader takes the samples of a map-style dataset as they are stored."""
    if is_stream(loader_iter):
        return False
    innermost = list(iter_samplers(loader_iter))[-1]
    in_order = type(innermost).__name__ == "SequentialSampler"
    return in_order or (type(innermost).__name__ == "DistributedSampler" and not getattr(innermost, "shuffle", True))


def class_labels(parts: list[Part]) -> tuple[str, Tensor] | None:
    """The labels of a batch, one a sample, with their path."""
    part = batch_contents.find_labels(parts)
    if part is None or part.tensor.dim() == 0 or part.tensor.numel() != part.tensor.shape[0]:
        return None
    return part.path, part.tensor.detach().reshape(-1)
