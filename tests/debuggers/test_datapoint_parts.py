"""What a loader gave for a pass: inputs, labels, and whatever else stands in a batch."""

from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tdbg.core.config import Settings
from tdbg.debuggers.datapoint_parts import copy_structure, find_parts, split_batch
from tdbg.debuggers.run_capture import Capture
from tdbg.pages.read.page_set import PageSet
from tdbg.probes.catalog import CATALOG
from tdbg.runtime.rerun import Call
from tests.probes.conftest import Watch

X, Y, Z = torch.ones(2, 3), torch.tensor([0, 1]), torch.zeros(2)
Pair = namedtuple("Pair", ["picture", "kind"])


def takes(*given: object) -> Any:
    """A model that was given these."""
    return lambda value: any(value is one for one in given)


@pytest.mark.parametrize(
    ("content", "given", "expected"),
    [
        (X, [X], {"inputs": X}),
        ([X], [X], {"inputs": [X]}),
        ([X, Y], [X], {"inputs": X, "labels": Y}),
        ([X, Y], [], {"inputs": X, "labels": Y}),
        ([X, Y], [X, Y], {"inputs": [X, Y]}),
        ([Y, X], [X], {"inputs": X, "labels": Y}),
        ([X, Z, Y], [], {"inputs": [X, Z], "labels": Y}),
        ([X, Y, Z], [X], {"inputs": X, "labels": [Y, Z]}),
        ({"inputs": X, "labels": Y, "meta_info": Z}, [], {"inputs": X, "labels": Y, "meta_info": Z}),
        ({"image": X, "target": Y}, [X, Y], {"inputs": {"image": X}, "labels": Y}),
        ({"image": X, "kind": Y}, [X], {"inputs": {"image": X}, "labels": {"kind": Y}["kind"]}),
        ({"image": X, "kind": Y}, [], {"inputs": {"image": X, "kind": Y}}),
        ({"image": X, "y": Y, "label": Z}, [], {"inputs": {"image": X}, "labels": {"y": Y, "label": Z}}),
        ("text", [], {"inputs": "text"}),
    ],
)
def test_inputs_and_labels(content: Any, given: list[Any], expected: dict[str, Any]) -> None:
    assert str(split_batch(content, takes(*given))) == str(expected)


def test_a_copied_structure_keeps_what_the_program_takes_out() -> None:
    batch = {"x": X, "more": [Pair(Y, "cat"), (Z, 1)]}
    kept = copy_structure(batch)
    batch.pop("x")
    assert kept["x"] is X and kept["more"] == [{"picture": Y, "kind": "cat"}, [Z, 1]]


class Scored(nn.Module):
    """Takes its targets along."""

    def forward(self, tokens: Tensor, targets: Tensor | None = None, *rest: Tensor, **more: object) -> Tensor:
        return tokens


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((X, Y), {}, {"inputs": X, "labels": Y}),
        ((X,), {"targets": Y}, {"inputs": X, "labels": Y}),
        ((X,), {}, {"inputs": X}),
        ((X, Y, Z), {"scale": 2}, {"inputs": {"tokens": X, "0": Z, "scale": 2}, "labels": Y}),
        (({"tokens": X, "label": Y},), {}, {"inputs": {"tokens": X}, "labels": Y}),
        (({"tokens": X, "mask": Y},), {}, {"inputs": {"tokens": X, "mask": Y}}),
    ],
)
def test_without_a_batch_it_is_what_the_model_was_given(
    args: tuple[Any, ...], kwargs: dict[str, Any], expected: dict[str, Any]
) -> None:
    model = Scored()
    assert str(find_parts(None, model, Call.capture_lightweight(model, args, kwargs))) == str(expected)


class Named(nn.Module):
    """A model with a layer that is named as a part of the datapoint is."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = nn.Linear(4, 2)

    def forward(self, x_NF: Tensor) -> dict[str, Any]:
        return {"logits": self.batch(x_NF), "words": ["a", "b"]}


def start_capture(tmp_path: Path, *asked: str, **settings: Any) -> Watch:
    found = Watch(Settings(level="basic", max_overhead=50.0, capture=list(asked), **settings))
    found.monitor.lasting.append(Capture.with_folder(lambda: tmp_path / "rank0000"))
    found.monitor.activate_probes(CATALOG.select_probes("basic", {}))
    return found


def test_a_layer_of_that_name_is_still_there(tmp_path: Path) -> None:
    watched, model = start_capture(tmp_path, "batch", "prediction", "batch:output"), Named()
    with torch.no_grad():
        model(torch.ones(3, 4))
    watched.monitor.finish_run()
    watched.monitor.detach()
    (point,) = PageSet.open(tmp_path)
    assert list(point.tensors) == ["inputs", "batch:output", "outputs.logits"]
    assert point.scalars["outputs.words.1"] == "b"
    assert "capture-part-batch" in watched.notes and not watched.failures


def test_a_batch_is_kept_as_the_loader_gave_it(tmp_path: Path) -> None:
    """Programs scale what they were given, take the labels out, and fetch ahead."""
    watched, model = start_capture(tmp_path, "batch"), Named()
    data = [{"x": torch.full((4,), float(n)), "label": n, "name": f"n{n}"} for n in range(8)]
    waiting = list(DataLoader(data, batch_size=2))
    with torch.no_grad():
        for batch in waiting:
            batch.pop("label")
            model(batch.pop("x"))
    watched.monitor.finish_run()
    watched.monitor.detach()
    points = list(PageSet.open(tmp_path))
    assert [point.tensors["labels"].array().tolist() for point in points] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [point.tensors["inputs.x"].array()[:, 0].tolist() for point in points] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [point.scalars["inputs.name.0"] for point in points] == ["n0", "n2", "n4", "n6"]
    assert [point.keys for point in points] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert not watched.failures


def test_statistics_of_them_alone(tmp_path: Path) -> None:
    watched, model = start_capture(tmp_path, "batch", "prediction", capture_stats=True), Named()
    with torch.no_grad():
        model(torch.ones(3, 4))
    watched.monitor.detach()
    (point,) = PageSet.open(tmp_path)
    assert not point.tensors and point.scalars["inputs/mean"] == 1.0 and "outputs.logits/std" in point.scalars
