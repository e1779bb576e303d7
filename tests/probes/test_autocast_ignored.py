"""Whether autocast applies to what runs inside it, as the probe `forward` sees it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_codes, judge_watch, list_observations
from torch import Tensor, nn

FLAG = {"flags": {"FORWARD": True}, "max_overhead": 1e6}


class Net(nn.Module):
    """A convolution and two linear layers, of which some run in an inner region."""

    def __init__(self, inner: str = "") -> None:
        super().__init__()
        self.conv, self.body, self.head = nn.Conv1d(1, 2, 3, padding=1), nn.Linear(8, 8), nn.Linear(8, 2)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu") and self.inner != "all"):
            hidden = self.body(self.conv(x[:, None]).flatten(1)).relu()
        with torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu") and not self.inner):
            return self.head(hidden.to(self.head.weight.dtype))


def train_model(model: nn.Module, steps: int = 6, dtype: torch.dtype = torch.bfloat16, *, on: bool = True) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(8, 4, dtype=next(model.parameters()).dtype)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=on):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()


def test_an_inner_region_switches_it_off(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    train_model(Net("all"))
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.severity, finding.first_step) == ("TD-C026", "warning", 2)
    assert finding.title == (
        "autocast to bfloat16 on cpu does not apply: all 3 linear and convolution layers return float32, rank 0"
    )
    assert "enabled=False" in finding.cause and finding.evidence == ["looked at: conv, body, head, on cpu"]


@contextmanager
def enable_cuda_autocast() -> Iterator[None]:
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before)


def test_it_is_on_for_another_device(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    with enable_cuda_autocast():
        train_model(Net(), on=False)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.title.startswith("autocast to float16 on cuda does not apply")
    assert finding.cause == "autocast is on for cuda, and the layers run on cpu"
    assert finding.try_next == "torch.autocast('cpu', ...)"


HEALTHY = {
    "applies": lambda: train_model(Net()),
    "a head in float32": lambda: train_model(Net("head")),
    "off": lambda: train_model(Net(), on=False),
    "to float32": lambda: train_model(Net("all"), dtype=torch.float32),
    "weights in half precision": lambda: train_model(Net("all").bfloat16()),
    "double": lambda: train_model(Net().double()),
    "no such layer": lambda: train_model(nn.Sequential(nn.LayerNorm(4), nn.ReLU())),
}


@pytest.mark.filterwarnings("ignore:In CPU autocast")
@pytest.mark.parametrize("kind", HEALTHY)
def test_nothing_is_said_where_it_applies_or_is_not_on(start_watch: Any, tmp_path: Path, kind: str) -> None:
    watched = start_watch(**FLAG)
    HEALTHY[kind]()
    assert judge_codes(watched, tmp_path) == []
    assert not list_observations(watched, "forward", "AUTOCAST")
