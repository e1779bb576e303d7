"""Which samples a batch holds: of subsets by their places in the whole, of distributed samplers without the padding."""

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset

from tdbg.probes.dataloader.feeds import find_padded_rows, to_parent_indices


def list_batches(
    rank: int, *, shuffle: bool, drop_last: bool = False, passes: int = 2
) -> list[tuple[list[int], list[int]]]:
    """(samples, which of them are padding) of each batch of a rank of three."""
    data: Dataset = TensorDataset(torch.arange(10))
    sampler = DistributedSampler(data, num_replicas=3, rank=rank, shuffle=shuffle, drop_last=drop_last)
    loader, found = DataLoader(data, batch_size=3, sampler=sampler), []
    for _ in range(passes):
        iterator, taken = iter(loader), 0
        for (samples,) in iterator:
            padded = find_padded_rows(iterator, taken, len(samples))
            taken += len(samples)
            found.append((samples.tolist(), padded))
    return found


def test_padding_is_what_another_rank_has_too() -> None:
    for shuffle in (False, True):
        kept: list[int] = []
        padded = 0
        for rank in range(3):
            for samples, rows in list_batches(rank, shuffle=shuffle, passes=1):
                padded += len(rows)
                kept += [sample for row, sample in enumerate(samples) if row not in rows]
        assert sorted(kept) == [*range(10)] and padded == 2
    assert all(not rows for rank in range(3) for _, rows in list_batches(rank, shuffle=True, drop_last=True))


def test_without_such_a_sampler_nothing_is_padding() -> None:
    iterator = iter(DataLoader(TensorDataset(torch.arange(4)), batch_size=2, shuffle=True))
    assert find_padded_rows(iterator, 0, 2) == []


def test_indices_of_a_subset_of_a_subset() -> None:
    data = TensorDataset(torch.arange(10))
    inner = Subset(data, [9, 7, 5, 3])
    assert to_parent_indices(Subset(inner, [3, 0]), [0, 1]) == [3, 9]
    assert to_parent_indices(data, [2, 1]) == [2, 1]
    assert to_parent_indices(Subset(inner, [3, 0]), [5]) == [5], "an index that it does not have is left as it is"
