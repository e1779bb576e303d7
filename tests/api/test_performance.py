"""`profile_model_performance`: the batches asked for are in the trace and in the figures, and all is as it was after."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tdbg
from tdbg.core.errors import TdbgError
from tests.api.conftest import Done, small_model
from tests.probes.test_profiler import list_marked_steps

KEYS = {
    "trace", "kind", "batches", "median_ms", "fastest_ms", "slowest_ms", "batches_per_s", "verdict", "parts",
    "busy_share", "devices", "operators", "kernels", "peak_bytes", "advice", "problems",
    "flops", "flops_per_s", "flops_by_operator",
}  # fmt: skip


def make_loader(count: int = 12) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(4 * count, 8), torch.randint(0, 4, (4 * count,))), batch_size=4)


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Outside of a run traces go into a temporary folder: here this one."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_model_is_called_as_in_evaluation(temporary_folder: Path) -> None:
    model = nn.Sequential(small_model(), nn.BatchNorm1d(4), nn.Dropout()).train()
    model[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = tdbg.profile_model_performance(model, make_loader(), num_batches=3, kind="full")
    assert found.keys() == KEYS
    assert found["batches"] == 3 and found["problems"] == []
    assert 0 < found["fastest_ms"] <= found["median_ms"] <= found["slowest_ms"]
    assert found["batches_per_s"] == pytest.approx(1000 / found["median_ms"])
    assert sum(found["parts"].values()) == pytest.approx(1.0) and found["parts"]["backward"] == 0
    calls = {row["name"]: row["calls"] for row in found["operators"]}
    assert calls["aten::addmm"] == 6, "two layers, three batches"
    assert found["peak_bytes"]["cpu"] > 0 and found["kernels"] == [] and found["busy_share"] is None
    assert model.training and not model[0].training and not model[0][0].training and model[2].training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    path = Path(found["trace"])
    assert temporary_folder in path.parents and path.name.startswith("rank0000.") and path.name.endswith(".json.gz")
    assert json.dumps(found) and not torch.autograd._profiler_enabled()


def test_a_step_of_ones_own(temporary_folder: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []

    def step(batch: Any) -> None:
        x, y = batch
        seen.append(len(x))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    found = tdbg.profile_model_performance(step, make_loader(), 4)
    assert seen == [4] * 5, "one warms up"
    assert found["batches"] == 4 and found["parts"]["backward"] > 0 and found["parts"]["optimizer"] > 0
    fewer = tdbg.profile_model_performance(step, make_loader(3), 10)
    assert fewer["batches"] == 2 and "2 of 10" in fewer["problems"][0]


def test_a_mapping_is_keywords() -> None:
    class Net(nn.Module):
        def forward(self, ids: torch.Tensor, scale: float) -> torch.Tensor:
            return ids * scale

    found = tdbg.profile_model_performance(Net(), [{"ids": torch.ones(2), "scale": 2.0}] * 3, 2)
    assert found["batches"] == 2 and {row["name"]: row["calls"] for row in found["operators"]}["aten::mul"] == 2


def test_what_cannot_be_is_said() -> None:
    model = small_model()
    with pytest.raises(TdbgError, match="warm-up batch"):
        tdbg.profile_model_performance(model, make_loader(1))
    for wrong in ({"num_batches": 0}, {"num_batches": 1000}, {"kind": "all"}):
        with pytest.raises(TdbgError):
            tdbg.profile_model_performance(model, make_loader(), **wrong)
    with torch.profiler.profile(), pytest.raises(TdbgError, match="another profiler"):
        tdbg.profile_model_performance(model, make_loader())
    with pytest.raises(ZeroDivisionError):
        tdbg.profile_model_performance(lambda batch: 1 / 0, make_loader())
    assert not torch.autograd._profiler_enabled()


PROGRAM = """
from torch.utils.data import DataLoader, TensorDataset
model = train(4)  # in a window of tdbg's own
data = DataLoader(TensorDataset(torch.randn(24, 8)), batch_size=4)
found = tdbg.profile_model_performance(model, data, num_batches=3)
train(8)
print(json.dumps(found))
"""


@pytest.mark.parametrize("options", [["-f", "PROFILER"], []], ids=["profiled", "watched"])
def test_inside_a_run_the_trace_is_of_the_run(program_runner: Any, options: list[str]) -> None:
    """Under PROFILER the window that is open makes way for it."""
    done: Done = program_runner(PROGRAM, options)
    found = done.printed_json
    traces = sorted((done.folder / "rank0000" / "traces").glob("*.json.gz"))
    assert str(traces[-1]) == found["trace"] and found["batches"] == 3
    events = done.read_events("trace")
    assert [event.get("why", "schedule") for event in events] == ["schedule", "program"][-len(traces) :]
    assert len(traces) == len(events) == 1 + bool(options)
    assert events[-1]["phase"] == "batches" and events[-1]["steps"] == 3


def test_the_marks_are_the_batches(temporary_folder: Path) -> None:
    import gzip

    found = tdbg.profile_model_performance(small_model(), make_loader(), 2)
    assert list_marked_steps(json.loads(gzip.decompress(Path(found["trace"]).read_bytes()))) == [1, 2]


def test_flops_of_a_batch_by_torchs_own_formulas() -> None:
    """Two operations a multiply-add: what a matrix product has by the book, forward and backward."""
    linear = nn.Linear(8, 16, bias=False)
    found = tdbg.profile_model_performance(linear, make_loader(), 2)
    assert found["flops"] == 2 * 4 * 8 * 16 and found["flops_by_operator"] == {"aten.mm": found["flops"]}
    assert found["flops_per_s"] == pytest.approx(found["flops"] / found["median_ms"] * 1e3)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten(), nn.Linear(5 * 4 * 4, 2))
    conv, dense = 2 * 5 * 4 * 4 * 3 * 9, 2 * 80 * 2

    def forward(batch: torch.Tensor) -> None:
        with torch.inference_mode():
            model(batch)

    def step(batch: torch.Tensor) -> None:
        model(batch).sum().backward()

    images = [torch.randn(1, 3, 6, 6) for _ in range(3)]
    assert tdbg.profile_model_performance(forward, images, 2)["flops"] == conv + dense
    trained = tdbg.profile_model_performance(step, images, 2)["flops"]
    assert trained == 2 * conv + 3 * dense, "no gradient for the images"
    assert tdbg.profile_model_performance(nn.ReLU(), make_loader(), 2)["flops"] is None
