"""The flag AUGMENTATION: what each transform of a pipeline does, in this process and in forked workers."""

import functools
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from tdbg.core.events import Observation
from tdbg.probes.augmentation.transforms import Meter, find_pipelines, name_of, steps_of, take_glimpse
from tdbg.probes.augmentation.worker_pipe import LIMIT, WorkerPipe
from tdbg.probes.dataloader import feeds
from tdbg.runtime import tensors


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Steps take their own time here, not that of other tests' threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Compose:
    """Any object that calls what stands in its ``transforms``."""

    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class Normalize:
    def __init__(self, mean: float = 0.5, std: float = 0.25) -> None:
        self.mean, self.std = mean, std

    def __call__(self, image: Tensor) -> Tensor:
        return (image - self.mean) / self.std


class Still:
    """Changes nothing, whatever the probability it says it has."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, image: Tensor) -> Tensor:
        return image


class ByItsMaximum:
    """NaN for an image that is zero all over."""

    def __call__(self, image: Tensor) -> Tensor:
        return image / image.max()


class Slow:
    """Takes its time: 30 ms, or ``factor`` times as long as all else did since it was called last."""

    def __init__(self, factor: float = 0.0) -> None:
        self.factor, self.ended_s = factor, 0.0

    def __call__(self, image: Tensor) -> Tensor:
        time.sleep(max(0.03, self.factor * (time.perf_counter() - self.ended_s) if self.ended_s else 0.0))
        image = image + 0.01
        self.ended_s = time.perf_counter()
        return image


def to_float(image: Tensor) -> Tensor:
    return image.float() / 255


class Images(Dataset):
    def __init__(self, transform: Any, samples: int = 64, black: int = -1) -> None:
        self.transform, self.samples, self.black = transform, samples, black

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        image = torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8, generator=generator)
        if index == self.black:
            image = torch.zeros_like(image)
        return self.transform(image), index % 4


def train_model(dataset: Any, *, workers: int = 0, epochs: int = 1, batch_size: int = 4, **options: Any) -> None:
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(4))
    optimizer: Any = None
    for _ in range(epochs):
        for images, labels in DataLoader(dataset, batch_size=batch_size, num_workers=workers, **options):
            loss = nn.functional.cross_entropy(net(images.float()), labels)
            optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=1e-4)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def list_observations(watched: Any, part: str) -> list[Observation]:
    found = [event for event in watched.events if isinstance(event, Observation) and event.probe == "augmentation"]
    return [event for event in found if event.part == part]


def list_complaints(watched: Any) -> list[str]:
    return [event.part for part in ("NAN", "RANGE", "NOEFFECT", "SLOW") for event in list_observations(watched, part)]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_step_is_measured_before_and_after(start_watch: Any, workers: int) -> None:
    watched = start_watch(flags={"AUGMENTATION": True})
    train_model(Images(Compose([to_float, Normalize(), Still(0.5)])), workers=workers)
    line = list_observations(watched, "PIPELINE")[-1].values
    assert line["steps"] == ["to_float", "Normalize", "Still"] and line["order"] == [0, 1, 2]
    assert line["where"] == ("workers" if workers else "process") and line["samples"] >= 8
    assert line["low_in"][0] == 0 and line["high_in"][0] == 255
    assert line["high_out"][:2] == [1.0, 2.0] and line["low_out"][:2] == [0.0, -2.0]
    assert line["dtypes"][0] == "uint8 -> float32" and line["devices"] == ["cpu"] * 3
    assert line["changed"] == [1.0, 1.0, 0.0] and line["chance"] == [None, None, 0.5]
    assert all(0 < found < 5 for found in line["step_ms"]) and line["fetch_ms"] > sum(line["step_ms"])
    assert list_complaints(watched) == [] and watched.notes.count("abstains-augmentation") == 0


def test_workers_write_no_file(start_watch: Any, tmp_path: Any, monkeypatch: Any) -> None:
    watched = start_watch(flags={"AUGMENTATION": True})
    monkeypatch.chdir(tmp_path)
    train_model(Images(Compose([to_float, Normalize()])), workers=2)
    assert list_observations(watched, "PIPELINE") and list(tmp_path.iterdir()) == []


def test_the_program_gets_the_same_images_and_keeps_its_objects(start_watch: Any) -> None:
    steps = [to_float, Normalize(), functools.partial(torch.mul, other=2.0), lambda image: image + torch.rand(())]
    compose = Compose(steps)

    def images() -> list[Tensor]:
        torch.manual_seed(1)
        return [batch for batch, _ in DataLoader(Images(compose), batch_size=4)]

    bare = images()
    call = Compose.__call__, Normalize.__call__
    watched = start_watch(flags={"AUGMENTATION": True})
    found = images()
    assert all(torch.equal(one, other) for one, other in zip(bare, found, strict=True))
    assert compose.transforms is steps and (Compose.__call__, Normalize.__call__) == call
    names = next(iter(watched.monitor.find_probe("augmentation")._tallies.values())).names
    assert names[2] == "partial(mul)" and names[3].startswith("lambda at line ")


def test_normalising_twice(start_watch: Any) -> None:
    watched = start_watch(flags={"AUGMENTATION": True})
    twice = Normalize()
    train_model(Images(Compose([to_float, twice, twice])))
    (line,) = list_observations(watched, "RANGE")
    assert line.values["problem"] == "normalised-twice" and line.values["order"] == [2]


def test_normalising_what_was_not_scaled(start_watch: Any) -> None:
    watched = start_watch(flags={"AUGMENTATION": True})
    train_model(Images(Compose([lambda image: image.float(), Normalize(0.45, 0.25)])))
    assert [line.values["problem"] for line in list_observations(watched, "RANGE")] == ["not-scaled"]


@pytest.mark.parametrize("steps", [[to_float, to_float], [to_float, lambda image: image / 255]])
def test_scaling_twice(start_watch: Any, steps: Any) -> None:
    watched = start_watch(flags={"AUGMENTATION": True})
    train_model(Images(Compose(steps)))
    assert [line.values["problem"] for line in list_observations(watched, "RANGE")] == ["scaled-twice"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_step_that_makes_nan(start_watch: Any, workers: int) -> None:
    watched = start_watch(flags={"AUGMENTATION": True})
    train_model(Images(Compose([to_float, ByItsMaximum(), Still(1.0)]), black=4), workers=workers)
    (line,) = list_observations(watched, "NAN")
    assert line.values["step_name"] == "ByItsMaximum" and line.values["count"] == 1


def test_nan_from_the_start_accuses_no_step(start_watch: Any) -> None:
    class Holes(Images):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            image = torch.rand(3, 16, 16)
            image[0, 0, 0] = float("nan")
            return self.transform(image), index % 4

    watched = start_watch(flags={"AUGMENTATION": True})
    train_model(Holes(Compose([Normalize(), Still(0.5)])))
    assert list_observations(watched, "PIPELINE")[-1].values["samples"] >= 8 and list_complaints(watched) == []


@pytest.mark.parametrize(("chance", "epochs", "expected"), [(1.0, 4, ["NOEFFECT"]), (0.2, 4, []), (0.0, 4, [])])
def test_a_step_without_effect(start_watch: Any, chance: float, epochs: int, expected: list[str]) -> None:
    watched = start_watch(flags={"AUGMENTATION": True}, max_overhead=100)
    train_model(Images(Compose([to_float, Still(chance)])), epochs=epochs)
    assert list_complaints(watched) == expected


def test_a_step_that_takes_most_of_the_fetch_matters_where_the_program_waits(
    start_watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LEAST_BATCHES", 20)
    for slow, step_factor, expected in ((Slow(6), 0, ["SLOW"]), (Slow(), 3, [])):
        watched = start_watch(flags={"AUGMENTATION": True})
        net = nn.Linear(768, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        asked_s = time.perf_counter()
        for images, labels in DataLoader(Images(Compose([to_float, slow]), samples=32), batch_size=1):
            fetch_s = time.perf_counter() - asked_s
            nn.functional.cross_entropy(net(images.flatten(1)), labels).backward()
            optimizer.step()
            time.sleep(step_factor * fetch_s)
            asked_s = time.perf_counter()
        assert list_complaints(watched) == expected
        watched.monitor.detach()
        if expected:
            line = list_observations(watched, "SLOW")[0].values
            assert line["slow"] == "Slow" and line["slow_share"] > 0.8 and line["slow_ms"] > 25


def test_a_dataset_without_transforms_is_told_as_such(start_watch: Any) -> None:
    watched = start_watch(flags={"AUGMENTATION": True})
    train_model(Images(to_float))
    assert watched.notes.count("abstains-augmentation") == 1 and list_observations(watched, "PIPELINE") == []


def test_spawned_workers_are_told_as_such(start_watch: Any) -> None:
    watched = start_watch(flags={"AUGMENTATION": True})
    probe = watched.monitor.find_probe("augmentation")
    loader = DataLoader(Images(Compose([to_float])), num_workers=1, batch_size=4)
    fake = type("Iter", (), {"_workers": [type("Process", (), {"_start_method": "spawn"})()]})()
    probe._workers_begin((fake, loader), {})
    probe._workers_began(0.0, (fake, loader), {}, None)
    assert "abstains-augmentation" in watched.notes


def test_a_transform_that_raises_is_the_programs_own_affair(start_watch: Any) -> None:
    watched = start_watch(flags={"AUGMENTATION": True})

    def fails(image: Tensor) -> Tensor:
        raise RuntimeError("no")

    compose = Compose([to_float, fails])
    with pytest.raises(RuntimeError, match="no"):
        train_model(Images(compose))
    assert compose.transforms[0] is to_float and compose.transforms[1] is fails
    assert not watched.monitor.find_probe("augmentation")._meter.is_armed


@pytest.mark.parametrize("workers", [0, 1])
def test_the_budget_limits_the_fetches_measured(start_watch: Any, workers: int) -> None:
    watched = start_watch(flags={"AUGMENTATION": True}, max_overhead=0.001)
    train_model(Images(Compose([to_float, Normalize()]), samples=400), workers=workers)
    assert next(iter(watched.monitor.find_probe("augmentation")._tallies.values())).samples == 16


@pytest.mark.parametrize("far", [False, True], ids=["host", "accelerator"])
def test_a_pipeline_of_a_library_called_by_the_loop(start_watch: Any, monkeypatch: Any, far: bool) -> None:
    class Jitter(nn.Module):
        def forward(self, image: Tensor) -> Tensor:
            return image * 1.5

    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Jitter(), Jitter()

        def forward(self, image: Tensor) -> Tensor:
            return self.second(self.first(image))

    if far:
        monkeypatch.setattr(tensors, "on_host", lambda tensor: False)
    for cls in (Jitter, Sequence):
        monkeypatch.setattr(cls, "__module__", "kornia.augmentation.container")
    monkeypatch.setitem(__import__("sys").modules, "kornia.augmentation", object())
    watched = start_watch(flags={"AUGMENTATION": True})
    augment, net = Sequence(), nn.Sequential(nn.Flatten(), nn.Linear(768, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(4):
        net(augment(torch.rand(2, 3, 16, 16))).sum().backward()
        optimizer.step()
    watched.monitor.finish_run()
    (tally,) = watched.monitor.find_probe("augmentation")._tallies.values()
    assert tally.names == ["Jitter", "Jitter"] and tally.order == [0, 1] and tally.samples == 4
    assert 1 < tally.steps[0].high_out < 1.5 < tally.steps[1].high_out < 2.25
    assert list_observations(watched, "PIPELINE")[-1].values["where"] == "loop"


# albumentations


@pytest.fixture
def albumentations_module(monkeypatch: Any) -> Any:
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")
    return pytest.importorskip("albumentations")


class Pictures(Dataset):
    """Arrays of height, width, channel, as albumentations has them."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        import numpy

        image = numpy.random.default_rng(index).integers(0, 256, (24, 24, 3), dtype=numpy.uint8)
        return torch.from_numpy(self.transform(image=image)["image"].copy()), index % 4


@pytest.mark.parametrize("workers", [0, 1])
def test_albumentations(start_watch: Any, albumentations_module: Any, workers: int) -> None:
    a = albumentations_module
    transform = a.Compose(
        [
            a.RandomCrop(16, 16),
            a.HorizontalFlip(p=0.5),
            a.OneOf([a.GaussianBlur(p=1.0), a.MedianBlur(p=1.0)], p=1.0),
            a.Normalize(),
        ]
    )
    watched = start_watch(flags={"AUGMENTATION": True})
    train_model(Pictures(transform), workers=workers)
    line = list_observations(watched, "PIPELINE")[-1].values
    assert line["steps"] == ["RandomCrop", "HorizontalFlip", "OneOf", "Normalize"]
    assert line["chance"] == [1.0, 0.5, 1.0, 1.0] and line["changed"][3] == 1.0
    assert line["dtypes"] == ["uint8 -> uint8"] * 3 + ["uint8 -> float32"]
    assert line["high_in"][0] > 200 and line["low_out"][3] < -1 and line["high_out"][3] < 3
    assert list_complaints(watched) == []


def test_albumentations_gives_the_same_images_with_and_without(start_watch: Any, albumentations_module: Any) -> None:
    a = albumentations_module

    def images() -> list[Tensor]:
        transform = a.Compose([a.RandomCrop(16, 16), a.HorizontalFlip(p=0.5), a.Normalize()], seed=7)
        return [batch for batch, _ in DataLoader(Pictures(transform), batch_size=4)]

    bare = images()
    start_watch(flags={"AUGMENTATION": True})
    assert all(torch.equal(one, other) for one, other in zip(bare, images(), strict=True))


def test_albumentations_scaled_twice(start_watch: Any, albumentations_module: Any) -> None:
    a = albumentations_module
    watched = start_watch(flags={"AUGMENTATION": True})
    train_model(Pictures(a.Compose([a.ToFloat(max_value=255), a.Normalize()])))
    (line,) = list_observations(watched, "RANGE")
    assert line.values["problem"] == "scaled-twice" and line.values["step_name"] == "Normalize"


def test_albumentations_normalised_twice(start_watch: Any, albumentations_module: Any) -> None:
    a = albumentations_module
    watched = start_watch(flags={"AUGMENTATION": True})
    train_model(Pictures(a.Compose([a.Normalize(), a.Normalize(max_pixel_value=1.0)])))
    (line,) = list_observations(watched, "RANGE")
    assert line.values["problem"] == "normalised-twice"


# finding pipelines

AT_HAND = Compose([to_float])


class UsesGlobal(Dataset):
    def __getitem__(self, index: int) -> Any:
        return AT_HAND(index)


def test_pipelines_are_found_where_programs_keep_them() -> None:
    compose = Compose([to_float, Normalize()])

    def collate(samples: Any) -> Any:
        return [compose(sample) for sample in samples]

    holds = Images(compose)
    for place in (holds, Subset(holds, [0]), collate, functools.partial(collate), [holds], {"a": compose}):
        assert [one.owner for one in find_pipelines(place)] == [compose]
    assert [one.owner for one in find_pipelines(UsesGlobal())] == [AT_HAND]
    assert find_pipelines(Images(to_float)) == [] and find_pipelines(None, 3, "x") == []


def test_what_counts_as_a_pipeline() -> None:
    assert len(steps_of(nn.Sequential(nn.Flatten(), nn.ReLU()))) == 2
    assert steps_of(nn.Sequential(nn.Linear(2, 2))) == [], "a model is no pipeline"
    assert steps_of(Compose([])) == [] and steps_of(Compose([1, 2])) == [] and steps_of(Compose) == []
    holder = type("Holder", (), {"transforms": [to_float]})()
    assert steps_of(holder) == [], "what cannot be called calls nothing"
    assert name_of(Normalize()) == "Normalize" and name_of(to_float) == "to_float"


def test_a_meter_leaves_other_threads_alone() -> None:
    import threading

    compose = Compose([to_float])
    meter = Meter(lambda error: pytest.fail(str(error)))
    meter.arm(find_pipelines(compose), samples=2)
    other = threading.Thread(target=compose, args=(torch.zeros(4),))
    other.start()
    other.join()
    compose(torch.zeros(4))
    assert len(meter.disarm()) == 1


def test_glimpses_of_arrays_and_pictures() -> None:
    numpy = pytest.importorskip("numpy")
    image = numpy.arange(3000, dtype=numpy.float32).reshape(10, 100, 3)
    flipped = take_glimpse({"image": image[:, ::-1], "mask": image})
    assert flipped is not None and flipped.low is not None and flipped.finite and flipped.shape == (10, 100, 3)
    image[5, 5, 1] = numpy.nan
    image.flags.writeable = False
    seen_bad = take_glimpse((image, 3))
    assert seen_bad is not None and seen_bad.finite is False
    pil = pytest.importorskip("PIL.Image")
    picture = pil.new("RGB", (8, 8), (10, 20, 30))
    found = take_glimpse(picture)
    assert found is not None and (found.low, found.high, found.kind) == (10.0, 30.0, "RGB")
    assert take_glimpse("no image") is None


# the pipe


def test_messages_of_a_forked_child_arrive_and_a_full_pipe_loses_them() -> None:
    pipe = WorkerPipe()
    pipe.open_pipe()
    child = os.fork()
    if child == 0:
        pipe.forked()
        kept = [pipe.send_message({"n": n, "text": "x" * 500}) for n in range(1000)]
        os._exit(0 if all(kept) else 1)
    assert os.waitpid(child, 0)[1] == 0, "nobody waited, nobody failed"
    numbers = []
    while found := pipe.receive_messages():
        numbers += [message["n"] for message in found]
    assert numbers == list(range(len(numbers))) and 20 < len(numbers) < 1000
    assert pipe.send_message({"text": "x" * LIMIT}) and pipe.receive_messages() == [], "too long for one piece"
    pipe.close()
    assert not pipe.send_message({}) and not pipe.is_open


def test_a_child_learns_that_the_parent_no_longer_reads() -> None:
    pipe, back = WorkerPipe(), WorkerPipe()
    pipe.open_pipe()
    back.open_pipe()
    child = os.fork()
    if child == 0:
        pipe.forked()
        until = time.time() + 10
        while pipe.send_message({"n": 1}) and time.time() < until:
            time.sleep(0.01)
        os._exit(7 if time.time() < until else 1)
    pipe.close()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    back.close()


def test_a_child_with_workers_of_its_own_gets_a_pipe_of_its_own() -> None:
    pipe = WorkerPipe()
    pipe.open_pipe()
    end = pipe._write
    pipe.forked()
    pipe.open_pipe()
    assert pipe._read >= 0 and pipe.send_message({"n": 1}) and pipe.receive_messages() == [{"n": 1}]
    assert end >= 0
    pipe.close()
