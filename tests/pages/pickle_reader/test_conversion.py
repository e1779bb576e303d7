"""`tdbg inspect-pages convert`: everything that was there, in order, compared; what is refused is named."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch

from tdbg.pages.outputs import load_debug_outputs
from tdbg.pages.pickle_reader.conversion import Conversion, find_differences
from tdbg.pages.read.page_set import PageSet
from tests.pages.arrays import ENVIRONMENT, run_inspect_pages
from tests.pages.foreign import HOSTILE, TENSORS, Runs, dump_joblib, make_page, to_bytes


def write_tree(root: Path) -> Path:
    """A run of another tool: two epochs whose numbers sort otherwise as text, eleven pages, and a test."""
    for number in range(11):
        folder = root / "epoch_2" / "debugger"
        folder.mkdir(parents=True, exist_ok=True)
        joblib.dump({number: {"D": {"x": torch.full((3,), float(number))}}}, folder / f"page_{number}.pkl")
    for folder, first in ((root / "epoch_10" / "debugger", 100), (root / "debugger", 0)):
        folder.mkdir(parents=True)
        (folder / "page_0.pkl").write_bytes(pickle.dumps(make_page(3, first)))
    return root


def test_a_tree_is_converted_in_order(tmp_path: Path) -> None:
    done = run_inspect_pages("convert", write_tree(tmp_path / "old"), "-o", tmp_path / "new", "--json")
    assert done.returncode == 0 and "every value is the same" in done.stderr
    data = json.loads(done.stdout)["data"]
    assert (data["datapoints"], data["tensors"], data["whole"]) == (17, 29, True)
    points = list(PageSet.open(tmp_path / "new"))
    assert [(p.epoch, p.key) for p in points] == [
        *((None, n) for n in range(3)),
        *((2, n) for n in range(11)),
        *((10, n) for n in range(100, 103)),
    ]
    assert points[3].more["source"] == "epoch_2/debugger/page_0.pkl"
    wanted = make_page(3, 0)[1]
    assert points[1].tensors["FeatureMap/feature_map"].read() == to_bytes(wanted["FeatureMap"]["feature_map"])
    assert points[1].tensors["Numpy"].read() == wanted["Numpy"].tobytes()
    assert points[1].scalars["FeatureMap/stats/mean"] == 1.5 and points[1].scalars["FeatureMap/layer_name"] == "layer1"


def test_every_type(tmp_path: Path) -> None:
    values = {name: make() for name, make in TENSORS.items()}
    (tmp_path / "page_0.pkl").write_bytes(dump_joblib({"k": {"D": values}}))
    found = Conversion(tmp_path / "page_0.pkl", tmp_path / "new").convert_and_compare()
    assert found.is_whole and found.tensors == len(TENSORS)
    (point,) = PageSet.open(tmp_path / "new")
    for name, value in values.items():
        tensor = point.tensors[f"D/{name}"]
        assert tensor.read() == to_bytes(value) and tensor.shape == tuple(value.shape), name
        assert tensor.dtype.name == str(value.dtype).removeprefix("torch."), name


def test_an_idx_that_comes_twice_is_kept_twice(tmp_path: Path) -> None:
    for number in (0, 1):
        joblib.dump({5: {"D": number}}, tmp_path / f"page_{number}.pkl")
    found = Conversion(tmp_path, tmp_path / "new").convert_and_compare()
    assert found.is_whole
    assert [point.scalars["D"] for point in PageSet.open(tmp_path / "new").find(5)] == [0, 1]


def test_keys_of_other_kinds(tmp_path: Path) -> None:
    keys: list[Any] = [(1, 2), 2.5, True, "a\n", -7, 2**70, torch.tensor([3])]
    (tmp_path / "page_0.pkl").write_bytes(pickle.dumps({key: {"D": 1} for key in keys}))
    assert Conversion(tmp_path, tmp_path / "new").convert_and_compare().is_whole
    assert [p.key for p in PageSet.open(tmp_path / "new")] == ["(1, 2)", "2.5", "True", "a\n", -7, 2**70, 3]


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_runs_and_what_is_refused_is_named(name: str, tmp_path: Path) -> None:
    make, names = HOSTILE[name]
    canary = tmp_path / "canary"
    (tmp_path / "page_0.pkl").write_bytes(make(canary))
    (tmp_path / "page_1.pkl").write_bytes(pickle.dumps({1: {"D": torch.ones(2)}}))
    found = Conversion(tmp_path, tmp_path / "new").convert_and_compare()
    assert not canary.exists() and not found.is_whole and not found.mismatches
    assert set(names) <= set(found.refused)
    assert PageSet.open(tmp_path / "new").find(1)[0].tensors["D"].numbers() == [1, 1]


def test_a_refused_value_among_good_ones(tmp_path: Path) -> None:
    given = {0: {"D": torch.ones(3), "bad": Runs(tmp_path / "canary")}, 1: {"D": torch.zeros(3)}}
    (tmp_path / "page_0.pkl").write_bytes(dump_joblib(given))
    done = run_inspect_pages("convert", tmp_path, "-o", tmp_path / "new")
    assert done.returncode == 1 and "refused, 1 time: posix.system" in done.stderr
    assert "every value is the same" in done.stderr and not (tmp_path / "canary").exists()
    points = list(PageSet.open(tmp_path / "new"))
    assert [point.tensors["D"].numbers() for point in points] == [[1, 1, 1], [0, 0, 0]]
    assert "<refused posix.system" in points[0].scalars["bad"]


def test_a_torn_page_gives_what_it_holds(tmp_path: Path) -> None:
    whole = pickle.dumps(make_page(5))
    (tmp_path / "page_0.pkl").write_bytes(whole[: int(len(whole) * 0.7)])
    done = run_inspect_pages("convert", tmp_path, "-o", tmp_path / "new")
    assert done.returncode == 1 and "torn at byte" in done.stderr
    assert [point.key for point in PageSet.open(tmp_path / "new")] == [0, 1, 2]


def test_pages_are_of_the_size_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "page_0.pkl").write_bytes(pickle.dumps({n: {"D": torch.zeros(50_000)} for n in range(10)}))
    assert run_inspect_pages("convert", tmp_path, "-o", tmp_path / "new", "--page-size", "500KB").returncode == 0
    sizes = [path.stat().st_size for path in (tmp_path / "new").glob("*.safetensors")]
    assert len(sizes) == 5 and max(sizes) <= 500_000


def test_what_cannot_be_stored_is_told_and_the_rest_is(tmp_path: Path) -> None:
    many = {str(n): "x" * 60_000 for n in range(300)}  # 18 MB of text in one record
    (tmp_path / "page_0.pkl").write_bytes(pickle.dumps({0: {"D": 1}, 1: many, 2: {"D": 3}}))
    found = Conversion(tmp_path, tmp_path / "new").convert_and_compare()
    assert not found.is_whole and len(found.lost) == 1 and "datapoint 1" in found.lost[0] and not found.mismatches
    assert [point.key for point in PageSet.open(tmp_path / "new")] == [0, 2]


def test_long_texts_are_tensors(tmp_path: Path) -> None:
    text = "é\ud800" * 40_000
    (tmp_path / "page_0.pkl").write_bytes(pickle.dumps({0: {"D": {"long": text, "short": "é"}}}))
    assert Conversion(tmp_path, tmp_path / "new").convert_and_compare().is_whole
    (point,) = PageSet.open(tmp_path / "new")
    assert point.scalars == {"D/short": "é"} and point.tensors["D/long"].note == {"text": ""}
    assert (
        load_debug_outputs(tmp_path / "new", 0)["D"]["long"]
        == load_debug_outputs(tmp_path / "page_0.pkl", 0)["D"]["long"]
    )


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("old",), "missing option: -o DIR"),
        (("old", "-o", "old"), "already exists"),
        (("old", "-o", "old/page_0.pkl"), "already exists"),
        (("nowhere", "-o", "new"), "nowhere"),
        (("empty", "-o", "new"), "no page_N.pkl"),
        (("-o", "new"), "name one path"),
        (("old", "-o", "new", "--page-size", "much"), "not a size"),
        (("text", "-o", "new"), "nothing could be read"),
    ],
)
def test_wrong_use(words: tuple[str, ...], what: str, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "old" / "page_0.pkl").write_bytes(pickle.dumps({0: {"D": 1}}))
    (tmp_path / "text").write_text("no page at all")
    done = run_inspect_pages("convert", *words, cwd=tmp_path)
    assert done.returncode == 2 and what in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not (tmp_path / "new").exists() or not any((tmp_path / "new").iterdir())


@pytest.mark.parametrize("words", [(), ("ls",), ("diff", "--epochs", "0,1"), ("export", "npz", "-o", "x.npz")])
def test_other_commands_name_this_one(words: tuple[str, ...], tmp_path: Path) -> None:
    write_tree(tmp_path / "old")
    done = run_inspect_pages(*words[:1], "old", *words[1:], cwd=tmp_path)
    assert done.returncode == 2 and "pickles of another tool" in done.stderr
    assert "`tdbg inspect-pages convert old -o DIR`" in done.stderr


def test_the_comparison_sees_a_single_bit(tmp_path: Path) -> None:
    given = {"x": torch.arange(4.0), "nan": float("nan"), "zero": 0.0, "n": 1, "l": [1, 2]}
    (tmp_path / "page_0.pkl").write_bytes(pickle.dumps({0: given}))
    conversion = Conversion(tmp_path, tmp_path / "new").convert_and_compare()
    stored, (point,) = next(conversion._reread_legacy()), PageSet.open(tmp_path / "new")
    assert find_differences(stored, point) == []
    item = stored.items[0]
    flipped = bytes([item.data[0] ^ 1]) + item.data[1:]
    for changed in (
        stored._replace(items=[item._replace(data=flipped)]),
        stored._replace(items=[item._replace(shape=(2, 2))]),
        stored._replace(items=[item._replace(dtype="int32")]),
        stored._replace(items=[]),
        stored._replace(scalars={**stored.scalars, "zero": -0.0}),
        stored._replace(scalars={**stored.scalars, "n": True}),
        stored._replace(scalars={**stored.scalars, "nan": 1.0}),
        stored._replace(scalars={k: v for k, v in stored.scalars.items() if k != "n"}),
        stored._replace(key="0"),
        stored._replace(fields={**stored.fields, "epoch": 1}),
        stored._replace(fields={**stored.fields, "notes": None}),
    ):
        assert len(find_differences(changed, point)) == 1, changed


def test_a_page_that_changes_while_it_is_converted_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page_0.pkl").write_bytes(pickle.dumps({0: {"D": torch.ones(3)}}))
    conversion = Conversion(tmp_path, tmp_path / "new")
    compare = conversion._compare

    def changed(progress: Any) -> None:
        (tmp_path / "page_0.pkl").write_bytes(pickle.dumps({0: {"D": torch.zeros(3)}, 1: {"D": 1}}))
        compare(progress)

    monkeypatch.setattr(conversion, "_compare", changed)
    conversion.convert_and_compare()
    assert conversion.mismatches == ["datapoint 0: D has other values", "fewer datapoints than in the original"]
    assert not conversion.is_whole


def test_a_full_disk_is_an_error(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "page_0.pkl").write_bytes(pickle.dumps({n: {"D": torch.zeros(200_000)} for n in range(5)}))
    done = run_inspect_pages("convert", tmp_path / "page_0.pkl", "-o", small_disk / "new")
    assert done.returncode == 2 and "No space left" in done.stderr and "Traceback" not in done.stderr


def test_memory_is_bounded_by_a_datapoint_and_torch_is_not_loaded(tmp_path: Path) -> None:
    given = {n: {"D": np.full(1_000_000, n, np.float32)} for n in range(64)}
    joblib.dump(given, tmp_path / "page_0.pkl")
    code = (
        "import sys; from tdbg.cli import main; code = main(sys.argv[1:]);"
        " print(code, 'torch' in sys.modules, open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    words = ["inspect-pages", "convert", str(tmp_path), "-o", str(tmp_path / "new")]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True
    )
    code_, torch_, peak_kb = done.stdout.split()
    assert (code_, torch_) == ("0", "False") and int(peak_kb) < 90_000, done.stdout  # of 256 MB
    assert os.path.getsize(tmp_path / "page_0.pkl") > 250_000_000
