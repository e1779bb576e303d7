"""The flag DATALOADER: batches, waits, passes, labels, samplers and failing workers of real loaders."""

import math
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler

from tdbg.core.config import BUDGET_PCT
from tdbg.core.events import NonFinite, Observation
from tdbg.core.guard import Guard
from tdbg.probes import dataloader
from tdbg.probes.dataloader import batch_contents, feeds, fetch_lines
from tdbg.probes.dataloader.feeds import Feeds, Waits, parse_loader_error
from tdbg.runtime import stack_sampler, tensors

FEATURES = 48


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Steps take their own time here, not that of other tests' threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Numbers(Dataset):
    """Samples that tell their index; ``broken`` indices hold NaN, or raise."""

    def __init__(self, samples: int = 64, *, nan: int = -1, raises: int = -1, pause_s: float = 0.0) -> None:
        self.samples, self.nan, self.raises, self.pause_s = samples, nan, raises, pause_s

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == self.raises:
            raise ValueError(f"cannot read sample {index}")
        time.sleep(self.pause_s)
        generator = torch.Generator().manual_seed(index)
        x_F = torch.randn(FEATURES, generator=generator)
        if index == self.nan:
            x_F[3] = float("nan")
        return x_F, index % 4


def make_model(width: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, width)


def train_model(net: nn.Module, loader: Any, epochs: int = 1, set_epoch: Any = None) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for epoch in range(epochs):
        if set_epoch is not None:
            set_epoch(epoch)
        for x_BF, y_B in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x_BF), y_B).backward()
            optimizer.step()


def list_observations(watched: Any, part: str) -> list[Observation]:
    """The observations of one part of the probe."""
    found = [event for event in watched.events if isinstance(event, Observation) and event.probe == "dataloader"]
    return [event for event in found if event.part == part]


WRONG = ("WAIT", "START", "REPEAT", "CONSTANT", "NONFINITE", "LABELS", "SAMPLER", "ERROR")


def list_complaints(watched: Any) -> list[str]:
    return [event.part for part in WRONG for event in list_observations(watched, part)]


def test_a_healthy_loader_is_described_and_not_complained_of(start_watch: Any) -> None:
    watched = start_watch(flags={"DATALOADER": True})
    whole = Numbers(64)
    training, validation = random_split(whole, [48, 16], torch.Generator().manual_seed(0))
    net = make_model()
    for _ in range(2):
        train_model(net, DataLoader(training, batch_size=8, shuffle=True))
        with torch.no_grad():
            for x_BF, _ in DataLoader(validation, batch_size=8):
                net(x_BF)
    lines = list_observations(watched, "LOADER")
    assert [line.values["length"] for line in lines] == [48, 16]
    assert lines[1].values["split"] == [48, 16] and lines[1].values["subset_of"] == 64
    assert lines[0].values["samplers"] == ["BatchSampler", "RandomSampler"] and lines[0].values["batches"] == 6
    first = list_observations(watched, "BATCH")[0].values
    assert first["names"] == ["0", "1"] and first["kinds"] == [f"float32[8, {FEATURES}]", "int64[8]"]
    assert first["low"][1] >= 0 and first["high"][1] <= 3 and len(first["indices"]) == 8
    ends = list_observations(watched, "EPOCH")
    assert [(end.values["dataset"], end.values["passes"]) for end in ends] == [
        ("Subset of Numbers (48)", 1),
        ("Subset of Numbers (16)", 1),
        ("Subset of Numbers (48)", 2),
        ("Subset of Numbers (16)", 2),
    ]
    assert ends[0].values["label_low"] == 0 and ends[0].values["label_high"] == 3 and ends[0].values["classes"] == 4
    assert list_complaints(watched) == []


def test_indices_are_those_of_the_batch_with_workers_too(start_watch: Any) -> None:
    watched = start_watch(flags={"DATALOADER": True})
    train_model(make_model(), DataLoader(Numbers(64), batch_size=8, num_workers=2))
    told = [event.values["indices"] for event in list_observations(watched, "BATCH")]
    assert told[:4] == [list(range(8 * n, 8 * n + 8)) for n in range(4)]
    assert list_observations(watched, "BATCH")[0].values["in_order"] == 1.0
    line = list_observations(watched, "LOADER")[0].values
    assert (line["workers"], line["prefetch"], line["start_method"]) == (2, 2, "fork")
    assert list_complaints(watched) == []


class Normed(nn.Module):
    """NaN for a sample of zeros."""

    def __init__(self, mix: bool = False) -> None:
        super().__init__()
        self.mix, self.head = mix, make_model()

    def forward(self, x_BF: torch.Tensor) -> torch.Tensor:
        if self.mix:
            x_BF = x_BF.flip(0)
        return self.head(x_BF / x_BF.norm(dim=1, keepdim=True))


class WithZeros(Numbers):
    """One sample is all zero."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        x_F, label = super().__getitem__(index)
        return (x_F * 0 if index == 21 else x_F), label


def find_nonfinite(watched: Any) -> NonFinite:
    return next(event for event in watched.events if isinstance(event, NonFinite))


# Without the flag the sampler is asked, once there is a fault.
HOW_SAMPLES_ARE_FOUND = pytest.mark.parametrize("flags", [{"DATALOADER": True}, {}], ids=["recorded", "read"])


@pytest.mark.parametrize("workers", [0, 2])
@HOW_SAMPLES_ARE_FOUND
def test_a_sample_whose_output_is_not_finite_is_named(start_watch: Any, workers: int, flags: dict[str, bool]) -> None:
    """Whatever workers have fetched ahead."""
    watched = start_watch(flags=flags)
    train_model(Normed(), DataLoader(WithZeros(64), batch_size=8, num_workers=workers))
    seen = find_nonfinite(watched)
    assert (seen.step, seen.rows, seen.dataset, seen.samples) == (3, [5], "WithZeros", [21])


class Root(nn.Module):
    """The length of each row: its derivative is NaN at 0."""

    def forward(self, x_BF: torch.Tensor) -> torch.Tensor:
        return x_BF.square().sum(1, keepdim=True).sqrt() * torch.ones_like(x_BF)


class Rooted(nn.Module):
    """Its gradient is NaN for a sample of zeros, and its output is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.root, self.head = nn.Linear(FEATURES, FEATURES, bias=False), Root(), make_model()

    def forward(self, x_BF: torch.Tensor) -> torch.Tensor:
        return self.head(self.root(self.first(x_BF)))


@HOW_SAMPLES_ARE_FOUND
def test_a_sample_whose_gradient_is_not_finite_is_named(start_watch: Any, flags: dict[str, bool]) -> None:
    watched = start_watch(flags=flags)
    train_model(Rooted(), DataLoader(WithZeros(64), batch_size=8))
    seen = find_nonfinite(watched)
    assert (seen.phase, seen.step, seen.rows, seen.samples) == ("backward", 3, [5], [21])


@HOW_SAMPLES_ARE_FOUND
def test_no_sample_is_named_where_the_rows_are_in_another_order(start_watch: Any, flags: dict[str, bool]) -> None:
    watched = start_watch(flags=flags)
    train_model(Normed(mix=True), DataLoader(WithZeros(64), batch_size=8))
    seen = find_nonfinite(watched)
    assert seen.rows == [2] and seen.samples == []


@HOW_SAMPLES_ARE_FOUND
def test_no_sample_is_named_where_the_program_is_a_batch_ahead(start_watch: Any, flags: dict[str, bool]) -> None:
    watched = start_watch(flags=flags)
    ahead = list(DataLoader(WithZeros(64), batch_size=8))
    train_model(Normed(), ahead)
    seen = find_nonfinite(watched)
    assert seen.rows == [5] and seen.samples == []


def test_indices_of_batches_that_workers_had_been_asked_for_are_unknown() -> None:
    """The probe came while batches were under way: the indices it saw first belong to a later batch."""
    feeds, loader_iter = Feeds(), iter(DataLoader(Numbers(64), batch_size=8, num_workers=2))
    next(loader_iter)
    seen: list[tuple[list[int], list[int]]] = []
    asked = loader_iter._next_index

    def record() -> Any:
        indices = asked()
        feeds.record_indices(loader_iter, indices)
        return indices

    loader_iter._next_index = record
    for _, labels in loader_iter:
        seen.append((feeds.pop_indices(loader_iter), labels.tolist()))
    del loader_iter._next_index  # no cycle may keep the workers until the collector runs
    known = [number for number, (indices, _) in enumerate(seen) if indices]
    assert known == [4, 5, 6]  # the first one, and two for each worker, had been asked for
    assert all(seen[number][0] == list(range(8 * (number + 1), 8 * (number + 2))) for number in known)


def test_nan_in_the_data_names_the_sample(start_watch: Any) -> None:
    watched = start_watch(flags={"DATALOADER": True})
    train_model(make_model(), DataLoader(Numbers(nan=21), batch_size=8))
    (line,) = list_observations(watched, "NONFINITE")
    assert line.step == 3 and line.values["indices"] == [21] and line.values["rows"] == [5]
    assert line.values["batch"] == 3 and line.values["kind"] == "nan" and line.values["loss_finite"] is False


def test_nan_in_a_batch_between_samples_is_found_when_the_loss_shows_it(
    start_watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUDGET_PCT, "basic", 1e-3)  # of one percent a machine that pauses pays for all looks
    watched = start_watch(flags={"DATALOADER": True}, max_overhead=None)
    watched.monitor.budget.allowance_s = math.inf  # which pays for the check of each loss
    train_model(make_model(), DataLoader(Numbers(256, nan=250), batch_size=8))
    assert len(list_observations(watched, "BATCH")) < 20, "most batches are not looked at"
    (line,) = list_observations(watched, "NONFINITE")
    assert line.step == 32 and line.values["indices"] == [250]


def test_nan_that_the_program_masks_is_its_own_business(start_watch: Any) -> None:
    watched = start_watch(flags={"DATALOADER": True})
    net = make_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for x_BF, y_B in DataLoader(Numbers(nan=21), batch_size=8):
        nn.functional.cross_entropy(net(x_BF.nan_to_num()), y_B).backward()
        optimizer.step()
    assert list_complaints(watched) == []


@pytest.mark.parametrize("kind", ["zeros", "one sample"])
def test_constant_batches(start_watch: Any, kind: str) -> None:
    watched = start_watch(flags={"DATALOADER": True})
    x_NF = torch.zeros(48, FEATURES) if kind == "zeros" else torch.randn(1, FEATURES).expand(48, FEATURES)
    train_model(make_model(), DataLoader(TensorDataset(x_NF, torch.arange(48) % 4), batch_size=8))
    (line,) = list_observations(watched, "CONSTANT")
    assert line.values["count"] == 3 and line.values["tensor"] == "0"
    assert bool(line.values["constant"]) == (kind == "zeros")


def test_constant_masks_beside_real_inputs_are_fine(start_watch: Any) -> None:
    watched = start_watch(flags={"DATALOADER": True})
    dataset = [{"x": torch.randn(8), "attention_mask": torch.ones(64), "label": 1} for _ in range(32)]
    net = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for batch in DataLoader(dataset, batch_size=4):  # type: ignore[arg-type]
        nn.functional.cross_entropy(net(batch["x"]), batch["label"]).backward()
        optimizer.step()
    assert list_complaints(watched) == []


ZEROS, ONES = torch.zeros(8, 1, 6, 6), torch.ones(8, 1, 6, 6)
IMAGES, TOKENS, LABELS = torch.randn(8, 1, 6, 6), torch.arange(48).view(8, 6), torch.arange(8)
GRID = torch.linspace(0, 1, 6)[None, :, None].expand(8, 6, 1)
CONSTANT = {
    "zeros and labels": ((ZEROS, LABELS), "0"),
    "zeros and images to be made": ((ZEROS, IMAGES), "0"),
    "zeros and numbers to be told": ((ZEROS, torch.randn(8, 1)), "0"),
    "zeros and boxes": ({"image": ZEROS, "boxes": torch.randn(8, 4)}, "image"),
    "one sample over and over": ((IMAGES[:1].expand(8, -1, -1, -1), LABELS), "0"),
    "a grid alone": ((GRID, torch.randn(8, 6, 1)), "0"),
    "tokens that are all 0": ((torch.zeros(8, 6), TOKENS[:, :1]), "0"),
}
MEANT = {
    "ones behind tokens": (TOKENS, torch.ones(8, 6)),
    "ones before tokens": (torch.ones(8, 6), TOKENS),
    "ones over pairs of tokens": (TOKENS, torch.ones(8, 1, 6, 6), LABELS),
    "an added mask": (TOKENS, torch.zeros(8, 1, 6, 6), LABELS),
    "a mask over images": (IMAGES, ONES, LABELS),
    "a grid beside values": (GRID, torch.randn(8, 6, 1), torch.randn(8, 6, 1)),
    "places beside tokens": {"where": torch.arange(6).expand(8, 6), "words": TOKENS},
}


def inspect_parts(batch: Any) -> list[batch_contents.Part]:
    parts = batch_contents.parts_of(batch)
    for part in parts:
        batch_contents.measure_part(part)
    return parts


@pytest.mark.parametrize("name", CONSTANT)
def test_an_input_that_is_constant(name: str) -> None:
    batch, path = CONSTANT[name]
    found = batch_contents.constant_input(inspect_parts(batch))
    assert found is not None and found.path == path


@pytest.mark.parametrize("name", MEANT)
def test_what_is_constant_beside_an_input(name: str) -> None:
    assert batch_contents.constant_input(inspect_parts(MEANT[name])) is None


class Deaf(Numbers):
    """Ignores every index but the parity of it."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return super().__getitem__(index % 8)


def test_batches_that_come_again_in_a_pass(start_watch: Any) -> None:
    watched = start_watch(flags={"DATALOADER": True})
    train_model(make_model(), DataLoader(Deaf(), batch_size=8))
    (line,) = list_observations(watched, "REPEAT")
    assert (line.values["first"], line.values["batch"], line.values["repeats"]) == (1, 4, 3)


def test_drawing_with_replacement_may_repeat(start_watch: Any) -> None:
    watched = start_watch(flags={"DATALOADER": True})
    data = Numbers(2)
    train_model(
        make_model(), DataLoader(data, batch_size=1, sampler=RandomSampler(data, replacement=True, num_samples=40))
    )
    assert len(list_observations(watched, "BATCH")) >= 8 and "REPEAT" not in list_complaints(watched)


def test_small_batches_may_be_equal_by_chance(start_watch: Any) -> None:
    watched = start_watch(flags={"DATALOADER": True})
    x_NF = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]).repeat(16, 1)
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x_BF, y_B in DataLoader(TensorDataset(x_NF, x_NF[:, 0].long()), batch_size=4):
        nn.functional.cross_entropy(net(x_BF), y_B).backward()
        optimizer.step()
    assert "REPEAT" not in list_complaints(watched)


class Stream(IterableDataset):
    """The same numbers in every worker, over and over if asked."""

    def __init__(self, times: int = 1) -> None:
        self.times = times

    def __iter__(self) -> Any:
        for _ in range(self.times):
            yield from (Numbers()[index] for index in range(64))


@pytest.mark.parametrize(("workers", "times", "expected"), [(2, 1, ["REPEAT"]), (1, 2, []), (0, 2, [])])
def test_workers_that_read_the_same_stream(start_watch: Any, workers: int, times: int, expected: list[str]) -> None:
    watched = start_watch(flags={"DATALOADER": True})
    train_model(make_model(), DataLoader(Stream(times), batch_size=8, num_workers=workers))
    assert list_complaints(watched) == expected


def test_labels_beyond_the_model_are_told_before_the_loss_fails(start_watch: Any) -> None:
    watched = start_watch(flags={"DATALOADER": True})
    with pytest.raises(IndexError):
        train_model(make_model(width=3), DataLoader(Numbers(), batch_size=8))
    (line,) = list_observations(watched, "LABELS")
    assert line.values["label_high"] == 3 and line.values["width"] == 3
    assert line.values["rows"] == [3, 7] and line.values["indices"] == [3, 7]


def test_labels_in_range_and_ignored_ones_are_fine(start_watch: Any) -> None:
    watched = start_watch(flags={"DATALOADER": True})
    y_N = torch.arange(48) % 4
    y_N[::5] = -100
    train_model(make_model(), DataLoader(TensorDataset(torch.randn(48, FEATURES), y_N), batch_size=8))
    assert list_complaints(watched) == []


@pytest.mark.parametrize("called", [True, False])
def test_a_sampler_whose_epoch_is_not_set(start_watch: Any, called: bool) -> None:
    watched = start_watch(flags={"DATALOADER": True})
    data = Numbers()
    sampler = DistributedSampler(data, num_replicas=2, rank=1)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    next(iter(loader))  # a look at the data before training is no epoch
    net = make_model()
    train_model(net, loader, epochs=3, set_epoch=sampler.set_epoch if called else None)
    with torch.no_grad():
        for x_BF, _ in loader:  # nor is an evaluation on the same loader
            net(x_BF)
    found = list_observations(watched, "SAMPLER")
    assert len(found) == (0 if called else 1)
    if not called:
        assert found[0].values == {"dataset": "Numbers", "sampler_epoch": 0, "passes": 3, "before": 2}
        assert found[0].step == 6, "as soon as the second epoch has taken a step"


def test_an_evaluation_between_epochs_does_not_need_an_epoch_of_its_own(start_watch: Any) -> None:
    watched = start_watch(flags={"DATALOADER": True})
    data = Numbers()
    sampler = DistributedSampler(data, num_replicas=2, rank=0)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    net = make_model()
    for epoch in range(3):
        train_model(net, loader, set_epoch=lambda _, epoch=epoch: sampler.set_epoch(epoch))
        with torch.no_grad():
            for x_BF, _ in loader:
                net(x_BF)
    assert list_complaints(watched) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failing_sample_is_named(start_watch: Any, workers: int) -> None:
    watched = start_watch(flags={"DATALOADER": True})
    with pytest.raises(ValueError) as caught:
        train_model(make_model(), DataLoader(Numbers(raises=13), batch_size=4, num_workers=workers))
    traceback.clear_frames(caught.tb)  # else torch waits ten seconds for the workers, in some later test
    (line,) = list_observations(watched, "ERROR")
    assert line.values["error"] == "ValueError: cannot read sample 13"
    assert line.values["batch"] == 4 and line.values["indices"] == [12, 13, 14, 15]
    assert line.values["worker"] == (1 if workers else None)
    assert "test_dataloader.py:" in line.values["where"]


def test_a_failing_loader_before_the_first_step_makes_this_a_rank(start_watch: Any) -> None:
    watched = start_watch(flags={"DATALOADER": True})
    with pytest.raises(ValueError):
        next(iter(DataLoader(Numbers(raises=0), batch_size=4)))
    assert watched.claims == 1 and len(list_observations(watched, "ERROR")) == 1


class Awaited(Numbers):
    """Takes three times as long as the program did since the sample before, however busy the machine is."""

    handed_s = 0.0

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(max(0.02, 3 * (time.perf_counter() - self.handed_s) if self.handed_s else 0.0))
        sample = super().__getitem__(index)
        self.handed_s = time.perf_counter()
        return sample


def test_waiting_for_batches_needs_many_of_them(start_watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "LEAST_S", math.inf)  # fewer may take so long on a busy machine
    for samples, expected in ((49, 0), (64, 1)):
        watched = start_watch(flags={"DATALOADER": True})
        train_model(make_model(), DataLoader(Awaited(samples), batch_size=1))
        assert (len(list_observations(watched, "WAIT")) > 0) == expected
        watched.monitor.detach()
    line = list_observations(watched, "WAIT")[0].values
    assert line["share"] > 0.5 and line["median_ms"] > 5 and line["workers"] == 0 and line["count"] >= 50


class Reading(Numbers):
    """Samples that one line takes long for, in a function of its own."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.read_file()
        return super().__getitem__(index)

    def read_file(self) -> None:
        time.sleep(0.012)


READ_LINE = Reading.read_file.__code__.co_firstlineno + 1


def list_samplers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "tdbg-sampler"]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_line_that_fetching_waits_in_is_named(start_watch: Any, workers: int) -> None:
    how = "fork" if workers else None
    watched = start_watch(flags={"DATALOADER": True})
    train_model(
        make_model(), DataLoader(Reading(64), batch_size=1, num_workers=workers, multiprocessing_context=how), 2
    )
    watched.monitor.finish_run()
    lines = [event.values for event in list_observations(watched, "WAIT")]
    assert lines[-1]["run_over"] is True and lines[-1]["count"] == 126
    for line in lines:
        assert line["slow_line"].endswith(f"test_dataloader.py:{READ_LINE}") and line["slow_share"] > 0.5
        assert line["slow_function"] == "Reading.read_file" and line.get("slow_callee") is None
    assert not list_samplers()


def test_a_healthy_loader_is_not_sampled(start_watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_sampler.StackSampler, "resume", lambda sampler: pytest.fail("sampled"))
    watched = start_watch(flags={"DATALOADER": True})
    train_model(make_model(), DataLoader(Numbers(256), batch_size=2))
    watched.monitor.finish_run()
    assert list_complaints(watched) == [] and not watched.failures


def test_where_no_line_takes_a_third_nothing_is_said() -> None:
    tally = fetch_lines._Tally()
    places = [[f"train.py:{line}", "load", "", 0.1] for line in range(4)]
    tally.add_message({"samples": 40, "places": places})
    assert tally.find_slow_line() is None
    tally.add_message({"samples": 40, "places": [["train.py:2", "load", "read (lib.py)", 0.3]]})
    found = tally.find_slow_line()
    assert found is not None and (found.where, found.callee) == ("train.py:2", "read (lib.py)")
    assert found.share == pytest.approx(4 / 7)


def test_time_outside_the_program_s_own_lines_names_none() -> None:
    tally = fetch_lines._Tally()
    tally.add_message({"samples": 64, "places": [["", "", "", 0.9], ["train.py:2", "load", "", 0.1]]})
    assert tally.find_slow_line() is None


def test_an_error_of_the_sampling_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    guard = Guard("dataloader", lambda part, error: told.append(f"{part}: {error}"))
    sampler = stack_sampler.StackSampler(guard, lambda frame: (str(1 // 0),))
    sampler.resume()
    sampler._end.wait(5.0)
    sampler.stop_sampling()
    assert told == ["dataloader: integer division or modulo by zero"] and sampler.is_done and not list_samplers()


def test_the_loader_that_is_waited_for_is_named(start_watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is the one for validation, once that is a good part of the run; a try-out before says nothing."""
    monkeypatch.setattr(dataloader, "LONG_EVALUATION_S", math.inf)
    watched = start_watch(flags={"DATALOADER": True})
    net, held_out = make_model(), DataLoader(Awaited(32), batch_size=1)
    with torch.no_grad():
        for x_BF, _ in held_out:
            net(x_BF)
    assert list_complaints(watched) == []
    train_model(net, DataLoader(Numbers(16), batch_size=8))
    with torch.no_grad():
        for x_BF, _ in held_out:
            net(x_BF)
    (line,) = list_observations(watched, "WAIT")
    assert line.values["dataset"] == "Awaited" and line.values["use"] == "evaluation"
    assert 0.5 < line.values["whole_share"] <= 1.0


def test_a_program_that_only_evaluates_is_judged_at_its_end(start_watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataloader, "LONG_EVALUATION_S", math.inf)  # on a busy machine it may take so long
    watched = start_watch(flags={"DATALOADER": True})
    net = make_model()
    with torch.no_grad():
        for x_BF, _ in DataLoader(Awaited(54), batch_size=1):
            net(x_BF)
    assert list_complaints(watched) == []
    watched.monitor.finish_run()
    assert list_complaints(watched) == ["WAIT"]


def test_workers_that_start_anew_for_every_pass(start_watch: Any) -> None:
    class Slow(Numbers):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if index == 0:
                time.sleep(0.55)
            return super().__getitem__(index)

    watched = start_watch(flags={"DATALOADER": True})
    train_model(make_model(), DataLoader(Slow(64), batch_size=8, num_workers=1), epochs=4)
    (line,) = list_observations(watched, "START")
    assert line.values["starting"] > 0.5 and line.values["persistent"] is False and line.values["first_s"] > 0.5


def test_cache_counts_of_the_dataset(start_watch: Any) -> None:
    class Cached(Numbers):
        cache_hits = cache_misses = 0

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            self.cache_misses += 1
            self.cache_hits += 3
            return super().__getitem__(index)

    watched = start_watch(flags={"DATALOADER": True})
    train_model(make_model(), DataLoader(Cached(16), batch_size=8))
    end = list_observations(watched, "EPOCH")[0].values
    assert (end["cache_hits"], end["cache_misses"]) == (48, 16)


def test_an_evaluation_of_many_batches_costs_no_look_at_each(start_watch: Any) -> None:
    watched = start_watch(flags={"DATALOADER": True}, max_overhead=0.001)
    train_model(make_model(), DataLoader(Numbers(8), batch_size=8))
    probe = watched.monitor.find_probe("dataloader")
    looks = []
    probe._measure_batch = lambda *args: looks.append(args)
    with torch.no_grad():
        for _ in DataLoader(Numbers(200), batch_size=1):
            pass
    assert len(looks) <= 5


@pytest.mark.parametrize(
    ("level", "flags", "rarely"),
    [("advanced", {}, True), ("extreme", {}, True), ("advanced", {"DATALOADER": True}, False)],
)
def test_for_a_level_the_batches_of_every_other_step_are_looked_at(
    start_watch: Any, level: str, flags: dict[str, bool], rarely: bool
) -> None:
    watched = start_watch(level=level, flags=flags, max_overhead=1e5)
    net = make_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    looked = []
    probe = watched.monitor.find_probe("dataloader")
    look = probe._measure_batch
    probe._measure_batch = lambda *args: (looked.append(watched.monitor.step + 1), look(*args))
    for number, (x_BF, y_B) in enumerate(DataLoader(Numbers(20), batch_size=1)):
        nn.functional.cross_entropy(net(x_BF), y_B).backward()
        if number < 8 or number % 3 == 1:  # from the ninth step on, three batches a step
            optimizer.step()
            optimizer.zero_grad()
    every = [*range(1, 9), *(step for step in range(9, 13) for _ in range(3))]
    expected = [*range(1, 9), *(step for step in range(9, 13) for place in range(3) if step % 2 == 0 or place)]
    assert looked == (expected if rarely else every)


def test_a_level_for_some_steps_looks_at_the_batch_of_each(start_watch: Any) -> None:
    watched = start_watch(level="basic", max_overhead=1e5)
    loader = DataLoader(Numbers(40), batch_size=2)
    net = make_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for number, (x_BF, y_B) in enumerate(loader):
        nn.functional.cross_entropy(net(x_BF), y_B).backward()
        optimizer.step()
        if number == 9:
            watched.monitor.level_overrides.change_now("advanced", {}, "test", for_steps=6)
    assert [event.step for event in list_observations(watched, "BATCH")] == [11, 12, 13, 14, 15, 16]
    modules = [event.step for event in watched.events if isinstance(event, Observation) and event.probe == "forward"]
    assert modules == [11, 12, 13, 14, 15, 16]


def test_switching_the_flag_off_leaves_no_patch(start_watch: Any) -> None:
    from torch.utils.data import dataloader

    before = dataloader.DataLoader.__init__, dataloader._BaseDataLoaderIter._next_index
    watched = start_watch(flags={"DATALOADER": True})
    assert dataloader.DataLoader.__init__ is not before[0]
    watched.monitor.detach()
    assert (dataloader.DataLoader.__init__, dataloader._BaseDataLoaderIter._next_index) == before


def test_batches_and_order_are_the_same_with_and_without(start_watch: Any) -> None:
    def sum_batches() -> list[float]:
        torch.manual_seed(3)
        return [float(x_BF.sum()) for x_BF, _ in DataLoader(Numbers(), batch_size=8, shuffle=True, num_workers=1)]

    bare = sum_batches()
    watched = start_watch(flags={"DATALOADER": True})
    assert sum_batches() == bare
    assert list_observations(watched, "BATCH") == [] or watched.claims == 0  # no rank yet: nothing is written


def test_batches_on_an_accelerator_are_read_a_step_late(start_watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "on_host", lambda tensor: False)
    watched = start_watch(flags={"DATALOADER": True})
    train_model(make_model(), DataLoader(Numbers(32), batch_size=8))
    watched.monitor.finish_run()
    first = list_observations(watched, "BATCH")[0]
    assert first.values["low"] == [None, None] and first.values["kinds"][0].endswith(" on cpu")
    ranges = list_observations(watched, "RANGE")
    assert [line.step for line in ranges] == [1, 2, 3, 4]
    assert all(-5 < line.values["low"][0] < 0 < line.values["high"][0] < 5 for line in ranges)
    assert list_complaints(watched) == []


# the parts


def test_a_sample_is_spread_over_the_whole_tensor() -> None:
    x_NF = torch.arange(64 * 1024, dtype=torch.float64).reshape(64, 1024)
    for tensor in (x_NF, x_NF.T, x_NF.reshape(8, 8, 32, 32).permute(0, 2, 3, 1)):
        sample = batch_contents.sample_elements(tensor, 1024)
        assert 256 <= sample.numel() <= 1024
        assert (sample % 1024).unique().numel() >= 16, "not one column only"
        assert sample.max() > 0.9 * x_NF.max() and sample.min() < 0.1 * x_NF.max()


def test_one_bad_element_in_a_large_tensor_is_seen() -> None:
    x_BF = torch.randn(256, 512)
    x_BF[200, 7] = float("inf")
    (part,) = batch_contents.parts_of(x_BF)
    batch_contents.measure_part(part)
    assert part.bad is not None and part.bad.count == 1 and batch_contents.find_bad_rows(x_BF) == [200]
    assert part.high is not None and part.high < 10


def test_halves_whose_sum_overflows_are_finite() -> None:
    (part,) = batch_contents.parts_of(torch.full((64, 64), 60000.0, dtype=torch.float16))
    batch_contents.measure_part(part)
    assert part.bad is None and part.constant


def test_fingerprints_tell_content_apart() -> None:
    prints = batch_contents.Prints()
    x_BF = torch.randn(64, 1000)
    moved = x_BF.clone()
    moved[1, 1] += 1e-3
    one = prints.compute_fingerprint(batch_contents.parts_of(x_BF[:4]))
    assert one == prints.compute_fingerprint(batch_contents.parts_of(x_BF[:4].clone()))
    assert one != prints.compute_fingerprint(batch_contents.parts_of(moved[:4]))
    assert prints.compute_fingerprint(batch_contents.parts_of(["a", 3])) is None


@pytest.mark.parametrize(
    ("shape", "target", "width"),
    [((8, 5), (8,), 5), ((2, 5, 4, 4), (2, 4, 4), 5), ((2, 7, 11), (2, 7), 11), ((8, 5), (8, 5), None)],
)
def test_the_width_of_an_output(shape: tuple[int, ...], target: tuple[int, ...], width: int | None) -> None:
    output = {"loss": torch.zeros(()), "logits": torch.zeros(shape)}
    assert batch_contents.width_for(torch.zeros(target, dtype=torch.long), output) == width


def test_waits_are_judged_with_an_idle_device_only() -> None:
    for idle in (True, False):
        waits = Waits()
        waits.begin_pass(0.0)
        for number in range(1, 51):
            waits.add_wait(number * 0.02, 0.015, idle=idle)
        assert waits.compute_share() == pytest.approx(0.75)
        assert waits.is_starved(0.5) == idle
        assert not waits.is_starved(0.8)


@pytest.mark.parametrize(
    ("batches", "gap_s", "starved"), [(19, 1.0, False), (40, 0.02, False), (24, 0.25, True), (50, 0.02, True)]
)
def test_a_run_that_is_soon_over_is_not_starved(batches: int, gap_s: float, starved: bool) -> None:
    waits = Waits()
    waits.begin_pass(0.0)
    for number in range(1, batches + 1):
        waits.add_wait(number * gap_s, 0.75 * gap_s, idle=True)
    assert waits.is_starved(0.5) == starved


def test_what_a_wrapped_error_says() -> None:
    wrapped = (
        "Caught KeyError in DataLoader worker process 3.\nOriginal Traceback (most recent call last):\n"
        '  File "/x/fetch.py", line 52, in fetch\n    data = self.dataset[i]\n'
        '  File "/me/data.py", line 40, in __getitem__\n    raise KeyError("a.png")\nKeyError: \'a.png\'\n'
    )
    assert parse_loader_error(KeyError(wrapped)) == (3, "KeyError: 'a.png'", "/me/data.py:40")
    assert parse_loader_error(RuntimeError("DataLoader worker (pid 12) is killed by signal: Killed."))[0] is None


def test_a_dataset_that_is_made_anew_for_each_epoch_is_waited_for_as_one(start_watch: Any) -> None:
    """Seen: eight epochs of 30 batches, 94 % of the time waiting, and nothing found, as no loader had 50 batches."""
    watched = start_watch(flags={"DATALOADER": True})
    model = make_model()
    for _ in range(3):
        train_model(model, DataLoader(Numbers(24 * 8, pause_s=0.001), batch_size=8))
    (first, *_) = list_observations(watched, "WAIT")
    assert first.values["count"] == 50 and first.values["dataset"] == "Numbers"


def test_datasets_that_are_there_together_are_waited_for_apart() -> None:
    found, held = Feeds(), [Numbers(64), Numbers(64)]
    one, other = (found.find_feed(iter(DataLoader(dataset, batch_size=8))) for dataset in held)
    one.waits.count = 20
    assert other.waits.count == 0 and found.find_feed(iter(DataLoader(Numbers(32), batch_size=8))).waits.count == 0
    held.clear()
    assert found.find_feed(iter(DataLoader(Numbers(64), batch_size=4))).waits.count == 0, "set up otherwise"
