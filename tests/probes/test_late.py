"""The accelerator's path, run on the host: nothing is read before the next step, and the record is the same."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tdbg.core.events import Step
from tdbg.probes import Probe, first_bad
from tdbg.probes.catalog import CATALOG
from tdbg.runtime import compiler, loss_watch, tensors
from tdbg.runtime.deferred_reads import LateReads
from tdbg.runtime.device_losses import DeviceLosses

from .conftest import Watch

Start = Callable[..., Watch]


def run_training(seen: Watch, bad_at: int = 0) -> list[tuple[float, float]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = []
    for step in range(1, 6):
        x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
        if step == bad_at:
            x[0, 0] = math.nan
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        told.append((loss.item(), math.sqrt(sum(float(p.grad.norm()) ** 2 for p in model.parameters()))))
        optimizer.step()
        if not bad_at:
            assert len(seen.train_steps) == step - 1, "the last record waits for its values"
    seen.monitor.finish_run()
    return told


@pytest.fixture
def fake_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor counts as if it were on an accelerator."""
    monkeypatch.setattr(tensors, "on_host", lambda tensor: False)


@pytest.mark.usefixtures("fake_accelerator")
def test_records_are_complete_one_step_late(start_watch: Start) -> None:
    seen = start_watch()
    told = run_training(seen)
    assert [record.step for record in seen.train_steps] == [1, 2, 3, 4, 5]
    for record, (loss, norm) in zip(seen.train_steps, told, strict=True):
        assert record.loss == pytest.approx(loss, rel=1e-6)
        assert record.grad_norm == pytest.approx(norm, rel=1e-5)
        assert record.finite is True
    assert seen.bad_values == []


@pytest.mark.usefixtures("fake_accelerator")
def test_a_fault_seen_late_names_the_step_and_the_input_and_says_it_was_late(start_watch: Start) -> None:
    seen = start_watch()
    run_training(seen, bad_at=3)
    event = seen.bad_values[0]
    assert (event.step, event.phase, event.weights) == (3, "input", "updated")
    assert "one step late" in event.note
    assert len(seen.bad_values) == 1


@pytest.mark.usefixtures("fake_accelerator")
def test_nothing_of_a_step_is_kept_alive_on_the_device(start_watch: Start) -> None:
    seen = start_watch()
    run_training(seen)
    assert len(seen.monitor.calls) == 0
    assert all(not call.output_grads for call in seen.monitor.calls.late)


@pytest.mark.usefixtures("fake_accelerator")
def test_stop_before_update_reads_at_once(start_watch: Start) -> None:
    seen = start_watch(stop_before_update=True)
    with pytest.raises(SystemExit):
        run_training(seen, bad_at=1)
    assert seen.bad_values[0].weights == "intact"


class Rude(Probe):
    """A probe whose late reader raises, and stands before the others'."""

    name = "rude"

    def update_begins(self, optimizer: Any) -> None:
        self.monitor.read_late(torch.ones(1), self.read_late)

    def read_late(self, values: list[float], record: Any) -> None:
        raise ZeroDivisionError("planted")


class RudeByName(Rude):
    """The same with a reader that says whose it is."""

    name = "rude-by-name"

    class Reader:
        def __init__(self, probe: Probe) -> None:
            self.probe = probe

        def __call__(self, values: list[float], record: Any) -> None:
            raise ZeroDivisionError("planted")

    def update_begins(self, optimizer: Any) -> None:
        self.monitor.read_late(torch.ones(1), self.Reader(self))


@pytest.mark.usefixtures("fake_accelerator")
@pytest.mark.parametrize(("rude", "failed"), [(Rude, "late values"), (RudeByName, "rude-by-name")])
def test_a_reader_that_raises_keeps_no_value_from_the_others(
    start_watch: Start, rude: type[Probe], failed: str
) -> None:
    seen = start_watch()
    seen.monitor.activate_probes([rude, *CATALOG.select_probes("basic", {})])
    told = run_training(seen)
    assert {name for name, _ in seen.failures} == {failed}
    assert (seen.monitor.find_probe(rude.name) is None) == (failed == rude.name), (
        "a probe that is known is switched off"
    )
    assert [(record.loss, record.grad_norm) for record in seen.train_steps] == [
        pytest.approx(pair, rel=1e-5) for pair in told
    ]
    seen.failures.clear()


@pytest.mark.usefixtures("fake_accelerator")
def test_a_device_that_fails_at_the_end_leaves_what_is_known(
    start_watch: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = LateReads.deliver_values

    def fails(reads: LateReads, record: Step | None) -> None:
        if record is not None and record.step == 5:
            raise RuntimeError("device-side assert")
        finish(reads, record)

    monkeypatch.setattr(LateReads, "deliver_values", fails)
    seen = start_watch()
    run_training(seen)
    assert [name for name, _ in seen.failures] == ["late values"]
    assert [record.loss is not None for record in seen.train_steps] == [True] * 4 + [False]
    seen.failures.clear()


def test_nothing_is_seen_while_a_graph_is_captured(start_watch: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs then runs for the recording alone, and a value read would break it."""
    seen = start_watch(level="extreme")
    with monkeypatch.context() as capturing:
        capturing.setattr(torch.cuda, "is_initialized", lambda: True)
        capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        capturing.setattr(tensors, "on_host", lambda tensor: pytest.fail("a tensor is looked at"))
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert seen.monitor.step == 0 and seen.train_steps == [] and seen.failures == []
    assert "cuda-graph" in seen.notes


def test_a_device_that_has_failed_raises_nothing_of_tdbgs_into_the_program(
    start_watch: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a device-side assertion every question to the driver raises, also whether a graph is captured."""

    def fail() -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered")

    seen = start_watch()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", fail)
    with monkeypatch.context() as failed:
        failed.setattr(torch.cuda, "is_initialized", lambda: True)
        assert not compiler.is_capturing()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        torch.autograd.backward(model(torch.randn(2, 4)).sum())
    optimizer.step()
    assert model.weight.grad is not None and seen.monitor.step == 1


class PlayedCopy:
    """A number that is there when it is asked for the second time."""

    def __init__(self) -> None:
        self.value, self.asked = 0.0, 0

    def start_copy(self, value: torch.Tensor) -> None:
        self.value = float(value)

    def has_arrived(self) -> bool:
        self.asked += 1
        return self.asked > 1

    def wait_for_value(self) -> float:
        return self.value


class PlayedMark:
    """An end that the device has not come to."""

    def __init__(self, device: torch.device) -> None:
        pass

    def is_passed(self) -> bool:
        return False


@pytest.fixture
def fake_cuda(fake_accelerator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, and its numbers can be copied without a wait."""
    for module in (first_bad, loss_watch):
        monkeypatch.setattr(module, "can_copy", lambda tensor: True)
    monkeypatch.setattr(first_bad, "Copy", PlayedCopy)
    monkeypatch.setattr(DeviceLosses.__init__, "__defaults__", (PlayedCopy, PlayedMark))


class Ill(nn.Module):
    """The identity, and from one call on NaN."""

    def __init__(self, since: int) -> None:
        super().__init__()
        self.since, self.calls = since, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * math.nan if self.calls >= self.since else x


def build_ill_model(since: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), Ill(since), nn.Linear(8, 4))


@pytest.mark.usefixtures("fake_cuda")
@pytest.mark.parametrize("clips", [False, True])
def test_a_bad_loss_on_a_device_is_located_before_the_update(start_watch: Start, clips: bool) -> None:
    seen = start_watch()
    model = build_ill_model(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(6, 8)).square().mean().backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    (event,) = seen.bad_values
    assert (event.step, event.phase, event.module, event.kind, event.weights) == (3, "forward", "1", "nan", "intact")


@pytest.mark.usefixtures("fake_cuda")
@pytest.mark.parametrize("then", ["another-call", "training", "the-end"])
def test_bad_outputs_of_an_evaluation_on_a_device_are_located(start_watch: Start, then: str) -> None:
    seen = start_watch()
    model = build_ill_model(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        for _ in range(2 if then != "another-call" else 3):
            model(torch.randn(6, 8))
    if then == "training":
        model(torch.randn(6, 8)).square().mean().backward()
        optimizer.step()
    seen.monitor.finish_run()
    event = seen.bad_values[0]
    assert (event.during, event.phase, event.module, event.weights) == ("eval", "forward", "1", "intact")
