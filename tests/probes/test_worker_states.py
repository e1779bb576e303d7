"""Random generators in real DataLoader workers: which draw the same, and which only look as if they did."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tdbg.probes.augmentation.worker_pipe import WorkerPipe
from tdbg.probes.worker_states import ADDRESS_ENV, read_states
from tests.probes.judging import judge_watch, list_observations

FEATURES = 8
Draw = Callable[["Noisy", int], float]


class Noisy(Dataset[Any]):
    """Samples with a random number each."""

    def __init__(self, draw: Draw, rng: Any = None) -> None:
        self.draw, self.transform = draw, Holder(rng)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return torch.full((FEATURES,), index + self.draw(self, index)), index % 2


class Holder:
    """A transform that holds a generator."""

    def __init__(self, rng: Any) -> None:
        self.rng = rng


class Stream(IterableDataset[Any]):
    """Every worker shuffles alike, and takes its share."""

    def __init__(self) -> None:
        self.rng = random.Random(0)

    def __iter__(self) -> Iterator[Any]:
        info: Any = torch.utils.data.get_worker_info()
        order = list(range(64))
        self.rng.shuffle(order)
        return ((torch.full((FEATURES,), float(one)), one % 2) for one in order[info.id :: info.num_workers])


class StreamOfOne(IterableDataset[Any]):
    """Draws as it goes."""

    def __iter__(self) -> Iterator[Any]:
        return ((torch.full((FEATURES,), random.random()), one % 2) for one in range(64))


def run_training(
    watch: Any, data: Any, folder: Path, *, trains: bool = True, workers: int = 2, init: Any = None
) -> list[Any]:
    watched = watch(max_overhead=None)
    watched.monitor.inspection.begin_inspection(1.0)
    model = nn.Linear(FEATURES, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    how = "fork" if workers else None
    loader = DataLoader(data, batch_size=8, num_workers=workers, worker_init_fn=init, multiprocessing_context=how)
    for x, y in loader:
        if trains:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        else:
            with torch.no_grad():
                model(x)
    watched.monitor.finish_run()
    found = [one for one in judge_watch(watched, folder) if one.code == "TD-D012"]
    assert not watched.failures
    return found


def seed_alike(worker: int) -> None:
    random.seed(3)
    numpy.random.seed(3)


def seed_apart(worker: int) -> None:
    random.seed(worker)
    numpy.random.seed(worker)


def draw_own(data: Noisy, index: int) -> float:
    return float(data.transform.rng.random())


def draw_from_torch(data: Noisy, index: int) -> float:
    return float(torch.rand((), generator=data.transform.rng))


ALIKE: dict[str, tuple[Noisy, Any, str]] = {
    "numpy's generator": (Noisy(draw_own, numpy.random.default_rng(0)), None, "dataset.transform.rng"),
    "numpy's old generator": (Noisy(draw_own, numpy.random.RandomState(0)), None, "dataset.transform.rng"),
    "the standard library's": (Noisy(draw_own, random.Random(0)), None, "dataset.transform.rng"),
    "torch's": (Noisy(draw_from_torch, torch.Generator()), None, "dataset.transform.rng"),
    "seeded alike": (Noisy(lambda data, index: random.random()), seed_alike, "random"),
    "numpy seeded alike": (Noisy(lambda data, index: numpy.random.rand()), seed_alike, "numpy.random"),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_workers_that_draw_the_same_are_named(start_watch: Any, tmp_path: Path, kind: str) -> None:
    data, init, source = ALIKE[kind]
    (finding,) = run_training(start_watch, data, tmp_path, init=init)
    assert finding.title == f"workers 0, 1 of Noisy draw the same random numbers from {source}, rank 0"
    assert (finding.severity, finding.grade) == ("warning", "local")
    assert ("worker_init_fn" in finding.cause) == (init is not None)


def seeded_by_index(data: Noisy, index: int) -> float:
    data.transform.rng.seed(index)
    return draw_own(data, index)


def made_in_the_worker(data: Noisy, index: int) -> float:
    if data.transform.rng is None:
        data.transform.rng = numpy.random.default_rng(torch.initial_seed())
    return draw_own(data, index)


HEALTHY: dict[str, tuple[Any, dict[str, Any]]] = {
    "torch's own seeds": (Noisy(lambda data, index: random.random() + numpy.random.rand() + float(torch.rand(()))), {}),
    "seeded apart": (Noisy(lambda data, index: random.random()), {"init": seed_apart}),
    "seeded alike, and never used": (Noisy(lambda data, index: 0.0), {"init": seed_alike}),
    "a generator that is never used": (Noisy(lambda data, index: 0.0, random.Random(0)), {}),
    "seeded by index": (Noisy(seeded_by_index, random.Random(0)), {}),
    "made in the worker": (Noisy(made_in_the_worker), {}),
    "a stream": (Stream(), {}),
    "one worker": (Noisy(draw_own, random.Random(0)), {"workers": 1}),
    "no worker": (Noisy(draw_own, random.Random(0)), {"workers": 0}),
    "evaluation": (Noisy(draw_own, random.Random(0)), {"trains": False}),
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_variants_are_no_finding(start_watch: Any, tmp_path: Path, kind: str) -> None:
    data, options = HEALTHY[kind]
    assert run_training(start_watch, data, tmp_path, **options) == []


@pytest.fixture
def two_rank_world() -> Iterator[None]:
    """A group of two ranks in one process."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def list_drawn(watch: Any, data: Any, workers: int, *, batches: int = 3) -> list[list[Any]]:
    """The states that were told for other ranks, of a short training."""
    watched = watch(max_overhead=None)
    watched.monitor.inspection.begin_inspection(1.0)
    model = nn.Linear(FEATURES, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(data, 8, num_workers=workers, multiprocessing_context="fork" if workers else None)
    for _, (x, y) in zip(range(batches), loader, strict=False):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    watched.monitor.finish_run()
    assert not watched.failures
    return [row for one in list_observations(watched, "worker-states", "DRAWN") for row in one.values["states"]]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_what_the_first_fetch_draws_from_is_told_to_other_ranks(
    start_watch: Any, two_rank_world: None, workers: int
) -> None:
    rows = list_drawn(start_watch, Noisy(draw_own, random.Random(0)), workers, batches=6)
    assert [source for source, _, _ in rows] == ["dataset.transform.rng"] * max(workers, 1), "once of each process"
    assert all(begin != end for _, begin, end in rows)


def test_equal_seeds_give_equal_draws_and_others_do_not(start_watch: Any, two_rank_world: None) -> None:
    found = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        found.append(list_drawn(start_watch, Noisy(lambda data, index: float(torch.rand(()))), 0))
    assert [row[0] for row in found[0]] == ["torch"] and found[0] == found[1] != found[2]


QUIET: dict[str, Any] = {
    "a fetch that draws nothing": Noisy(lambda data, index: 0.0, random.Random(0)),
    "a stream": StreamOfOne(),
}


@pytest.mark.parametrize("kind", QUIET)
def test_other_ranks_are_told_nothing_of(start_watch: Any, two_rank_world: None, kind: str) -> None:
    assert list_drawn(start_watch, QUIET[kind], 0) == []


def test_one_rank_alone_tells_nobody_what_it_drew(start_watch: Any) -> None:
    assert list_drawn(start_watch, Noisy(draw_own, random.Random(0)), 0) == []


def test_a_process_that_was_not_forked_finds_the_pipe_by_its_address(tmp_path: Path) -> None:
    pipe, other = WorkerPipe(), WorkerPipe()
    pipe.open_pipe()
    with (tmp_path / "file").open("w") as file:
        for wrong in ("", "1:2", "a:b:c", f"{pipe.address}0", f"0:{pipe.address}", _address_of(file.fileno())):
            other.open_address(wrong)
            assert not other.is_open, wrong
    other.open_address(pipe.address)
    assert other.is_open and other.send_message({"worker": 1})
    assert pipe.receive_messages() == [{"worker": 1}]
    pipe.close()
    assert not other.send_message({"worker": 1}), "nobody reads any more"
    other.close()


def _address_of(end: int) -> str:
    return f"{os.getpid()}:{end}:{os.fstat(end).st_ino}"


class Unsendable(Noisy):
    """A dataset that cannot be sent to a spawned worker."""

    seen: ClassVar[list[bool]] = []

    def __reduce__(self) -> Any:
        self.seen.append(ADDRESS_ENV in os.environ)
        raise RuntimeError("stays here")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the loader, half made
def test_workers_that_cannot_be_spawned_leave_the_environment_as_it_was(start_watch: Any) -> None:
    watched = start_watch(max_overhead=None)
    watched.monitor.inspection.begin_inspection(1.0)
    data = Unsendable(draw_own, random.Random(0))
    with pytest.raises(RuntimeError, match="stays here"):
        next(iter(DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context="spawn")))
    assert data.seen == [True] and ADDRESS_ENV not in os.environ
    assert not watched.failures


def test_reading_states_draws_nothing() -> None:
    data = Noisy(draw_own, numpy.random.default_rng(0))
    data.transform.more = [torch.Generator(), numpy.random.RandomState(1), random.Random(2), random, numpy.random]  # type: ignore[attr-defined]
    assert read_states(data) == read_states(data)
    assert {"random", "torch", "numpy.random", "dataset.transform.rng", "dataset.transform.more[0]"} <= set(
        read_states(data)
    )
    assert not any("mtrand" in source or "_rand" in source for source in read_states(data))


class Selfish:
    """An object that holds itself, and raises when asked for anything."""

    def __init__(self) -> None:
        self.me = self

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_odd_datasets_break_nothing() -> None:
    assert set(read_states([Selfish()])) >= {"random", "torch"}
    assert set(read_states(Selfish())) >= {"random", "torch"}
