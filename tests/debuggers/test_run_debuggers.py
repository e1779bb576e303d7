"""`--debugger` inside the test process: where a second pass is not made, which gradients belong to which pass."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tdbg.core.capture import DATAPOINT_DEBUGGERS, LAYER_DEBUGGERS, DebuggerSpec, check_debugger_names
from tdbg.core.config import Settings
from tdbg.core.errors import TdbgError
from tdbg.core.events import Observation
from tdbg.debuggers import DEBUGGERS, hooks
from tdbg.debuggers.guarded_pass import explain_obstacle, without_trace
from tdbg.debuggers.run_capture import Capture
from tdbg.debuggers.run_debuggers import iter_entries
from tdbg.pages.read.page_set import PageSet
from tdbg.probes.catalog import CATALOG
from tdbg.runtime.rerun import Call
from tests.debuggers.conftest import small_cnn
from tests.probes.conftest import Watch

PICTURES = torch.linspace(-1, 1, 128).reshape(2, 1, 8, 8)


@pytest.fixture(autouse=True)
def no_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of tdbg's own is in the context of one monitor, that of the test."""
    monkeypatch.setattr("tdbg.debuggers.hooks.AROUND_OWN_PASSES", [])


def start_debuggers(tmp_path: Path, *names: str, **settings: Any) -> Watch:
    found = Watch(Settings(level="basic", max_overhead=50.0, debugger=list(names), **settings))
    hooks.AROUND_OWN_PASSES.append(found.monitor.own_pass)
    found.monitor.lasting.append(Capture.with_folder(lambda: tmp_path / "rank0000"))
    found.monitor.activate_probes(CATALOG.select_probes("basic", {}))
    return found


def end_run(watched: Watch) -> dict[str, str]:
    """End it; returns what was skipped, and why."""
    watched.monitor.finish_run()
    watched.monitor.detach()
    assert not watched.failures
    done = [event for event in watched.events if isinstance(event, Observation) and event.part == "DONE"]
    return dict(done[-1].values.get("skipped") or {}) if done else {}


def test_the_names_that_need_no_look_are_all_there_are() -> None:
    assert sorted((*LAYER_DEBUGGERS, *DATAPOINT_DEBUGGERS)) == sorted(one.name for one in iter_built_in())


def iter_built_in() -> Iterator[Any]:
    return (one for one in DEBUGGERS if one.__module__.startswith("tdbg."))


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("gradcam:layer4", ("gradcam", "layer4")),
        ("feature_map: re:a:b ", ("feature-map", "re:a:b")),
        ("labels", ("labels", "")),
        ("of_others:7", ("of_others", "7")),
    ],
)
def test_names(text: str, spec: tuple[str, str]) -> None:
    assert DebuggerSpec.parse(text) == spec
    check_debugger_names([text], ["of_others"])


@pytest.mark.parametrize("text", ["", ":a", "attention", "gradcam:", "of_others"])
def test_what_cannot_be_meant(text: str) -> None:
    with pytest.raises(TdbgError, match="--debugger"):
        check_debugger_names([text], ["others"])


def test_a_layer_that_is_not_there_is_said(tmp_path: Path) -> None:
    watched = start_debuggers(tmp_path, "gradcam:nope", "feature_map:0")
    with torch.no_grad():
        small_cnn().eval()(PICTURES)
    assert end_run(watched) == {}
    (missing,) = [one for one in watched.events if isinstance(one, Observation) and one.part == "MISSING"]
    assert missing.values["option"] == "--debugger gradcam"
    assert {path.partition("/")[0] for point in PageSet.open(tmp_path) for path in point.tensors} == {"feature-map:0"}


class FSDPModule(nn.Sequential):
    """Named as the class whose passes communicate."""


def test_where_a_second_pass_is_not_made() -> None:
    model = small_cnn()
    call = Call.capture_call(model, (PICTURES.clone(),), {})
    assert call is not None and explain_obstacle(model, call) == ""
    handle = model[0].register_forward_hook(lambda *_: None)
    assert "0 has hooks of the program" in explain_obstacle(model, call)
    handle.remove()
    assert "FSDPModule runs collectives" in explain_obstacle(FSDPModule(model), call)
    model[1].compile()
    assert "the model is compiled" in explain_obstacle(model, call)
    call.args[0].add_(1)
    assert "inputs in place" in explain_obstacle(small_cnn(), call)


class Counts(nn.Module):
    """Sets attributes, prints and draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.own = 0, torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        print("here")
        self.count, self.cache = self.count + 1, x
        return x + torch.rand(1, generator=self.own)


def test_a_second_pass_leaves_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    model = Counts()
    state, held = model.own.get_state(), list(vars(model))
    with without_trace(model):
        model(torch.ones(1))
    assert capsys.readouterr().out == "" and model.count == 0 and list(vars(model)) == held
    assert torch.equal(model.own.get_state(), state)


def test_gradients_belong_to_their_pass_where_they_are_accumulated(tmp_path: Path) -> None:
    watched, model = start_debuggers(tmp_path, "gradients:head"), nn.Sequential()
    model.add_module("head", nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for scale in (1.0, 10.0):
            (scale * model(torch.ones(1, 2))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert end_run(watched) == {}
    points = list(PageSet.open(tmp_path))
    assert [point.tensors["gradients:head/output_grad"].array().item() for point in points] == [1.0, 10.0] * 2
    sums = [point.tensors["gradients:head/parameter_grads/bias"].array().item() for point in points]
    assert sums == [1.0, 11.0] * 2


def test_passes_that_share_a_backward_keep_their_own_gradients(tmp_path: Path) -> None:
    """A discriminator sees real and made pictures before one backward pass."""
    watched, model = start_debuggers(tmp_path, "gradients:head"), nn.Sequential()
    model.add_module("head", nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model(torch.ones(1, 2))
    (1.0 * model(torch.ones(1, 2)) + 10.0 * model(-torch.ones(1, 2))).sum().backward()
    optimizer.step()
    assert end_run(watched) == {}
    points = [point for point in PageSet.open(tmp_path) if "gradients:head/output_grad" in point.tensors]
    assert [point.tensors["gradients:head/output_grad"].array().item() for point in points] == [1.0, 10.0]
    assert not any("earlier_calls" in path for point in points for path in (*point.tensors, *point.scalars))


def test_a_pass_that_raised_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    watched, model = start_debuggers(tmp_path, "gradients:0"), nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 2))
    model[1] = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    end_run(watched)
    points = [point for point in PageSet.open(tmp_path) if "gradients:0/output_grad" in point.tensors]
    assert len(points) == 1
    assert not any("earlier_calls" in path for path in (*points[0].tensors, *points[0].scalars))


def test_a_pass_without_backward_says_so(tmp_path: Path) -> None:
    watched, model = start_debuggers(tmp_path, "gradients:0"), small_cnn()
    model(PICTURES)
    assert end_run(watched) == {}
    (point,) = PageSet.open(tmp_path)
    assert point.scalars["gradients:0/note"].startswith("no gradient available")


def test_hooks_are_gone_after_each_pass_and_after_one_that_raised(tmp_path: Path, count_hooks: Any) -> None:
    watched, model = start_debuggers(tmp_path, "feature_map:*", "gradcam:0"), small_cnn().eval()
    before = count_hooks(model)
    with torch.no_grad():
        model(PICTURES)
        assert count_hooks(model) == before
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 9, 9, 9))
        model(PICTURES)
    assert count_hooks(model) == before
    assert end_run(watched) == {}
    assert next(len(point.tensors) for point in PageSet.open(tmp_path)) == 7 + 2


def test_the_root_itself_is_a_layer(tmp_path: Path) -> None:
    watched, model = start_debuggers(tmp_path, "feature_map:re:"), small_cnn().eval()
    with torch.no_grad():
        expected = model(PICTURES)
    assert end_run(watched) == {}
    (point,) = PageSet.open(tmp_path)
    assert point.tensors["feature-map/feature_map"].array().tolist() == expected.tolist()


def test_entries() -> None:
    value = {"a/b": {"c": [1, 2]}, 3: {}, "d": None}
    assert list(iter_entries("x", value)) == [("x/a\\x2fb/c", [1, 2]), ("x/3", {}), ("x/d", None)]
