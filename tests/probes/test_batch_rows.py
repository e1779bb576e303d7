"""TD-D015: batches with fewer samples than were fetched, and the many layouts in which none is missing."""

from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset

from tdbg.probes.dataloader.batch_rows import RowCounts, count_rows
from tests.probes.judging import judge_watch, list_observations

FETCHED, FEATURES = 16, 6
x_NF, y_N = torch.randn(FETCHED, FEATURES), torch.arange(FETCHED)


@dataclass
class Sample:
    """A batch as a dataclass."""

    x: Any
    y: Any = None


class Opaque:
    """An object of the program's own."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


class Unreadable(UserDict[str, Any]):
    """A mapping that raises."""

    def values(self) -> Any:
        raise RuntimeError("not now")


SHORT: dict[str, tuple[Any, int]] = {
    "dropped": ((x_NF[:12], y_N[:12]), 12),
    "dropped, with a table beside it": ((x_NF[:12], y_N[:12], torch.ones(3, FEATURES)), 12),
    "folded in pairs": ((x_NF.view(8, 2 * FEATURES), y_N[::2]), 8),
    "packed into one row": ({"input_ids": torch.ones(1, 300), "labels": torch.ones(1, 300)}, 1),
    "packed into blocks": (UserDict(input_ids=torch.ones(3, 100).long()), 3),
    "a ragged list": (([torch.ones(3, 5 + one) for one in range(11)], y_N[:11]), 11),
    "a dataclass": (Sample(x_NF[:4], y_N[:4]), 4),
    "arrays": ([numpy.ones((10, 3)), numpy.ones(10)], 10),
    "a packed sequence": (pack_sequence([torch.ones(2)] * 9), 9),
    "with words and numbers": ((x_NF[:12], "a name", 3, None, 0.5), 12),
}
WHOLE: dict[str, Any] = {
    "as fetched": (x_NF, y_N),
    "a dict": {"image": x_NF, "scale": torch.tensor(2.0)},
    "nested": {"inputs": [{"ids": x_NF}, torch.ones(2)], "targets": (torch.ones(40, 6),)},
    "a dataclass": Sample(x_NF),
    "time first": (torch.ones(9, FETCHED, FEATURES), torch.ones(3)),
    "padded": (torch.ones(FETCHED, 50), torch.ones(FETCHED, 50)),
    "a ragged list": [torch.ones(3, 5 + one) for one in range(FETCHED)],
    "ragged tensors and strings": {"image": torch.ones(3, 8), "text": ["word"] * FETCHED},
    "a packed sequence": pack_sequence([torch.ones(2)] * FETCHED),
    "a nested tensor": torch.nested.nested_tensor([torch.ones(2, 3)] * FETCHED),
    "offsets": (torch.ones(300), torch.arange(FETCHED + 1)),
    "offsets beside one row": (torch.ones(1, 300), torch.arange(FETCHED + 1)),
    "two views": torch.cat([x_NF, x_NF]),
    "two views apart": [x_NF, x_NF],
    "ways and shots": (torch.ones(4, 4, 3, 8, 8), torch.ones(4, 4)),
    "pairs": (torch.ones(8, 2, FEATURES), torch.ones(8)),
    "micro-batches": torch.ones(2, 8, FEATURES),
    "support and query": ((torch.ones(5, 9), torch.ones(5)), (torch.ones(11, 9), torch.ones(11))),
    "with labels and without": {"labelled": x_NF[:4], "labels": y_N[:4], "unlabelled": x_NF[4:]},
    "points of all": (torch.ones(500, 3), torch.ones(3)),
    "numbers alone": (torch.tensor(1.0), 3),
    "nothing": (),
    "an object of the program's own": (x_NF[:3], Opaque(x_NF)),
    "an object that raises": (x_NF[:3], Unreadable()),
    "more than is looked at": [[torch.ones(1)] * 10 for _ in range(15)] * 5,
}


@pytest.mark.parametrize("kind", SHORT)
def test_a_batch_with_fewer_samples_is_counted(kind: str) -> None:
    batch, rows = SHORT[kind]
    assert count_rows(batch, FETCHED) == rows


@pytest.mark.parametrize("kind", WHOLE)
def test_a_batch_that_may_hold_all_samples_is_not(kind: str) -> None:
    assert count_rows(WHOLE[kind], FETCHED) is None


def test_most_of_several_batches_must_be_short() -> None:
    counts, due = RowCounts(), []
    for number in range(1, 17):
        counts.add_batch(FETCHED, None if number in (1, 3, 9) else 12)
        due.append(counts.is_due)
    assert [number for number, is_due in enumerate(due, 1) if is_due] == [8, 16]
    assert (counts.short, counts.fetched, counts.held) == (13, 13 * FETCHED, 13 * 12)


# real loaders


def drop_half(samples: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    return [torch.stack(part) for part in zip(*samples[::2], strict=True)]


def drop_one(samples: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    kept = [one for one in samples if int(one[1]) != 20]
    return [torch.stack(part) for part in zip(*kept, strict=True)]


def pack_samples(samples: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    return [torch.cat([x for x, _ in samples])[None], samples[0][1][None]]


def put_time_first(samples: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    return [torch.stack([x for x, _ in samples], 1), torch.stack([y for _, y in samples])]


def keep_lists(samples: list[tuple[Tensor, Tensor]]) -> list[list[Tensor]]:
    return [list(part) for part in zip(*samples, strict=True)]


class Stream(IterableDataset[Any]):
    """Samples without indices."""

    def __iter__(self) -> Iterator[Any]:
        return iter(DATA)


class Blocks(Dataset[Any]):
    """Gives whole batches for lists of indices."""

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, indices: list[int]) -> Any:
        return x_96F[indices][:2], torch.zeros(2)


x_96F = torch.randn(96, FEATURES)
DATA = TensorDataset(x_96F, torch.arange(96))
BY_BATCH = BatchSampler(SequentialSampler(DATA), 8, drop_last=False)
LOADERS: dict[str, tuple[Callable[[], DataLoader[Any]], list[str]]] = {
    "dropped": (lambda: DataLoader(DATA, 8, collate_fn=drop_half), ["TD-D015"]),
    "dropped in workers": (lambda: DataLoader(DATA, 8, collate_fn=drop_half, num_workers=2), ["TD-D015"]),
    "dropped, shuffled": (lambda: DataLoader(DATA, 8, shuffle=True, collate_fn=drop_half), ["TD-D015"]),
    "packed": (lambda: DataLoader(DATA, 8, collate_fn=pack_samples), ["TD-D015"]),
    "a sampler of batches, dropped": (
        lambda: DataLoader(DATA, batch_sampler=BY_BATCH, collate_fn=drop_half),
        ["TD-D015"],
    ),
    "as it comes": (lambda: DataLoader(DATA, 8), []),
    "in workers": (lambda: DataLoader(DATA, 8, num_workers=2), []),
    "a smaller last batch": (lambda: DataLoader(DATA, 22), []),
    "drop_last": (lambda: DataLoader(DATA, 22, drop_last=True), []),
    "a sampler of batches": (lambda: DataLoader(DATA, batch_sampler=BY_BATCH), []),
    "a sampler of batches without collate": (lambda: DataLoader(Blocks(), sampler=BY_BATCH, batch_size=None), []),
    "a stream": (lambda: DataLoader(Stream(), 8, collate_fn=drop_half), []),
    "now and then one": (lambda: DataLoader(DATA, 8, collate_fn=drop_one), []),
    "time first": (lambda: DataLoader(DATA, 8, collate_fn=put_time_first), []),
    "lists": (lambda: DataLoader(DATA, 8, collate_fn=keep_lists), []),
    "pairs are too few to say": (lambda: DataLoader(DATA, 2, collate_fn=drop_half), []),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_the_note_is_of_loaders_that_give_fewer(start_watch: Any, tmp_path: Path, kind: str) -> None:
    make_loader, codes = LOADERS[kind]
    watched = start_watch(max_overhead=None, flags={"DATALOADER": True})
    model = nn.Linear(FEATURES, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for batch in make_loader():
        x = torch.stack(batch[0]) if isinstance(batch[0], list) else batch[0]
        model(x.reshape(-1, FEATURES)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    watched.monitor.finish_run()
    assert not watched.failures
    found = [one for one in judge_watch(watched, tmp_path) if one.code == "TD-D015"]
    assert [one.code for one in found] == codes
    assert [one.severity for one in found] == ["info"] * len(codes)
    assert len(list_observations(watched, "dataloader", "ROWS")) == len(codes)
