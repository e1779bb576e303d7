"""MODEL_BUILD: the tree, the places, the initial values, and what is never used, each against a known model."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tdbg.core.events import Observation
from tdbg.probes.model_build import module_tree

from .conftest import Watch

Start = Callable[..., Watch]
HERE = str(Path(__file__))


def list_observations(seen: Watch, part: str) -> list[Observation]:
    found = [event for event in seen.events if isinstance(event, Observation) and event.probe == "model-build"]
    return [event for event in found if event.part == part]


def find_values(seen: Watch, part: str) -> dict[str, Any]:
    (event,) = list_observations(seen, part)
    return event.values


class Block(nn.Module):
    """A linear layer and its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)  # FC
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.fc(x))
        return out


class Net(nn.Module):
    """Blocks, a head, and whatever the test adds."""

    def __init__(self, **more: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(3)])  # BLOCKS
        self.head = nn.Linear(16, 4)  # HEAD
        for name, module in more.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(x))
        return out


def find_line(mark: str) -> str:
    number = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith(f"# {mark}"))
    return f"test_model_build.py:{number}"


def train_model(model: nn.Module, steps: int = 10, **options: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
    x = torch.randn(32, 16)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()


def test_the_tree_is_counted_placed_and_told_once(start_watch: Start) -> None:
    seen = start_watch(flags={"MODEL_BUILD": True})
    model = Net()  # ROOT
    model.head.bias.requires_grad_(False)
    train_model(model)
    (event,) = list_observations(seen, "TREE")
    values = event.values
    assert (values["root"], values["modules"], values["depth"]) == ("Net", 12, 3)
    assert (values["parameters"], values["trainable"]) == (3 * 272 + 68, 3 * 272 + 64)
    assert (values["children"], values["child_parameters"]) == (["blocks", "head"], [816, 68])
    assert values["built_at"].endswith(find_line("ROOT")) and values["build_ms"] > 0.0
    rows = event.text.splitlines()[1:]
    assert [row.split()[:2] for row in rows] == [
        ["blocks", "Sequential"],
        ["0-2", "Block"],
        ["fc", "Linear"],
        ["act", "ReLU"],
        ["head", "Linear"],
    ]
    for row, mark in zip(rows, ("BLOCKS", "BLOCKS", "FC", "", "HEAD"), strict=True):
        assert not mark or row.endswith(find_line(mark)), row


def test_a_large_tree_stays_readable() -> None:
    wide = nn.ModuleDict({f"part{i}": nn.Linear(i + 1, 2) for i in range(200)})
    rows = module_tree.render_tree(wide, {})
    assert len(rows) == module_tree.MAX_LINES + 1 and rows[-1].strip() == "... (201 modules in all)"
    deep: nn.Module = nn.Linear(2, 2)
    for _ in range(20):
        deep = nn.Sequential(deep)
    assert len(module_tree.render_tree(deep, {})) == module_tree.MAX_DEPTH


def test_a_shared_parameter_is_told_and_no_fault(start_watch: Start) -> None:
    seen = start_watch(flags={"MODEL_BUILD": True})
    model = Net()
    model.blocks[2].fc.weight = model.blocks[0].fc.weight
    train_model(model)
    assert find_values(seen, "TREE")["shared"] == ["blocks.0.fc.weight = blocks.2.fc.weight"]
    assert find_values(seen, "TREE")["parameters"] == 3 * 272 + 68 - 256
    assert not list_observations(seen, "UNUSED")


def test_the_initial_values_are_those_before_the_first_update(start_watch: Start) -> None:
    seen = start_watch(flags={"MODEL_BUILD": True})
    model = Net()
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([1.0, 3.0]).repeat(32).reshape(4, 16))
    train_model(model)
    values = find_values(seen, "INIT")
    index = values["names"].index("head.weight")
    assert values["mean"][index] == pytest.approx(2.0, abs=0.01)
    assert values["std"][index] == pytest.approx(1.0, abs=0.01)
    assert len(values["names"]) == len(values["std"]) == 8
    assert not values["not_finite"] and not values["too_large"] and not values["zero"]


def test_a_model_attached_late_has_no_initial_values(start_watch: Start) -> None:
    seen = start_watch()
    model = Net()
    train_model(model, 3)
    seen.monitor.settings.flags["MODEL_BUILD"] = True
    seen.monitor.level_overrides.change_now("", {"MODEL_BUILD": True}, "api")
    train_model(model, 3)
    assert list_observations(seen, "TREE") and not list_observations(seen, "INIT")


def test_bad_initial_values_are_named(start_watch: Start) -> None:
    seen = start_watch(flags={"MODEL_BUILD": True})
    model = Net()
    with torch.no_grad():
        model.blocks[0].fc.bias[3] = float("nan")
        model.blocks[1].fc.weight.normal_(0.0, 5.0)
        model.blocks[2].fc.weight.normal_(0.0, 0.001)
        model.head.weight.zero_()
    train_model(model, 1)
    values = find_values(seen, "INIT")
    assert values["not_finite"] == ["blocks.0.fc.bias"]
    assert values["too_large"] == ["blocks.1.fc.weight"]
    assert values["ratios"][0] == pytest.approx(5.0 / (2.0 / 16) ** 0.5, rel=0.2)
    assert values["too_small"] == ["blocks.2.fc.weight"] and values["zero"] == ["head.weight"]


def test_one_bad_element_in_a_large_weight_is_seen(start_watch: Start) -> None:
    seen = start_watch(flags={"MODEL_BUILD": True})
    model = nn.Sequential(nn.Linear(16, 4000), nn.Linear(4000, 4))
    with torch.no_grad():
        model[0].weight[1717, 7] = float("inf")
    train_model(model, 1)
    assert find_values(seen, "INIT")["not_finite"] == ["0.weight"]


@pytest.mark.parametrize(
    "model",
    [
        lambda: nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)),
        lambda: nn.Sequential(nn.Unflatten(1, (4, 4)), nn.Conv1d(4, 8, 3, padding=1), nn.GroupNorm(2, 8)),
        lambda: nn.Sequential(nn.LazyLinear(7), nn.LayerNorm(7), nn.Linear(7, 1)),
    ],
)
def test_ordinary_models_are_fine(start_watch: Start, model: Callable[[], nn.Module]) -> None:
    seen = start_watch(flags={"MODEL_BUILD": True})
    train_model(model(), 10)
    values = find_values(seen, "INIT")
    assert not values["not_finite"] and not values["too_large"]
    assert not list_observations(seen, "UNUSED") and not list_observations(seen, "STUCK")


# what is never used


def test_a_module_that_no_forward_calls_is_named_after_the_bound(start_watch: Start) -> None:
    seen = start_watch(flags={"MODEL_BUILD": True})
    train_model(Net(aux=nn.Linear(16, 4)))
    (event,) = list_observations(seen, "UNUSED")
    assert (event.values["unused"], event.values["unused_count"]) == (["aux.weight", "aux.bias"], 2)
    assert event.step == event.values["updates"] == 8
    seen.monitor.detach()
    early = start_watch(flags={"MODEL_BUILD": True}, thresholds={"MODEL_BUILD.unused_steps": 3.0})
    train_model(Net(aux=nn.Linear(16, 4)))
    assert list_observations(early, "UNUSED")[0].step == 3


def test_what_is_frozen_used_later_or_not_trained_is_no_fault(start_watch: Start) -> None:
    class Sometimes(Net):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            out = super().forward(x)
            return out + self.aux(x) if self.calls == 5 else out

    seen = start_watch(flags={"MODEL_BUILD": True})
    train_model(Sometimes(aux=nn.Linear(16, 4)))
    frozen = Net(aux=nn.Linear(16, 4).requires_grad_(False))
    train_model(frozen)
    apart = Net(aux=nn.Linear(16, 4))
    optimizer = torch.optim.SGD([*apart.blocks.parameters(), *apart.head.parameters()], lr=0.1)
    for _ in range(9):
        apart(torch.randn(4, 16)).mean().backward()
        optimizer.step()
    assert not list_observations(seen, "UNUSED")


def test_gradients_kept_elsewhere_are_abstained_from(start_watch: Start) -> None:
    seen = start_watch(flags={"MODEL_BUILD": True})
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(9):
        model(torch.randn(4, 16)).mean().backward()
        for parameter in model.parameters():
            parameter.grad = None
        optimizer.step()
    assert not list_observations(seen, "UNUSED") and "abstains-model-build" in seen.notes


def test_two_zero_layers_in_a_row_are_stuck_and_one_is_not(start_watch: Start) -> None:
    seen = start_watch(flags={"MODEL_BUILD": True})
    first, second = nn.Linear(16, 8, bias=False), nn.Linear(8, 4, bias=False)
    model = nn.Sequential(first, second)
    with torch.no_grad():
        second.weight.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(9):
        optimizer.zero_grad()
        (model(torch.randn(32, 16)) - 1.0).pow(2).mean().backward()
        optimizer.step()
    assert find_values(seen, "INIT")["zero"] == ["1.weight"] and not list_observations(seen, "STUCK")
    seen.monitor.detach()
    seen = start_watch(flags={"MODEL_BUILD": True})
    model = nn.Sequential(nn.Linear(16, 8, bias=False), nn.Linear(8, 4, bias=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(9):
        optimizer.zero_grad()
        (model(torch.randn(32, 16)) - 1.0).pow(2).mean().backward()
        optimizer.step()
    assert find_values(seen, "STUCK")["stuck"] == ["0.weight", "1.weight"]


# shapes


def run_uncaught(run: Callable[[], Any]) -> None:
    """Raise it as far as the top, as Python does."""
    try:
        run()
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)


def test_the_module_that_does_not_fit_is_named_with_its_shapes(start_watch: Start) -> None:
    seen = start_watch(flags={"MODEL_BUILD": True})
    model = Net()
    model.blocks[1].fc = nn.Linear(24, 16)
    run_uncaught(lambda: train_model(model))
    (event,) = list_observations(seen, "SHAPE")
    values = event.values
    assert (values["module"], values["module_class"], values["first"]) == ("blocks.1.fc", "Linear", True)
    assert values["inputs"] == {"input": [32, 16]} and values["weights"] == {"weight": [16, 24], "bias": [16]}
    assert values["line"].startswith(HERE.rpartition("/")[2]) or "test_model_build.py:" in values["line"]
    assert seen.claims == 1 and event.step == 1


def test_other_exceptions_are_not_about_shapes(start_watch: Start) -> None:
    class Odd(Net):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("the moon is full")

    seen = start_watch(flags={"MODEL_BUILD": True})
    run_uncaught(lambda: train_model(Odd()))
    run_uncaught(lambda: torch.ones(2) @ torch.ones(3))  # no module in it
    assert not list_observations(seen, "SHAPE")


# being a guest


def test_everything_is_taken_away(start_watch: Start) -> None:
    from torch.nn.modules import module as registry

    tables = (registry._global_parameter_registration_hooks, registry._global_module_registration_hooks)
    before, hook = [len(table) for table in tables], sys.excepthook
    seen = start_watch(flags={"MODEL_BUILD": True})
    assert [len(table) for table in tables] == [count + 2 for count in before]
    seen.monitor.detach()
    assert [len(table) for table in tables] == before and sys.excepthook is hook


def test_a_module_without_a_hash_is_built_as_ever(start_watch: Start) -> None:
    class Unhashable(nn.Linear):
        __hash__ = None  # type: ignore[assignment]

    seen = start_watch(flags={"MODEL_BUILD": True})
    assert Unhashable(3, 3).weight.shape == (3, 3)
    assert seen.monitor.find_probe("model-build")._trouble is None
    seen.failures.clear()  # the finder of root modules has no use for it either, and says so
