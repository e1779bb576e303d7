"""`tdbg inspect-pages stats`: all values of a layer, and what sets groups of samples apart."""

import math
import random
from pathlib import Path

import numpy
import pytest

from tdbg.core.errors import TdbgError
from tdbg.pages.format.page_writer import Item, PageWriter
from tdbg.pages.selection import grouping
from tdbg.pages.stats import group_stats
from tests.pages.samples import Commands, make_item, write_run


@pytest.fixture
def page_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(write_run(tmp_path / "run"), capsys)


def test_over_all_datapoints(page_commands: Commands) -> None:
    told = page_commands("stats")
    rows = {row["path"]: row for row in told.table_rows}
    assert told.code == 0 and list(rows) == ["conv:output", "attn:output", "labels", "bad", "x/y", "x/z"]
    conv = numpy.concatenate([numpy.arange(48.0)] * 5 + [100 * numpy.arange(48.0)])
    row = rows["conv:output"]
    assert (row["tensors"], row["values"], row["zero"]) == ("6", "288", "2.1%")
    assert float(row["mean"]) == pytest.approx(conv.mean(), rel=1e-4)
    assert float(row["std"]) == pytest.approx(conv.std(ddof=1), rel=1e-4)
    assert float(row["median"]) == pytest.approx(numpy.median(conv), rel=0.02) and row["max"] == "4700"
    assert (rows["bad"]["nan"], rows["bad"]["inf"]) == ("1", "1")


def test_selections_and_layers(page_commands: Commands) -> None:
    told = page_commands("stats", "--layer", "*:output", "--layer", "x", "--ranks", 0)
    assert [(row["path"], row["tensors"]) for row in told.table_rows] == [
        *(("conv:output", "3"), ("attn:output", "3")),
        *(("x/y", "1"), ("x/z", "1")),
    ]
    nothing = page_commands("stats", "--layer", "nope")
    assert nothing.code == 1 and nothing == [] and "no layer fits" in nothing.said


def test_json(page_commands: Commands) -> None:
    data = {one["path"]: one for one in page_commands("stats", "--json").json_data}
    assert data["labels"]["count"] == 18 and data["labels"]["q99"] == 3 and data["bad"]["nan"] == 1


@pytest.mark.parametrize("together", [1, 300, 1 << 20])
@pytest.mark.parametrize("waiting", [100, 64 << 20])
def test_however_small_tensors_are_put_together(
    page_commands: Commands, monkeypatch: pytest.MonkeyPatch, together: int, waiting: int
) -> None:
    wanted = page_commands("stats", "--json").json_data
    monkeypatch.setattr(group_stats, "TOGETHER", together)
    monkeypatch.setattr(group_stats, "WAITING", waiting)
    for one, other in zip(page_commands("stats", "--json").json_data, wanted, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            exact = not isinstance(value, float) or isinstance(other[name], str)
            assert value == other[name] if exact else math.isclose(value, other[name], rel_tol=1e-9, abs_tol=1e-12), (
                name
            )


@pytest.mark.parametrize("together", [1, 1 << 20])
def test_memory_does_not_grow_with_the_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """Histograms become coarser instead; what else is known stays exact."""
    monkeypatch.setattr(group_stats, "TOGETHER", together)
    monkeypatch.setattr(group_stats, "CHECKED", 4)
    numbers = numpy.random.default_rng(0).standard_normal(4000).astype("f4")
    with PageWriter(tmp_path / "p") as writer:
        writer.add("k", [Item(f"layer.{at}", "float32", (4000,), numbers.tobytes()) for at in range(40)])
    ask = Commands(tmp_path / "p", capsys)
    fine = ask("stats", "--json").json_data
    monkeypatch.setattr(group_stats, "HISTOGRAMS", 200_000)
    coarse = ask("stats", "--json").json_data
    for one, other in zip(fine, coarse, strict=True):
        assert one["mean"] == other["mean"] and one["std"] == other["std"] and one["zero"] == other["zero"]
        assert one["median"] != other["median"] and one["q95"] == pytest.approx(other["q95"], rel=0.3)


def test_figures_that_were_kept_instead_of_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = [[1.0, 2.0, 3.0], [5.0, 7.0, -9.0]]
    with PageWriter(tmp_path / "p") as writer:
        for key, values in enumerate(numbers):
            about = {"count": 3, "nan": 0, "inf": 0, "mean": numpy.mean(values), "std": numpy.std(values, ddof=1)}
            about |= {"low": min(values), "high": max(values)}
            writer.add(key, [], scalars={f"fc/{name}": float(value) for name, value in about.items()} | {"loss": key})
    ask = Commands(tmp_path / "p", capsys)
    (row,) = ask("stats").table_rows
    every = numbers[0] + numbers[1]
    assert (row["path"], row["values"], row["min"], row["max"], row["zero"], row["median"]) == (
        "fc",
        "6",
        "-9",
        "7",
        "-",
        "-",
    )
    assert float(row["mean"]) == pytest.approx(numpy.mean(every)) and float(row["std"]) == pytest.approx(
        numpy.std(every, ddof=1), rel=1e-4
    )
    assert [row["tensor"] for row in ask("find", "max > 5").table_rows] == ["fc"]
    shown = ask("show", 1)
    assert shown[1] == "loss = 1" and "figures" in shown.table_rows[0]["dtype"] and shown.table_rows[0]["min"] == "-9"
    assert "figures alone were kept" in ask("show", "1/fc").said
    assert ask("stats", "--group-by", "loss").table_rows[0]["mean 1"] == "1"


# groups


def write_sick_pages(folder: Path, count: int = 40) -> Path:
    """Half of the samples fail, and on these layer b is dead; layer a is the same on all."""
    random.seed(7)
    with PageWriter(folder) as writer:
        for key in range(count):
            bad = key % 2
            noise = [random.gauss(0, 1) for _ in range(64)]
            dead = [random.gauss(0, 1) * (random.random() < (0.2 if bad else 0.9)) for _ in range(64)]
            writer.add(key, [make_item("a", noise), make_item("b", dead)], scalars={"loss": 5 * bad + random.random()})
    return folder


def test_what_is_different_on_the_samples_that_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Commands(write_sick_pages(tmp_path / "p"), capsys)("stats", "--group-by", "loss")
    assert "tdbg: high: 20 datapoints, low: 20 datapoints" in told.said
    first, second = told.table_rows
    assert (first["path"], first["in"]) == ("b", "zero_share") and second["path"] == "a"
    assert float(first["apart"]) > 5 > 1 > float(second["apart"])
    assert float(first["zero_share high"].strip("%")) > 70 > 20 > float(first["zero_share low"].strip("%"))


def test_scores_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = Commands(write_sick_pages(tmp_path / "p"), capsys)
    (tmp_path / "s.csv").write_text("key,score\n" + "".join(f"{key},{key % 2}\n" for key in range(30)))
    told = ask("stats", "--scores", tmp_path / "s.csv", "--json")
    assert "10 datapoints without" in told.said and "0: 15 datapoints, 1: 15 datapoints" in told.said
    found = {one["path"]: one for one in told.json_data}
    assert found["b"]["in"] == "zero_share" and found["b"]["groups"]["1"]["zero_share"] > 0.7
    (tmp_path / "s.jsonl").write_text("".join(f'{{"key": {key}, "score": {key % 2}}}\n' for key in range(30)))
    assert ask("stats", "--scores", tmp_path / "s.jsonl", "--json") == told


def test_three_groups_are_lines(page_commands: Commands) -> None:
    rows = page_commands("stats", "--group-by", "step", "--layer", "labels").table_rows
    assert [(row["group"], row["min"], row["tensors"]) for row in rows] == [
        ("0", "0", "2"),
        ("1", "1", "2"),
        ("2", "2", "2"),
    ]
    assert {row["apart"] for row in rows} == {"inf"}  # all the same within a group, and not between them


def test_a_layer_that_one_group_does_not_have(page_commands: Commands) -> None:
    rows = {row["path"]: row for row in page_commands("stats", "--group-by", "phase").table_rows}
    assert rows["x/y"]["mean train"] == "-" and rows["x/y"]["mean eval"] == "1.5" and rows["x/y"]["apart"] == "-"


def test_rows_of_a_batch_are_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PageWriter(tmp_path / "p") as writer:
        for start in range(0, 8, 4):
            rows = [float(start + row) for row in range(4) for _ in range(2)]
            about = {"keys": [start + row for row in range(4)], "split": ["x"]}
            writer.add(f"b{start}", [make_item("x", rows, (4, 2)), make_item("w", [1.0])], **about)
    (tmp_path / "s.csv").write_text("".join(f"{key},{'odd' if key % 2 else 'even'}\n" for key in range(8)))
    rows = {
        row["path"]: row for row in Commands(tmp_path / "p", capsys)("stats", "--scores", tmp_path / "s.csv").table_rows
    }
    assert list(rows) == ["x"] and (rows["x"]["mean odd"], rows["x"]["mean even"]) == ("4", "3")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--group-by", "lss"), "no datapoint has a lss"),
        (("--group-by", "loss", "--scores", "x.csv"), "do not go together"),
        (("--scores", "nowhere.csv"), "nowhere.csv: No such file"),
    ],
)
def test_wrong_use(page_commands: Commands, words: tuple[str, ...], what: str) -> None:
    told = page_commands("stats", *words)
    assert told.code == 2 and told == [] and what in told.said


@pytest.mark.parametrize(
    "text",
    ["1,2,3\n", "1\n", '{"key": 1}\n', "{nonsense\n", "", '{"key": 1, "score": null}\n', '{"key":1,"score":[]}\n'],
)
def test_files_that_hold_no_scores(tmp_path: Path, text: str) -> None:
    (tmp_path / "s").write_text(text)
    with pytest.raises(TdbgError):
        grouping.load_scores(str(tmp_path / "s"))


def test_how_scores_are_parted() -> None:
    assert set(grouping.split_groups(dict(enumerate([1.0, 2.0, 3.0, 4.0]))).items()) == {
        (0, "low"),
        (1, "low"),
        (2, "high"),
        (3, "high"),
    }
    assert grouping.split_groups(dict(enumerate([0.0, 1.0, 0.0]))) == {0: "0", 1: "1", 2: "0"}
    assert grouping.split_groups({0: "a", 1: 2.0}) == {0: "a", 1: "2"}
    ties = grouping.split_groups(dict(enumerate([1.0] * 6 + [2.0, 3.0, 4.0, 5.0, 6.0])))
    assert [ties[at] for at in range(11)] == ["low"] * 6 + ["high"] * 5
    upper = grouping.split_groups(dict(enumerate([1.0, 2.0, 3.0] + [9.0] * 4)))
    assert [upper[at] for at in range(7)] == ["low"] * 3 + ["high"] * 4
    odd = grouping.split_groups(dict(enumerate([math.nan, math.inf, 1.0, 2.0, 3.0])))
    assert [odd[at] for at in range(5)] == ["nan", "high", "low", "low", "high"]
    few = grouping.split_groups(dict(enumerate([1.0, 2.0, 3.0] * 2)))
    assert sorted(set(few.values())) == ["1", "2", "3"]


def test_tensors_that_cannot_be_read_are_told(page_commands: Commands) -> None:
    (page_commands.folder / "rank0001" / "pages" / "r0001-000000.safetensors").unlink()
    told = page_commands("stats")
    assert told.code == 2 and {row["path"]: row["tensors"] for row in told.table_rows}["conv:output"] == "3"
    assert told.said.count("datapoint 1") >= 3


def test_numbers_beyond_a_float(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PageWriter(tmp_path / "pages") as writer:
        for key in range(4):
            writer.add(key, [make_item("x", [float(key)])], scalars={"hash": 10**400 if key % 2 else -(10**400)})
    ask = Commands(tmp_path / "pages", capsys)
    assert [row["key"] for row in ask("find", "scalar.hash > 0").table_rows] == ["1", "3"]
    groups_of = ask("stats", "--group-by", "hash", "--json").json_data[0]["groups"]
    assert {group: row["mean"] for group, row in groups_of.items()} == {"-inf": 1.0, "inf": 2.0}


def test_score_files_may_be_odd(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text('\n{"key": "a\u2028b", "score": %s}\n\n' % ("9" * 400), encoding="utf-8")
    assert grouping.load_scores(str(tmp_path / "s.jsonl")) == {"a\u2028b": math.inf}
    (tmp_path / "s.csv").write_text('key,score\n\n"a\nb",1\n  \n', encoding="utf-8")
    assert grouping.load_scores(str(tmp_path / "s.csv")) == {"a\nb": 1.0}
    (tmp_path / "s.csv").write_text("17," + "9" * 200_000, encoding="utf-8")
    with pytest.raises(TdbgError, match="field larger"):
        grouping.load_scores(str(tmp_path / "s.csv"))


def test_figures_that_are_none_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PageWriter(tmp_path / "pages") as writer:
        writer.add(1, [], scalars={"a/count": math.nan, "b/count": True, "c/count": 3})
    assert [row["path"] for row in Commands(tmp_path / "pages", capsys)("stats").table_rows] == ["c"]
