"""DEVICE: unlike devices and dtypes, and the calls of one step that copy or wait, counted by line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tdbg.core.events import Observation
from tdbg.probes import device

from .conftest import Watch

Start = Callable[..., Watch]
METHODS = (*device.SYNCS, *device.MOVES)


def list_observations(seen: Watch, part: str = "") -> list[Observation]:
    found = [event for event in seen.events if isinstance(event, Observation) and event.probe == "device"]
    return [event for event in found if event.part == part]


def make_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def train_model(model: nn.Module, steps: int = 4, inside: Callable[[Tensor], Any] = lambda loss: None) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if not p.is_meta], lr=0.1)
    for _ in range(steps):
        loss = model(torch.randn(6, 8)).pow(2).mean()
        inside(loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# unlike the rest


class Extra(nn.Module):
    """A network with one more tensor."""

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        self.body = make_network()
        for name, tensor in tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        for name in ("scale", "shift"):
            found = getattr(self, name, None)
            out = out + found if found is not None and not found.is_meta else out
        return out


def test_one_double_parameter_among_floats_is_named(start_watch: Start) -> None:
    seen = start_watch(flags={"DEVICE": True})
    train_model(Extra(scale=nn.Parameter(torch.ones(4, dtype=torch.float64))))
    (event,) = list_observations(seen, "MIX_DTYPE")
    values = event.values
    assert (values["odd"], values["odd_count"]) == (["scale"], 1)
    assert (values["odd_kind"], values["common_kind"]) == ("float64", "float32")
    assert event.step == 1 and not list_observations(seen, "MIX_DEVICE")


def test_a_double_buffer_counts_only_where_it_widens_the_output(start_watch: Start) -> None:
    seen = start_watch(flags={"DEVICE": True})
    train_model(Extra(shift=torch.ones(4, dtype=torch.float64)))
    (event,) = list_observations(seen, "MIX_DTYPE")
    assert event.values["odd"] == ["shift"] and event.values["effect"] == "the output became float64"
    seen.monitor.detach()
    seen = start_watch(flags={"DEVICE": True})
    train_model(Extra(unused=torch.ones(4, dtype=torch.float64)))
    assert not list_observations(seen, "MIX_DTYPE")


@pytest.mark.parametrize("parameter", [True, False])
def test_a_tensor_without_data_beside_real_ones_is_named(start_watch: Start, parameter: bool) -> None:
    seen = start_watch(flags={"DEVICE": True})
    tensor: Tensor = torch.ones(4, device="meta")
    train_model(Extra(shift=nn.Parameter(tensor) if parameter else tensor))
    (event,) = list_observations(seen, "MIX_DEVICE")
    assert event.values["odd"] == ["shift"]
    assert (event.values["odd_kind"], event.values["common_kind"]) == ("meta", "cpu")


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)),  # an integer counter among floats
        lambda: nn.Linear(8, 4).double(),
        lambda: Extra(scale=nn.Parameter(torch.ones(4, dtype=torch.bfloat16))),
        lambda: Extra(table=torch.arange(9), mask=torch.ones(3, dtype=torch.bool)),
    ],
)
def test_what_is_meant_is_left_alone(start_watch: Start, build: Callable[[], nn.Module]) -> None:
    seen = start_watch(flags={"DEVICE": True})
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dtype = next(model.parameters()).dtype if isinstance(model, nn.Linear) else torch.float32
    for _ in range(3):
        model(torch.randn(6, 8, dtype=dtype)).pow(2).mean().backward()
        optimizer.step()
    assert (
        list_observations(seen)
        and not list_observations(seen, "MIX_DTYPE")
        and not list_observations(seen, "MIX_DEVICE")
    )


class Placed:
    """A parameter that says it is elsewhere."""

    def __init__(self, where: str, dims: int = 2) -> None:
        self.device, self.is_meta, self.dims = torch.device(where), False, dims

    def dim(self) -> int:
        return self.dims


def test_a_few_parameters_left_on_the_host_by_a_model_that_moved(start_watch: Start) -> None:
    probe = start_watch(flags={"DEVICE": True}).monitor.find_probe("device")
    heard: list[Any] = []
    probe._emit_mixed_kinds = lambda *args: heard.append(args)
    probe._accelerator = True
    moved: dict[str, Any] = {f"w{i}": Placed("cuda:0") for i in range(20)}
    probe._judge_devices({**moved, "left": Placed("cpu")}, {}, offloaded=False)
    assert heard == [("device", ["left"], "cpu", "cuda:0")]
    heard.clear()
    probe._judge_devices({**moved, "left": Placed("cpu")}, {}, offloaded=True)
    probe._judge_devices({**moved, "scalar": Placed("cpu", 0)}, {}, offloaded=False)
    probe._judge_devices({**moved, **{f"h{i}": Placed("cpu") for i in range(9)}}, {}, offloaded=False)
    probe._judge_devices({**moved, **{f"v{i}": Placed("cuda:1") for i in range(2)}}, {}, offloaded=False)
    assert heard == []


def test_an_idle_accelerator_is_told_once(start_watch: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "count_accelerators", lambda: 2)
    seen = start_watch(flags={"DEVICE": True})
    train_model(make_network(), 12)
    (event,) = list_observations(seen, "IDLE")
    assert event.step == 8 and event.values["accelerators"] == 2


def test_accelerators_are_counted_without_waking_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("asks the driver"))
    monkeypatch.setattr(device.glob, "glob", lambda pattern: [f"/dev/nvidia{i}" for i in range(4)])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert device.count_accelerators() == 4
    for text, count in (("0,2", 2), ("", 0), ("-1", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        assert device.count_accelerators() == count


# copies and waits


def read_values(loss: Tensor) -> None:
    per_sample = loss.detach().repeat(6)
    for value in per_sample:
        value.item()
    per_sample.tolist()
    if loss > 1e9:
        raise AssertionError
    loss.detach().to(torch.float64).float()
    loss.detach().to("meta")


def test_calls_are_counted_by_line(start_watch: Start) -> None:
    seen = start_watch(flags={"DEVICE": True})
    train_model(make_network(), 3, read_values)
    found = list_observations(seen)
    assert [event.step for event in found] == [1, 2, 3]
    first = read_values.__code__.co_firstlineno
    for event in found:
        values = event.values
        assert values["syncs"] == 8  # six items, a list, a branch
        assert (values["conversions"], values["copies"]) == (2, 1)
        here = Path(__file__).name
        assert values["lines"][0].endswith(f"{here}:{first + 3} .item() x6")
        assert any(f"{here}:{first + 5} .__bool__() x1" in line for line in values["lines"])
        assert values["over"] == [], "on the CPU nothing waits"
        assert values["inputs"] == ["float32 on cpu"] and values["loss"] == values["output"] == "float32 on cpu"
    assert found[0].values["parameters"] == {"float32 on cpu": 4} and "parameters" not in found[1].values


def test_torch_is_as_it_was_after_each_counted_step(start_watch: Start) -> None:
    seen = start_watch(flags={"DEVICE": True})
    during: list[bool] = []
    kept: list[Any] = []

    def look(loss: Tensor) -> None:
        during.append("item" in vars(Tensor))
        kept.append(Tensor.item)

    train_model(make_network(), 3, look)
    assert during == [True] * 3
    assert not set(METHODS) & set(vars(Tensor))
    before = len(list_observations(seen))
    assert kept[0](torch.ones(())) == 1.0, "a wrapper somebody kept works and does nothing else"
    assert len(list_observations(seen)) == before


def test_results_types_and_errors_stay(start_watch: Start) -> None:
    start_watch(flags={"DEVICE": True})

    def check_conversions(loss: Tensor) -> None:
        assert type(loss.item()) is float and type(torch.tensor(3).item()) is int
        assert torch.arange(3).tolist() == [0, 1, 2] and loss.detach().numpy().shape == ()
        assert bool(torch.tensor(True)) is True and int(torch.tensor(3.7)) == 3
        assert loss.to(torch.float32) is loss
        with pytest.raises(RuntimeError, match="cannot be converted"):
            torch.ones(2).item()
        with pytest.raises(RuntimeError, match="ambiguous"):
            bool(torch.ones(2))

    train_model(make_network(), 2, check_conversions)


def test_with_a_loader_the_lines_after_the_update_belong_to_the_step(start_watch: Start) -> None:
    seen = start_watch(flags={"DEVICE": True})
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(24, 8)), batch_size=6)
    for (x,) in loader:
        loss = model(x.double().float()).pow(2).mean()
        loss.backward()
        optimizer.step()
        loss.item()
    found = list_observations(seen)
    assert [event.step for event in found] == [1, 2, 3]
    assert {(event.values["syncs"], event.values["conversions"]) for event in found} == {(1, 2)}


def test_torchs_own_calls_are_not_the_programs(start_watch: Start) -> None:
    seen = start_watch(flags={"DEVICE": True})
    model = make_network()
    optimizer = torch.optim.Adam(model.parameters())  # reads its step counts with .item()
    for _ in range(3):
        model(torch.randn(6, 8)).pow(2).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert [event.values["syncs"] for event in list_observations(seen)] == [0, 0, 0]


def test_a_step_with_thousands_of_calls_is_not_counted_to_the_end(start_watch: Start) -> None:
    seen = start_watch(flags={"DEVICE": True})
    train_model(make_network(), 1, lambda loss: [loss.item() for _ in range(5000)])
    (event,) = list_observations(seen)
    assert event.values["syncs"] == device.MAX_COUNTED


def test_lines_over_the_bound_on_an_accelerator() -> None:
    window = device.Seen(step=3, from_loader=False, thread=0)
    window.syncs["a.py:1 .item()"] = 40
    window.syncs["a.py:2 .item()"] = 3
    window.copies["a.py:3 .to()"] = 16
    assert device._format_lines(window, 16) == ["a.py:1 .item() x40", "a.py:3 .to() x16"]


def test_in_a_program_that_compiles_nothing_is_counted(start_watch: Start) -> None:
    seen = start_watch(flags={"DEVICE": True})
    methods: list[bool] = []

    def compiles(loss: Tensor) -> None:
        torch.compile(torch.sin, backend="eager")
        methods.append("item" in vars(Tensor))

    train_model(make_network(), 3, compiles)
    assert methods == [False] * 3 and "abstains-device" in seen.notes
    assert all("syncs" not in event.values and event.values["inputs"] for event in list_observations(seen))


def test_it_can_come_and_go_in_the_middle_of_a_run(start_watch: Start) -> None:
    seen = start_watch()
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 7):
        if step in (3, 5):
            seen.monitor.level_overrides.change_now("", {"DEVICE": step == 3}, "api")
        loss = model(torch.randn(6, 8)).pow(2).mean()
        if step == 4:
            seen.monitor.level_overrides.change_now("", {"DEVICE": False}, "api")  # while a step is counted
            assert not set(METHODS) & set(vars(Tensor))
        loss.backward()
        optimizer.step()
    assert [event.step for event in list_observations(seen)] == [3]


def test_while_tdbg_is_switched_off_torch_is_as_it_was(start_watch: Start) -> None:
    seen = start_watch(flags={"DEVICE": True})
    steps = iter(range(1, 9))

    def switch(loss: Tensor) -> None:
        step = next(steps)
        assert bool(set(METHODS) & set(vars(Tensor))) == (step not in (3, 4))
        if step in (2, 4):
            seen.monitor.set_active(step == 4)
            assert not set(METHODS) & set(vars(Tensor))

    train_model(make_network(), 6, switch)
    assert [event.step for event in list_observations(seen)] == [1, 5, 6]
