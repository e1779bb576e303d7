"""`tdbg inspect-pages diff`: the first difference, the tolerances, layers that moved, sides that lack something."""

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tdbg.pages.diff.alignment import TensorForm, align_tensors
from tdbg.pages.diff.tensor_distance import TOLERANCES, compare_scalars, compare_tensors
from tdbg.pages.format.dtypes import DTYPES
from tdbg.pages.read.page_set import PageSet
from tests.pages.arrays import make_noise, run_inspect_pages, to_bfloat16, write_pages

PATHS = ("layers.0:output", "layers.1:output", "layers.2:output")


def make_datapoints(count: int = 4, **changed: Any) -> list[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """Datapoints of one structure."""
    return [
        (f"k{n}", {path: make_noise(3, 4, seed=10 * n + at) for at, path in enumerate(PATHS)} | {"loss": n / 3}, {})
        for n in range(count)
    ]


def run_diff(*words: object) -> tuple[int, dict[str, Any]]:
    done = run_inspect_pages("diff", *words, "--json")
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)["data"]


def compare_values(tmp_path: Path, a: Any, b: Any, allowed: float | None = None) -> Any:
    for name, value in (("a", a), ("b", b)):
        write_pages(tmp_path / name, [(0, {"x": value}, {})])
    one, other = (next(iter(PageSet.open(tmp_path / name))).tensors["x"] for name in ("a", "b"))
    return compare_tensors(one, other, allowed)


# tensors


@pytest.mark.parametrize("name", ["float32", "float16", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_the_tolerance_of_a_type_lies_between_rounding_and_a_difference(name: str, tmp_path: Path) -> None:
    dtype = getattr(torch, name)
    base = torch.linspace(0.5, 3.0, 1000, dtype=torch.float64)
    for factor, differs in ((0.4, False), (3.0, True)):
        moved = base + TOLERANCES[name] * factor * 3.0
        found = compare_values(tmp_path / str(factor), base.to(dtype), moved.to(dtype))
        assert found.differs is differs and found.tolerance == TOLERANCES[name]


def test_integers_and_bools_have_to_be_equal(tmp_path: Path) -> None:
    big = np.array([2**60, 2**60 + 1, 5])
    found = compare_values(tmp_path / "i", big, big + np.array([0, 1, 0]))
    assert found.differs and found.differing == 1 and found.error > 0  # one float for both
    assert compare_values(tmp_path / "b", np.array([True, False]), np.array([True, True])).differs
    assert not compare_values(tmp_path / "same", big, big.copy()).differs


def test_nan_and_infinity_are_equal_to_themselves_alone(tmp_path: Path) -> None:
    a = np.array([1, np.nan, np.inf, -np.inf, 0.0], np.float32)
    b = np.array([1.000001, np.nan, np.inf, -np.inf, -0.0], np.float32)
    assert not compare_values(tmp_path / "same", a, b).differs
    for n, (at, value) in enumerate([(0, np.nan), (1, 1.0), (2, -np.inf), (3, 3e38), (4, np.inf)]):
        other = b.copy()
        other[at] = value
        found = compare_values(tmp_path / str(n), a, other)
        assert found.error == math.inf and found.where == (at,) and found.differing == 1


def test_the_error_is_relative_to_the_value_or_the_tensor(tmp_path: Path) -> None:
    a = np.ones(1000, np.float64)
    a[3] = 1e-12  # what cancelling leaves
    b = a.copy()
    b[3] = 2e-9
    assert not compare_values(tmp_path / "cancel", a, b).differs
    a[5], b[5] = 1e6, 1e6 * (1 + 5e-8)  # an outlier, rounded
    assert not compare_values(tmp_path / "outlier", a, b).differs
    b[7] = 1 + 1e-2 * 1e6
    found = compare_values(tmp_path / "moved", a, b)
    assert found.differs and found.where == (7,) and (found.a, found.b) == (1.0, b[7])
    assert found.apart == pytest.approx(1e4)


def test_values_whose_squares_overflow(tmp_path: Path) -> None:
    a = np.full(10, 1e300)
    assert not compare_values(tmp_path / "same", a, a * (1 + 1e-9)).differs
    assert compare_values(tmp_path / "other", a, a * 1.01).error == pytest.approx(0.0099, rel=0.01)
    assert compare_values(tmp_path / "zero", np.zeros(3), np.array([0, 1e-30, 0])).differs


def test_tensors_of_several_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdbg.pages.diff.tensor_distance.CHUNK_BYTES", 64)
    monkeypatch.setattr("tdbg.pages.read.tensor_slices.flat_parts.__defaults__", (64,))
    a = make_noise(10, 33)
    b = a.copy()
    b[7, 30] += 1
    found = compare_values(tmp_path / "f", a, b)
    assert (found.where, found.differing, found.total) == ((7, 30), 1, 330)
    wide = compare_values(tmp_path / "w", a, to_bfloat16(b))
    assert wide.differing == 1 and wide.where == (7, 30) and wide.tolerance == 1e-2 and not wide.reason


def test_the_root_mean_square_of_several_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdbg.pages.read.tensor_slices.flat_parts.__defaults__", (64,))
    value = np.geomspace(1e-3, 1e200, 100)  # each piece larger than the one before
    value[50] = 0
    other = value.copy()
    other[50] = 1e196
    rms = np.sqrt(np.square(value / 1e200).mean()) * 1e200
    assert compare_values(tmp_path / "up", value, other).error == pytest.approx(1e196 / rms, rel=1e-6)
    assert compare_values(tmp_path / "down", value[::-1].copy(), other[::-1].copy()).error == pytest.approx(
        1e196 / rms, rel=1e-6
    )


def test_shapes_and_kinds_that_differ(tmp_path: Path) -> None:
    shape = compare_values(tmp_path / "s", make_noise(2, 3), make_noise(3, 2))
    assert shape.differs and shape.reason == "shape [2, 3] became [3, 2]"
    kind = compare_values(tmp_path / "k", np.ones(3, np.float32), np.ones(3, np.int64))
    assert kind.differs and kind.reason == "float32 became int64" and kind.error == 0
    packed = compare_values(
        tmp_path / "p", torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), np.zeros(4, np.float32)
    )
    assert packed.reason == "float4_e2m1fn_x2 became float32"


def test_every_float_type_has_a_tolerance() -> None:
    assert {d.name for d in DTYPES.values() if d.kind in ("float", "complex")} == set(TOLERANCES)


@pytest.mark.parametrize(
    ("a", "b", "differs"),
    [
        (1.0, 1.0 + 1e-7, False),
        (1.0, 1.001, True),
        (math.nan, math.nan, False),
        (math.nan, 1.0, True),
        (math.inf, math.inf, False),
        (math.inf, -math.inf, True),
        (0.0, 1e-9, True),
        (1, 1.0, False),
        (True, 1, True),
        ("a", "a", False),
        ("a", "b", True),
        ([1, math.nan], [1, math.nan], False),
        (None, 0, True),
        (1 + 1j, 1 + 1j, False),
        (10**400, 10**400 + 1, False),
    ],
)
def test_figures(a: Any, b: Any, differs: bool) -> None:
    assert compare_scalars(a, b).differs is differs


# which is which


def make_forms(*paths: str) -> list[TensorForm]:
    return [TensorForm(path, "float32", (4,)) for path in paths]


def make_numbered_forms(*sizes: int) -> list[TensorForm]:
    """The layers of a Sequential: 0:out, 1:out, ..."""
    return [TensorForm(f"{at}:out", "float32", (size,)) for at, size in enumerate(sizes)]


def test_figures_beyond_a_float() -> None:
    large, wide = 10**400, complex(1.7e308, 1.7e308)
    for a, b in ((large, 1.0), (wide, 1.0), (wide, -wide), (math.inf, 1.0), (math.nan, 1.0)):
        gap = compare_scalars(a, b)
        assert gap.differs and gap.error == gap.apart == math.inf
    assert not compare_scalars(large, large + 1).differs and compare_scalars(large, 2 * large).differs


def test_very_many_names_alike_take_no_minutes() -> None:
    a = [TensorForm(f"{number}:output", "float32", (2,)) for number in range(1500)]
    b = [TensorForm(f"{number + 7}:output", "float32", (2 + number % 3,)) for number in range(1500)]
    began = time.perf_counter()
    assert len(align_tensors(a, b).pairs) == 1493
    assert time.perf_counter() - began < 5


def test_alignment() -> None:
    same = align_tensors(make_forms("a", "b"), make_forms("a", "b"))
    assert same == ([(0, 0), (1, 1)], [], [])
    inserted = align_tensors(make_forms("a", "b", "c"), make_forms("a", "new", "b", "c"))
    assert inserted == ([(0, 0), (1, 2), (2, 3)], [], [1])
    removed = align_tensors(make_forms("a", "b", "c"), make_forms("a", "c"))
    assert removed == ([(0, 0), (2, 1)], [1], [])
    moved = align_tensors(make_forms("a", "b", "c"), make_forms("b", "c", "a"))
    assert sorted(moved.pairs) == [(0, 2), (1, 0), (2, 1)] and not moved.only_a + moved.only_b


def test_numbers_that_an_inserted_layer_moved_on() -> None:
    assert align_tensors(make_numbered_forms(8, 6, 4), make_numbered_forms(8, 99, 6, 4)) == (
        [(0, 0), (1, 2), (2, 3)],
        [],
        [1],
    )
    assert align_tensors(make_numbered_forms(8, 99, 6, 4), make_numbered_forms(8, 6, 4)) == (
        [(0, 0), (2, 1), (3, 2)],
        [1],
        [],
    )
    alike = align_tensors(make_numbered_forms(4, 4), make_numbered_forms(4, 4, 4))
    assert alike == ([(0, 0), (1, 1)], [], [2])  # of one shape: nobody can tell, so the names count


# the command


def test_equal_runs(tmp_path: Path) -> None:
    write_pages(tmp_path / "a", make_datapoints())
    write_pages(tmp_path / "b", make_datapoints())
    done = run_inspect_pages("diff", tmp_path / "a", tmp_path / "b")
    assert (done.returncode, done.stderr) == (0, "")
    assert "4 datapoints, 12 tensors compared: all equal within the tolerance" in done.stdout


def test_the_first_difference_is_the_first_in_execution_order(tmp_path: Path) -> None:
    a, b = make_datapoints(), make_datapoints()
    b[1][1]["layers.1:output"][1, 3] += 0.5  # the first
    b[1][1]["layers.2:output"] += 9.0  # worse, and later
    b[2][1]["layers.0:output"] += 1.0
    b[0][1]["layers.0:output"] *= 1 + 1e-7  # rounding
    write_pages(tmp_path / "a", a)
    write_pages(tmp_path / "b", b[::-1])  # whatever order B has them in
    code, found = run_diff(tmp_path / "a", tmp_path / "b")
    assert code == 1 and not found["equal"]
    first = found["first"]
    assert (first["path"], first["at"]["key"], first["index"], first["differing"]) == (
        "layers.1:output",
        "k1",
        [1, 3],
        1,
    )
    assert first["value_b"] == pytest.approx(first["value_a"] + 0.5)
    assert [w["path"] for w in found["worst"]] == ["layers.2:output", "layers.0:output", "layers.1:output"]
    assert (found["differing_tensors"], found["differing_datapoints"]) == (3, 2)
    assert [w["datapoints"] for w in found["worst"]] == [{"compared": 4, "differing": 1}] * 3
    text = run_inspect_pages("diff", tmp_path / "a", tmp_path / "b").stdout
    assert "first difference: datapoint k1 (rank 0, step 1), layers.1:output, float32[3, 4]" in text
    assert "at [1, 3]" in text and "1 of 12 values differ" in text


def test_tolerance_layer_and_top(tmp_path: Path) -> None:
    a, b = make_datapoints(), make_datapoints()
    for n in range(3):
        b[0][1][PATHS[n]] *= 1 + 10.0 ** -(3 + n)
    write_pages(tmp_path / "a", a)
    write_pages(tmp_path / "b", b)
    sides = (tmp_path / "a", tmp_path / "b")
    assert run_diff(*sides, "--tolerance", "1e-2")[0] == 0
    assert len(run_diff(*sides, "--tolerance", "2e-4")[1]["worst"]) == 1
    assert run_diff(*sides, "--layer", "layers.2", "--tolerance", "0")[1]["first"]["path"] == "layers.2:output"
    assert len(run_diff(*sides, "--tolerance", "0", "--top", "2")[1]["worst"]) == 2


def test_figures_differ_after_the_tensors(tmp_path: Path) -> None:
    a, b = make_datapoints(), make_datapoints()
    b[1][1]["loss"] = 7.0
    write_pages(tmp_path / "a", a)
    write_pages(tmp_path / "b", b)
    assert run_diff(tmp_path / "a", tmp_path / "b")[1]["first"]["path"] == "loss"
    b[1][1]["layers.2:output"] += 1
    write_pages(tmp_path / "c", b)
    assert run_diff(tmp_path / "a", tmp_path / "c")[1]["first"]["path"] == "layers.2:output"


def test_an_inserted_layer_is_told_and_the_rest_compared(tmp_path: Path) -> None:
    a, b = make_datapoints(), make_datapoints()
    for _, values, _ in b:
        values["extra:output"] = make_noise(2)
    b[3][1]["layers.2:output"] += 1
    write_pages(tmp_path / "a", a)
    write_pages(tmp_path / "b", b)
    code, found = run_diff(tmp_path / "a", tmp_path / "b")
    assert code == 1 and found["first"]["path"] == "layers.2:output" and found["only_b"]["paths"] == {"extra:output": 4}
    assert found["only_a"]["paths"] == {}
    del b[3:]
    write_pages(tmp_path / "c", b)
    code, found = run_diff(tmp_path / "a", tmp_path / "c")
    assert code == 1 and found["first"] is None and [e["key"] for e in found["only_a"]["datapoints"]] == ["k3"]
    write_pages(tmp_path / "d", a[:3])
    assert run_diff(tmp_path / "d", tmp_path / "c")[0] == 0
    assert "only in B: extra:output\n" in run_inspect_pages("diff", tmp_path / "d", tmp_path / "c").stdout


def test_another_type_is_told_and_its_tolerance_taken(tmp_path: Path) -> None:
    a = make_datapoints()
    b = [(key, {p: to_bfloat16(v) if p in PATHS else v for p, v in values.items()}, {}) for key, values, _ in a]
    write_pages(tmp_path / "a", a)
    write_pages(tmp_path / "b", b)
    code, found = run_diff(tmp_path / "a", tmp_path / "b")
    assert code == 0 and [(d["a"], d["b"]) for d in found["dtypes"]] == [("float32", "bfloat16")] * 3
    assert run_diff(tmp_path / "a", tmp_path / "b", "--tolerance", "1e-4")[0] == 1


def test_epochs_and_ranks_of_one_run(tmp_path: Path) -> None:
    for epoch in (2, 10):
        points = [(key, values, {"phase": "val"}) for key, values, _ in make_datapoints(2)]
        points[1][1]["layers.1:output"][0] += epoch - 2
        write_pages(tmp_path / "r" / f"epoch_{epoch}" / "debugger", points)
    code, found = run_diff(tmp_path / "r", "--epochs", "2,10")
    assert code == 1 and found["datapoints"] == 2
    assert (found["first"]["path"], found["first"]["at"]["epoch"], found["first"]["at_b"]["epoch"]) == (
        "layers.1:output",
        2,
        10,
    )
    assert run_diff(tmp_path / "r", "--epochs", "2,10", "--layer", "layers.0")[0] == 0
    for rank in (0, 1):
        write_pages(tmp_path / "m" / f"rank{rank:04d}" / "pages", make_datapoints(3), rank=rank, world_size=2)
    assert run_diff(tmp_path / "m", "--ranks", "0,1")[0] == 0
    assert run_diff(tmp_path / "m", "--ranks", "0,1")[1]["datapoints"] == 3


def test_by_order(tmp_path: Path) -> None:
    write_pages(tmp_path / "a", make_datapoints())
    write_pages(tmp_path / "b", [(f"other{key}", values, {}) for key, values, _ in make_datapoints()])
    done = run_inspect_pages("diff", tmp_path / "a", tmp_path / "b")
    assert done.returncode == 2 and "no datapoint of A is in B" in done.stderr and "--pair-by order" in done.stderr
    assert run_diff(tmp_path / "a", tmp_path / "b", "--by", "order")[0] == 0


def test_a_key_that_comes_twice(tmp_path: Path) -> None:
    twice = [("k", {"x": make_noise(3, seed=n)}, {}) for n in range(2)]
    write_pages(tmp_path / "a", twice)
    write_pages(tmp_path / "b", [(key, dict(values), {}) for key, values, _ in twice])
    code, found = run_diff(tmp_path / "a", tmp_path / "b")
    assert code == 0 and found["datapoints"] == 2
    other = ("j", {"x": make_noise(3)}, {})
    write_pages(tmp_path / "c", [*twice, other])
    write_pages(tmp_path / "d", [other, *twice])
    code, found = run_diff(tmp_path / "c", tmp_path / "d")
    assert code == 0 and found["datapoints"] == 3


def test_batches_that_are_made_up_in_another_way(tmp_path: Path) -> None:
    rows = {f"s{n}": make_noise(5, seed=n) for n in range(6)}

    def batches(*groups: str, changed: str = "") -> list[Any]:
        found = []
        for number, group in enumerate(groups):
            keys = [f"s{digit}" for digit in group]
            x = np.stack([rows[key] + (key == changed) for key in keys])
            more = {"keys": keys, "split": ["x"]} if len(keys) > 1 else {}
            found.append((number if len(keys) > 1 else keys[0], {"x": x, "weight": make_noise(3, seed=number)}, more))
        return found

    write_pages(tmp_path / "a", batches("012", "345"))
    write_pages(tmp_path / "b", batches("02", "14", "5", "3"))
    code, found = run_diff(tmp_path / "a", tmp_path / "b")
    assert code == 0 and found["datapoints"] == 6
    write_pages(tmp_path / "c", batches("02", "14", "5", "3", changed="s5"))
    code, found = run_diff(tmp_path / "a", tmp_path / "c")
    assert code == 1 and found["first"]["at"]["key"] == "s5" and found["differing_tensors"] == 1
    same, found = run_diff(tmp_path / "a", tmp_path / "a")
    assert same == 0 and found["datapoints"] == 2  # whole batches


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("a",), "one side"),
        (("a", "b", "c"), "3 paths"),
        (("a", "nowhere"), "there is no"),
        (("a", "b", "--tolerance", "-1"), "--tolerance"),
        (("a", "b", "--tolerance", "nan"), "--tolerance"),
        (("a", "b", "--by", "name"), "--pair-by"),
        (("a", "--epochs", "1,x"), "--epochs"),
        (("a", "--epochs", "1,2"), "no datapoints on side A"),
        (("a", "b", "--layer", "laers.*"), "no tensor is named laers.*"),
    ],
)
def test_wrong_use(words: tuple[str, ...], what: str, tmp_path: Path) -> None:
    write_pages(tmp_path / "a", make_datapoints(1))
    write_pages(tmp_path / "b", make_datapoints(1))
    done = run_inspect_pages("diff", *words, cwd=tmp_path)
    assert done.returncode == 2 and what in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_hostile_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    evil = "a\x1b[2J\n\u202eb"
    write_pages(tmp_path / "a", [(evil, {evil: make_noise(2), "s": "x"}, {})])
    write_pages(tmp_path / "b", [(evil, {evil: make_noise(2) + 1, "s": evil}, {})])
    done = run_inspect_pages("diff", tmp_path / "a", tmp_path / "b")
    assert done.returncode == 1 and "\x1b" not in done.stdout and "\u202e" not in done.stdout
    assert "a\\x1b[2J\\n\\u202eb" in done.stdout


def test_a_page_that_was_cut_is_told_and_the_rest_compared(tmp_path: Path) -> None:
    write_pages(tmp_path / "a", make_datapoints())
    folder = write_pages(tmp_path / "b", make_datapoints())
    page = next(folder.glob("*.safetensors"))
    last = list(PageSet.open(folder))[-1]
    page.write_bytes(page.read_bytes()[: last.tensors[PATHS[2]].at])  # the last tensor is gone
    done = run_inspect_pages("diff", tmp_path / "a", folder)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "12 tensors compared: none differs" in done.stdout and "cannot be compared: 1 tensor" in done.stdout
