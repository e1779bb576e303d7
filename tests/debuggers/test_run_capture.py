"""The probe of `--capture` inside the test process: passes that run beside each other."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tdbg.core.config import Settings
from tdbg.core.events import Observation
from tdbg.debuggers.pool import PATIENCE_S
from tdbg.debuggers.run_capture import Capture
from tdbg.debuggers.waiting import CROWDED, MOST
from tdbg.pages.format.page_writer import PageWriter
from tdbg.pages.read.page_set import PageSet
from tdbg.probes.catalog import CATALOG
from tests.probes.conftest import Watch


class Net(nn.Module):
    """Two layers, and whatever is to happen between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.between: Callable[[], object] = lambda: None

    def forward(self, x_NF: Tensor) -> Tensor:
        found = self.a(x_NF)
        self.between()
        return self.b(found)


@pytest.fixture
def capturing_watch(tmp_path: Path) -> Iterator[Watch]:
    found = Watch(Settings(level="basic", max_overhead=50.0, capture=["a:output", "b:output,grad"]))
    found.monitor.lasting.append(Capture.with_folder(lambda: tmp_path / "rank0000"))
    found.monitor.activate_probes([])
    yield found
    found.monitor.detach()
    assert not found.failures, found.failures


def test_a_pass_in_another_thread_does_not_end_this_one(capturing_watch: Watch, tmp_path: Path) -> None:
    net, side = Net(), Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)

    def infer() -> None:
        with torch.no_grad():
            side(torch.ones(2, 4))

    def beside() -> None:
        thread = threading.Thread(target=infer)
        thread.start()
        thread.join()

    for _ in range(3):
        net.between = beside
        loss = net(torch.ones(3, 4)).sum()
        beside()  # before the gradients have come
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        beside()  # alone: it is captured
    capturing_watch.monitor.detach()
    found = [(point.phase, list(point.tensors)) for point in PageSet.open(tmp_path) if point.phase == "train"]
    assert found == [("train", ["a:output", "b:output", "b:grad"])] * 3
    alone = [point for point in PageSet.open(tmp_path) if point.phase != "train"]
    assert [list(point.tensors) for point in alone] == [["a:output", "b:output"]] * 3
    assert [(drop.datapoints, drop.reason) for drop in PageSet.open(tmp_path).drops] == [
        (6, "beside another thread's pass")
    ]


@pytest.mark.parametrize(
    ("text", "pattern", "kinds"),
    [
        (r"re:blocks\.\d+", r"re:blocks\.\d+", ("output",)),
        (r"re:(?:a|b)\.c", r"re:(?:a|b)\.c", ("output",)),
        (r"re:(?:a|b)\.c:input,grad", r"re:(?:a|b)\.c", ("input", "grad")),
        ("re:output", "re:output", ("output",)),
        ("blocks.*:grad", "blocks.*", ("grad",)),
    ],
)
def test_specs(text: str, pattern: str, kinds: tuple[str, ...]) -> None:
    from tdbg.core.capture import Spec

    assert Spec.parse(text) == (pattern, kinds)


def test_a_budget_that_ends_behind_the_last_pass_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(level="basic", max_overhead=50.0, capture=["a:output"], capture_budget="60kB")
    watched, net = Watch(settings), Net()
    written, gate = PageWriter.add, threading.Event()

    def slow(self: PageWriter, *args: Any, **kwargs: Any) -> int:
        gate.wait(10)
        return written(self, *args, **kwargs)

    monkeypatch.setattr(PageWriter, "add", slow)
    watched.monitor.lasting.append(Capture.with_folder(lambda: tmp_path / "rank0000"))
    watched.monitor.activate_probes([])
    with torch.no_grad():
        for _ in range(3):
            net(torch.ones(2000, 4))
    gate.set()
    watched.monitor.detach()
    over = [event for event in watched.events if isinstance(event, Observation) and event.part == "OVER"]
    assert len(over) == 1 and not watched.failures


def read_values(tensor: Any) -> Any:
    return torch.frombuffer(bytearray(tensor.read()), dtype=torch.float32).reshape(tensor.shape).tolist()


def read_gradients(folder: Path) -> list[tuple[int | None, dict[str, list[float]]]]:
    """Of each datapoint its step and the gradients of b."""
    return [
        (point.step, {path: read_values(tensor) for path, tensor in point.tensors.items() if ":grad" in path})
        for point in PageSet.open(folder)
    ]


def test_two_forwards_before_one_backward_have_their_gradients_each(capturing_watch: Watch, tmp_path: Path) -> None:
    """As two views of one image have, with a pass between them that has no gradients."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(3):
        first = net(torch.ones(3, 4))
        with torch.no_grad():
            net(torch.zeros(3, 4))
        second = net(-torch.ones(3, 4))
        (2 * first.sum() + 5 * second.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    capturing_watch.monitor.detach()
    first_grad, second_grad = ({"b:grad": [[value] * 4] * 3} for value in (2.0, 5.0))
    assert [found for _, found in read_gradients(tmp_path)] == [first_grad, {}, second_grad] * 3


def test_the_gradients_of_two_optimizers_that_take_turns(capturing_watch: Watch, tmp_path: Path) -> None:
    """The generator's forward is before the update of the discriminator, its backward after it."""
    maker, judge = Net(), Net()
    of_judge, of_maker = (torch.optim.SGD(net.parameters(), 0.01) for net in (judge, maker))
    for _ in range(3):
        made = maker(torch.ones(3, 4))
        judge(made.detach()).sum().backward()
        of_judge.step()
        judge(made).sum().backward()
        of_maker.step()
    capturing_watch.monitor.detach()
    found = read_gradients(tmp_path)
    assert len(found) == 9 and all("b:grad" in values for _, values in found), found


def test_outputs_that_nobody_uses_do_not_hold_passes_up(capturing_watch: Watch, tmp_path: Path) -> None:
    """Their gradients never come: the pass is written at the update, as it is."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(20):
        net(torch.ones(3, 4))
    assert len(capturing_watch.monitor.find_probe("capture").waiting) <= MOST
    net(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    assert not capturing_watch.monitor.find_probe("capture").waiting
    capturing_watch.monitor.detach()
    assert [len(values) for _, values in read_gradients(tmp_path)] == [0] * 20 + [1]


def test_more_passes_than_can_wait_are_the_reason_that_is_given(capturing_watch: Watch) -> None:
    """As in a rollout of reinforcement learning: many forwards, one backward that reaches them all."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    outputs = [net(torch.ones(3, 4)) for _ in range(MOST + 4)]
    torch.stack(outputs).sum().backward()
    optimizer.step()
    assert capturing_watch.monitor.find_probe("capture")._skipped == {"b:grad": CROWDED}


def test_passes_that_wait_for_gradients_give_room_to_others(capturing_watch: Watch, tmp_path: Path) -> None:
    """Room is not waited for in vain where those that hold it wait themselves."""
    capture = capturing_watch.monitor.find_probe("capture")
    capture.pool.limit_bytes = 1_000_000
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    begun = time.monotonic()
    small, large = net(torch.ones(12_000, 4)), net(torch.ones(25_000, 4))
    (small.sum() + large.sum()).backward()
    optimizer.step()
    capturing_watch.monitor.detach()
    assert time.monotonic() - begun < PATIENCE_S / 2
    assert [point.tensors["b:output"].shape[0] for point in PageSet.open(tmp_path)] == [12_000, 25_000]


def test_room_for_a_new_epoch_is_made_by_the_writer_of_the_last(tmp_path: Path) -> None:
    """A pass that needs room has passes of two epochs written: the recording of the first is closed meanwhile."""
    asked = ["a:output", "b:output,grad"]
    watched = Watch(Settings(level="basic", max_overhead=50.0, capture=asked, capture_epochs="all"))
    watched.monitor.lasting.append(Capture.with_folder(lambda: tmp_path / "rank0000"))
    watched.monitor.activate_probes(CATALOG.select_probes("basic", {}))
    capture = watched.monitor.find_probe("capture")
    capture.pool.limit_bytes = 1_000_000
    net = Net()
    begun = time.monotonic()
    loader = DataLoader(torch.ones(36_000, 4), batch_size=12_000)  # there is room for two
    for _ in range(3):
        for x_NF in loader:
            net(x_NF)  # nobody uses what it puts out: its gradient is waited for
    watched.monitor.finish_run()
    watched.monitor.detach()
    assert time.monotonic() - begun < PATIENCE_S / 2
    assert not watched.failures
    assert [event.part for event in watched.events if isinstance(event, Observation) and event.part == "FAILED"] == []
    assert [point.epoch for point in PageSet.open(tmp_path)] == [0] * 3 + [1] * 3 + [2] * 3


def test_a_pass_that_is_larger_than_all_room_is_alone_in_it(capturing_watch: Watch, tmp_path: Path) -> None:
    """The first of its kind comes tensor by tensor: it does not wait for the room that it holds itself."""
    capturing_watch.monitor.find_probe("capture").pool.limit_bytes = 1_000_000
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    begun = time.monotonic()
    for _ in range(3):
        net(torch.ones(50_000, 4)).sum().backward()
        optimizer.step()
    capturing_watch.monitor.detach()
    assert time.monotonic() - begun < PATIENCE_S / 2
    assert [list(point.tensors) for point in PageSet.open(tmp_path)] == [["a:output", "b:output", "b:grad"]] * 3
    assert not PageSet.open(tmp_path).drops


def test_passes_that_wait_for_gradients_do_not_have_all_others_dropped(capturing_watch: Watch, tmp_path: Path) -> None:
    """Policy drop: the first pass that finds no room has them written, so that those after it have room again."""
    capture = capturing_watch.monitor.find_probe("capture")
    capture.pool.limit_bytes, capture.pool.policy = 1_000_000, "drop"
    net = Net()
    waiting = []
    for _ in range(3):  # of 384 kB each, and nothing comes for any of them
        net(torch.ones(12_000, 4))
        waiting.append(len(capture.waiting))
    assert waiting == [0, 1, 0]
    capturing_watch.monitor.finish_run()
    assert len(list(PageSet.open(tmp_path))) == 2 and sum(d.datapoints for d in PageSet.open(tmp_path).drops) == 1


class Stages(nn.Module):
    """A backbone with stages."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

    def forward(self, x_NF: Tensor) -> Tensor:
        return self.stages(x_NF)


class WithLoss(nn.Module):
    """A model in a loss module, which is called with the batch."""

    def __init__(self, models: int = 1) -> None:
        super().__init__()
        self.model, self.criterion = Stages(), nn.MSELoss()
        self.ema = Stages() if models > 1 else None

    def forward(self, x_NF: Tensor, y_NF: Tensor) -> Tensor:
        return self.criterion(self.model(x_NF), y_NF)


class CenterLoss(nn.Module):
    """A criterion with a layer of its own that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Linear(4, 4)

    def forward(self, out_NF: Tensor, y_NF: Tensor) -> Tensor:
        return (self.stages(out_NF) - y_NF).square().mean()


class Sum(nn.Module):
    """Several criteria, under a name that does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.MSELoss(), nn.L1Loss()])

    def forward(self, out_NF: Tensor, y_NF: Tensor) -> Tensor:
        return self.parts[0](out_NF, y_NF) + self.parts[1](out_NF, y_NF)


def start_capture(tmp_path: Path, *specs: str) -> Watch:
    found = Watch(Settings(level="basic", max_overhead=50.0, capture=list(specs)))
    found.monitor.lasting.append(Capture.with_folder(lambda: tmp_path / "rank0000"))
    found.monitor.activate_probes([])
    return found


def list_observations(watch: Watch, part: str) -> list[Observation]:
    return [one for one in watch.events if isinstance(one, Observation) and one.part == part]


def test_a_path_that_fits_one_place_below_the_root_is_taken_with_a_note(tmp_path: Path) -> None:
    watch = start_capture(tmp_path, "stages.*")
    net = WithLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        net(torch.ones(2, 4), torch.ones(2, 4)).backward()
        optimizer.step()
    watch.monitor.detach()
    assert [one.values["layers"] for one in list_observations(watch, "LAYERS")] == [
        ["model.stages.0", "model.stages.1", "model.stages.2"]
    ]
    (place,) = list_observations(watch, "PLACE")
    assert (place.values["place"], place.values["pattern"], place.values["root"]) == ("model", "stages.*", "WithLoss")
    assert not list_observations(watch, "MISSING") and not watch.failures


def test_a_path_that_fits_several_places_is_refused_with_their_names(tmp_path: Path) -> None:
    watch = start_capture(tmp_path, "stages.*")
    net = WithLoss(models=2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(2, 4), torch.ones(2, 4)).backward()
    optimizer.step()
    watch.monitor.detach()
    (missing,) = list_observations(watch, "MISSING")
    assert "model.stages.*, ema.stages.*" in missing.values["hint"] and not list_observations(watch, "LAYERS")


@pytest.mark.parametrize("criterion", [CenterLoss, Sum, lambda: nn.CrossEntropyLoss(torch.ones(4))])
def test_a_criterion_is_no_root(tmp_path: Path, criterion: Callable[[], nn.Module]) -> None:
    watch = start_capture(tmp_path, "stages*")
    net, judge = Stages(), criterion()
    optimizer = torch.optim.SGD([*net.parameters(), *judge.parameters()], lr=0.1)
    for _ in range(3):
        judge(net(torch.ones(2, 4)), torch.ones(2, 4)).backward()
        optimizer.step()
    before = watch.monitor.eval_calls
    with torch.no_grad():
        for _ in range(2):
            judge(net(torch.ones(2, 4)), torch.ones(2, 4))
    assert watch.monitor.eval_calls == before + 2, "a call of the model, and none of the criterion"
    watch.monitor.detach()
    assert [one.values["root"] for one in list_observations(watch, "LAYERS")] == ["Stages"]
    assert not list_observations(watch, "MISSING") and not watch.failures


class Holders(nn.Module):
    """Modules that only hold others, a Sequential whose parts are called one by one, and parts that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4)])
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 4)})
        self.steps = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.spare = nn.Sequential(nn.Linear(4, 4))
        self.unused = nn.Linear(4, 4)

    def forward(self, x_NF: Tensor) -> Tensor:
        for layer in (*self.blocks, *self.heads.values(), *self.steps):
            x_NF = layer(x_NF)
        return x_NF


def capture_holders(tmp_path: Path, *specs: str) -> Watch:
    watch = start_capture(tmp_path, *specs)
    net = Holders()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    watch.monitor.detach()
    assert not watch.failures
    return watch


def test_what_only_holds_other_modules_is_not_missed(tmp_path: Path) -> None:
    (done,) = list_observations(capture_holders(tmp_path, "**"), "DONE")
    assert done.values["not_executed"] == ["spare", "spare.0", "unused"]
    (point,) = PageSet.open(tmp_path)
    ran = ["blocks.0", "heads.a", "steps.0", "steps.1", "root"]
    assert list(point.tensors) == [f"{path}:output" for path in ran]


def test_a_name_of_nothing_but_a_holder_is_answered_with_its_parts(tmp_path: Path) -> None:
    (done,) = list_observations(capture_holders(tmp_path, "blocks", "heads*"), "DONE")
    assert done.values["skipped"] == {
        "blocks": "a ModuleList is never called: capture its children, blocks.*",
        "heads": "a ModuleDict is never called: capture its children, heads.*",
    }
    assert not done.values["not_executed"]
