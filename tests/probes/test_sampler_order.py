"""The samples of a batch, read from the sampler afterwards, are those that the dataset was asked for."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from tdbg.probes.dataloader.sampler_order import read_batch_indices

LENGTH, BATCH = 50, 8


class Numbers(Dataset[int]):
    """Each sample is its own index."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    """No index leads to a sample."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(LENGTH))


class Backwards(Sampler[int]):
    """A sampler of the program's own."""

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        return iter(range(LENGTH - 1, -1, -1))


def list_reads(loader: DataLoader[int]) -> list[tuple[list[int], list[int]]]:
    """What each batch is made of, and what is read of it."""
    iterator: Any = iter(loader)
    return [(batch.tolist(), read_batch_indices(iterator)) for batch in iterator]


KNOWN: dict[str, dict[str, Any]] = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "without the rest": {"shuffle": True, "drop_last": True},
    "with a generator": {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "distributed": {"sampler": DistributedSampler(Numbers(), num_replicas=2, rank=1)},  # type: ignore[arg-type]
}


@pytest.mark.parametrize("kind", KNOWN)
@pytest.mark.parametrize("workers", [0, 2])
def test_known_orders(kind: str, workers: int) -> None:
    for _ in range(2):  # passes
        reads = list_reads(DataLoader(Numbers(), batch_size=BATCH, num_workers=workers, **KNOWN[kind]))
        assert all(read in (truth, []) for truth, read in reads), "never wrong"
        told = [read == truth for truth, read in reads]
        ahead = 5 if workers else 1  # so many batches are asked for, and the sampler may be used up by the last of them
        assert all(told[: max(len(told) - ahead, 0)]) and len(told) in (4, 6, 7), told


UNKNOWN: dict[str, dict[str, Any]] = {
    "replacement": {"sampler": RandomSampler(Numbers(), replacement=True)},
    "fewer than all": {"sampler": RandomSampler(Numbers(), num_samples=20)},
    "more than all": {"sampler": RandomSampler(Numbers(), num_samples=120)},
    "subset": {"sampler": SubsetRandomSampler(range(20))},
    "weights": {"sampler": WeightedRandomSampler([1.0] * LENGTH, LENGTH)},
    "own": {"sampler": Backwards()},
    "own batches": {"batch_sampler": [[1, 2], [3, 4]]},
    "no batches": {"batch_size": None},
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_of_any_other_order_nothing_is_said_or_the_truth(kind: str) -> None:
    options = UNKNOWN[kind] if "batch_sampler" in UNKNOWN[kind] else {"batch_size": BATCH, **UNKNOWN[kind]}
    loader: DataLoader[int] = DataLoader(Numbers(), **options)
    iterator: Any = iter(loader)
    for batch in iterator:
        assert read_batch_indices(iterator) in ([], torch.as_tensor(batch).reshape(-1).tolist())


def test_a_stream_and_a_batch_not_yet_taken_have_none() -> None:
    assert all(read == [] for _, read in list_reads(DataLoader(Stream(), batch_size=BATCH)))
    iterator: Any = iter(DataLoader(Numbers(), batch_sampler=BatchSampler(range(9), 3, drop_last=False)))
    assert read_batch_indices(iterator) == []
