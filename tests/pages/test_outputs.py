"""`load_debug_outputs`: one datapoint, nested as it was captured, whoever wrote its page."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tdbg.core.errors import TdbgError
from tdbg.pages.format.nested_outputs import rebuild_nested
from tdbg.pages.outputs import load_debug_outputs
from tdbg.pages.pickle_reader.conversion import Conversion
from tests.pages.arrays import ENVIRONMENT, make_noise, to_bfloat16, write_pages
from tests.pages.foreign import Point, dump_joblib


def make_outputs(n: int = 0) -> dict[str, Any]:
    """What several debuggers may give."""
    return {
        "FeatureMap": {
            "feature_map": torch.randn(1, 3, 20, 20, generator=torch.Generator().manual_seed(n)),
            "stats": {"mean": 0.5 + n, "min": math.nan, "max": math.inf, "shape": (1, 3, 20, 20)},
            "layer_name": "layer é",
        },
        "Numpy": make_noise(50, seed=n),
        "Types": {"bf16": to_bfloat16([1.5, 2.5]), "fp8": torch.tensor([1.0, 448.0]).to(torch.float8_e4m3fn)},
        "Shapes": [torch.zeros(0, 3), torch.tensor(2), {"deep": [(torch.ones(2), "a")]}],
        "Numbers": {0: 1, 10: 2, 2: torch.ones(1), 0.5: "half", None: True, "a/b": 3, "ä": 4},
        "Odd": {"none": None, "complex": 1 - 2j, "nothing": {}, "no list": [], "no tuple": (), "bytes": b"xyz"},
        "Set": frozenset({1, 2}),
        "Long": "x" * 100_000,
        "Negative zero": -0.0,
        "Alone": 7,
    }


def assert_equal(found: Any, wanted: Any) -> None:
    """The same types all the way down, and the same values."""
    if isinstance(wanted, torch.Tensor):
        wide = wanted.float() if wanted.dtype in (torch.bfloat16, torch.float8_e4m3fn) else wanted
        wanted = wide.numpy()
    if isinstance(wanted, np.ndarray):
        assert isinstance(found, np.ndarray) and found.shape == wanted.shape and found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
        return
    assert type(found) is type(wanted), (found, wanted)
    if isinstance(wanted, dict):
        assert set(found) == set(wanted) and {type(key) for key in found} == {type(key) for key in wanted}
        for key, value in wanted.items():
            assert_equal(found[key], value)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_equal(one, other)
    else:
        assert found == wanted or (found != found and wanted != wanted)


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """Epochs 1 and 2 of another tool's run."""
    for epoch in (1, 2):
        folder = tmp_path / "old" / f"epoch_{epoch}" / "debugger"
        folder.mkdir(parents=True)
        (folder / "page_0.pkl").write_bytes(dump_joblib({n: make_outputs(10 * epoch + n) for n in range(3)}))
    return tmp_path / "old"


@pytest.fixture
def converted_run(old_run: Path, tmp_path: Path) -> Path:
    """The same as pages of tdbg."""
    assert Conversion(old_run, tmp_path / "new").convert_and_compare().is_whole
    return tmp_path / "new"


@pytest.mark.parametrize("which", ["old_run", "converted_run"])
def test_a_datapoint_is_what_was_captured(which: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(which)
    for epoch in (1, 2):
        for idx in (1, "1"):
            found = load_debug_outputs(path, idx, epoch=epoch)
            assert list(found) == list(make_outputs()) or which == "converted_run"
            assert_equal(found, make_outputs(10 * epoch + 1))
    assert math.copysign(1, load_debug_outputs(path, 0, epoch=1)["Negative zero"]) == -1


@pytest.mark.parametrize("which", ["old_run", "converted_run"])
def test_tensors_of_torch_in_their_own_types(which: str, request: pytest.FixtureRequest) -> None:
    found = load_debug_outputs(str(request.getfixturevalue(which)), 2, epoch=2, as_torch=True)
    wanted = make_outputs(22)
    assert found["Types"]["fp8"].dtype is torch.float8_e4m3fn and found["Types"]["bf16"].dtype is torch.bfloat16
    assert torch.equal(found["Types"]["fp8"].float(), wanted["Types"]["fp8"].float())
    assert torch.equal(found["FeatureMap"]["feature_map"], wanted["FeatureMap"]["feature_map"])
    assert found["Shapes"][0].shape == (0, 3) and found["Shapes"][1].item() == 2
    assert found["Odd"]["bytes"] == b"xyz" and len(found["Long"]) == 100_000


@pytest.mark.parametrize("which", ["old_run", "converted_run"])
def test_what_cannot_be_found(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = request.getfixturevalue(which)
    for words, what in (
        ({"idx": 9}, "no datapoint 9"),
        ({"idx": 1}, r"epochs \[1, 2\]"),
        ({"idx": 1, "epoch": 3}, "epoch 3"),
    ):
        with pytest.raises(TdbgError, match=what):
            load_debug_outputs(path, **words)  # type: ignore[arg-type]
    with pytest.raises(TdbgError):
        load_debug_outputs(tmp_path / "nowhere", 1)


def test_of_a_datapoint_that_is_there_twice_the_last(tmp_path: Path) -> None:
    write_pages(tmp_path / "p", [(1, {"D/x": np.array([n])}, {}) for n in range(2)])
    assert load_debug_outputs(tmp_path / "p", 1)["D"]["x"].tolist() == [1]


def test_a_row_of_a_batch(tmp_path: Path) -> None:
    more = {"keys": [7, 8], "split": ["layer:output", "loss"]}
    write_pages(tmp_path / "p", [(0, {"layer:output": make_noise(2, 3), "loss": [0.5, 0.25]}, more)])
    found = load_debug_outputs(tmp_path / "p", 8)
    assert found["loss"] == 0.25 and np.array_equal(found["layer:output"], make_noise(2, 3)[1])


def test_the_epoch_of_a_folder_counts(tmp_path: Path) -> None:
    for epoch in (0, 10):
        write_pages(tmp_path / f"epoch_{epoch}" / "debugger", [(1, {"D/x": np.array([epoch])}, {})])
    assert load_debug_outputs(tmp_path, 1, epoch=10)["D"]["x"].tolist() == [10]


@pytest.mark.parametrize("which", ["old_run", "converted_run"])
def test_what_is_refused_is_a_text(which: str, tmp_path: Path) -> None:
    (tmp_path / "page_0.pkl").write_bytes(dump_joblib({0: {"Mine": Point(1, 2), "x": 3}}))
    path = tmp_path / "page_0.pkl"
    if which == "converted_run":
        Conversion(path, tmp_path / "new").convert_and_compare()
        path = tmp_path / "new"
    assert load_debug_outputs(path, 0) == {"Mine": "<refused tests.pages.foreign.Point>", "x": 3}


def test_quantised_and_sparse(tmp_path: Path) -> None:
    given = {
        "q": torch.quantize_per_tensor(torch.tensor([0.5, 1.0]), 0.5, 1, torch.qint8),
        "c": torch.quantize_per_channel(
            torch.tensor([[0.5, 1.0], [2.0, 6.0]]), torch.tensor([0.5, 2.0]), torch.tensor([1, 0]), 0, torch.qint8
        ),
        "s": torch.eye(3).to_sparse(),
    }
    (tmp_path / "page_0.pkl").write_bytes(dump_joblib({0: given}))
    assert Conversion(tmp_path / "page_0.pkl", tmp_path / "new").convert_and_compare().is_whole
    for path in (tmp_path / "page_0.pkl", tmp_path / "new"):
        for as_torch in (False, True):
            found = load_debug_outputs(path, 0, as_torch=as_torch)
            assert set(found) == {"q", "c", "s"} and found["c"].tolist() == [[0.5, 1.0], [2.0, 6.0]]
            assert found["q"].tolist() == [0.5, 1.0] and found["s"]["values"].tolist() == [1, 1, 1]


def test_nesting() -> None:
    assert rebuild_nested([("a/b", 1), ("a/c/0", 2)]) == {"a": {"b": 1, "c": {"0": 2}}}
    assert rebuild_nested([("a/10", 1), ("a/9", 2)], {"a": {"list": ""}}) == {"a": [2, 1]}
    assert rebuild_nested([("a", 1), ("a/b", 2)]) == {"a": {"": 1, "b": 2}}
    assert rebuild_nested([("a", "<refused x>"), ("a/0", 2)], {"a": {"refused": "x"}}) == {"a": "<refused x>"}
    assert rebuild_nested([("0", 1)], {"": {"list": ""}}) == {"": [1]}
    assert rebuild_nested([], {"a": {"tuple": ""}, "b/c": {"dict": ""}}) == {"a": (), "b": {"c": {}}}
    assert rebuild_nested([("a/x", 1)], {"a": {"list": ""}}) == {"a": {"x": 1}}  # a note that cannot be true
    assert rebuild_nested([("a/1", 1)], {"a": {"dict": {"1": 1}}}) == {"a": {1: 1}}


def test_torch_is_loaded_when_it_is_asked_for_alone(converted_run: Path) -> None:
    code = (
        "import sys; from tdbg.pages.outputs import load_debug_outputs as load;"
        " load(sys.argv[1], 1, epoch=1); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(converted_run)], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
