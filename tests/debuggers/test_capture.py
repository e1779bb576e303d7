"""The probe of `--capture` inside the test process: passes that run beside each other."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tdbg.config import Settings
from tdbg.debuggers.capture import Capture
from tdbg.events import Observation
from tdbg.pages.reader import PageSet
from tdbg.pages.writer import PageWriter
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
def watched(tmp_path: Path) -> Iterator[Watch]:
    found = Watch(Settings(level="basic", max_overhead=50.0, capture=["a:output", "b:output,grad"]))
    found.monitor.lasting.append(Capture.into(lambda: tmp_path / "rank0000"))
    found.monitor.use([])
    yield found
    found.monitor.detach()
    assert not found.failures, found.failures


def test_a_pass_in_another_thread_does_not_end_this_one(watched: Watch, tmp_path: Path) -> None:
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
    watched.monitor.detach()
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
    from tdbg.capture import Spec

    assert Spec.parse(text) == (pattern, kinds)


def test_a_budget_that_ends_behind_the_last_pass_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(level="basic", max_overhead=50.0, capture=["a:output"], capture_budget="60kB")
    watched, net = Watch(settings), Net()
    written, gate = PageWriter.add, threading.Event()

    def slow(self: PageWriter, *args: Any, **kwargs: Any) -> int:
        gate.wait(10)
        return written(self, *args, **kwargs)

    monkeypatch.setattr(PageWriter, "add", slow)
    watched.monitor.lasting.append(Capture.into(lambda: tmp_path / "rank0000"))
    watched.monitor.use([])
    with torch.no_grad():
        for _ in range(3):
            net(torch.ones(2000, 4))
    gate.set()
    watched.monitor.detach()
    over = [event for event in watched.events if isinstance(event, Observation) and event.part == "OVER"]
    assert len(over) == 1 and not watched.failures
