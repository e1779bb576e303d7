"""`tdbg inspect-pages show`: keys and paths, figures, values."""

import math
from pathlib import Path

import pytest
import torch

from tdbg import cli
from tdbg.pages.format.page_writer import Item, PageWriter
from tdbg.pages.format.safetensors_file import write_safetensors
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.selection import tensor_name
from tdbg.pages.selection.locations import Selected
from tdbg.pages.stats import stored_tensor
from tests.pages.samples import Commands, make_item, pack_values, write_run


@pytest.fixture
def page_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(write_run(tmp_path / "run"), capsys)


def test_a_datapoint(page_commands: Commands) -> None:
    told = page_commands("show", 1)
    assert told.code == 0 and told.said == ""
    assert told[0] == "datapoint 1: rank 0, step 1, epoch 0, phase train, page 0"
    assert told[1:4] == ["loss = 0.5", r"tokens = ['the', 'cat', 'sat', '\x1b[31mon']", r"note = \x1b]0;evil\x07"]
    rows = {row["tensor"]: row for row in told.table_rows}
    assert list(rows) == ["conv:output", "attn:output", "labels", "bad"]
    assert (rows["bad"]["nan"], rows["bad"]["inf"], rows["bad"]["zero"], rows["bad"]["mean"]) == (
        "1",
        "1",
        "25.0%",
        "0.5",
    )
    conv = rows["conv:output"]
    assert (conv["dtype"], conv["shape"], conv["min"], conv["max"], conv["mean"]) == (
        *("float32", "(3, 4, 4)"),
        *("0", "47", "23.5"),
    )
    assert conv["histogram"] == "█" * 16 and rows["bad"]["histogram"] == "█" + " " * 14 + "█"


def test_a_tensor(page_commands: Commands) -> None:
    told = page_commands("show", "1/bad")
    assert told[1] == "bad: float32 (4,), 16 B"
    assert told[2:4] == ["4 values: nan 1, inf 1, zero 1 (25.0%)", "mean 0.5, std 0.70711, min 0, max 1, absmax 1"]
    assert told[4].startswith("q01 0.01, q05 0.05, q25 0.25, median 0.5")
    assert told[-1].split() == ["1", "nan", "inf", "0"]
    labels = page_commands("show", "2/labels")
    assert labels[-1].split() == ["2", "2", "3"]


def test_several_tensors_below_a_path_or_of_a_pattern(page_commands: Commands) -> None:
    for word in ("1/*:output", "1/[ac]*"):
        assert [row["tensor"] for row in page_commands("show", word).table_rows] == ["conv:output", "attn:output"]
    assert page_commands("show", "1/conv")[1].startswith("conv:output: float32 (3, 4, 4)")


def test_keys_with_slashes(page_commands: Commands) -> None:
    told = page_commands("show", "a/b/x/y", "--rank", 0)
    assert told[0] == "datapoint a/b: rank 0, step 3, phase eval, page 0" and told[1].startswith("x/y: ")
    assert [row["tensor"] for row in page_commands("show", "a/b", "--rank", 1).table_rows] == ["x/y", "x/z"]


@pytest.fixture
def saved_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A batch in the newest run of the working directory, as `tdbg run` keeps it."""
    folder = tmp_path / "tdbg_runs" / "20261127-053631-train" / "rank0002"
    folder.mkdir(parents=True)
    (folder.parent / "run.json").write_text("{}")
    batch = folder / "batch_step00000012.safetensors"
    tensors = {"batch.0": torch.zeros(2, 3), "batch.1": torch.ones(2)}
    write_safetensors(batch, tensors, {"step": "12", "rank": "2"})
    monkeypatch.chdir(tmp_path)
    return batch


def test_a_saved_batch_is_opened_by_the_path_that_the_finding_names(saved_batch: Path, capsys) -> None:
    """And a tensor of it by its name alone."""
    assert cli.main(["inspect-pages", "rank0002/batch_step00000012.safetensors"]) == 0
    out, err = capsys.readouterr()
    assert "batch.0" in out and "tdbg_runs/20261127-053631-train/rank0002/batch_step" in err and "newest run" in err
    assert cli.main(["inspect-pages", "show", "rank0002/batch_step00000012.safetensors", "batch.1"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("datapoint batch_step00000012: rank 2, step 12") and "2 values: nan 0" in out
    assert cli.main(["inspect-pages", "show", str(saved_batch), "batch.7"]) == 1
    assert "no datapoint has the key 'batch.7'" in capsys.readouterr().err


def test_a_path_that_the_newest_run_has_not_either_is_none(saved_batch: Path, capsys) -> None:
    assert cli.main(["inspect-pages", "rank0003/batch_step00000012.safetensors"]) == 2
    assert "neither a command nor a path" in capsys.readouterr().err


def test_the_longest_key_wins_where_it_has_the_tensor(tmp_path: Path) -> None:
    with PageWriter(tmp_path / "p") as writer:
        writer.add("a", [make_item("b/c", [1.0]), make_item("d", [1.0]), make_item("b/x", [1.0])])
        writer.add("a/b", [make_item("c", [2.0])])
    with PageSet.open(tmp_path / "p") as pages:
        found = {
            word: tensor_name.resolve_target(pages, word, Selected())
            for word in ("a/b/c", "a/b", "a/d", "a/b/x", "a/b/d", "x/y")
        }
    shown = {word: (one.key, one.tensors) if one else None for word, one in found.items()}
    wanted = {
        "a/b/c": ("a/b", ["c"]),
        "a/b": ("a/b", ["c"]),
        "a/d": ("a", ["d"]),
        "a/b/x": ("a", ["b/x"]),
        "a/b/d": ("a/b", []),
        "x/y": None,
    }
    assert shown == wanted


def test_what_is_below_a_path() -> None:
    class Holder:
        tensors = dict.fromkeys(["conv1:output", "conv:output", "conv.0:output", "conv/0", "x"])

    one = [Holder()]
    assert tensor_name.match_tensors(one, "conv") == ["conv:output", "conv.0:output", "conv/0"]  # type: ignore[arg-type]
    assert tensor_name.match_tensors(one, "con") == [] and tensor_name.match_tensors(one, "x") == ["x"]  # type: ignore[arg-type]


def test_several_datapoints_of_a_key(page_commands: Commands) -> None:
    told = page_commands("show", "a/b")
    assert [(row["nth"], row["rank"], row["tensors"]) for row in told.table_rows] == [("1", "0", "2"), ("2", "1", "2")]
    assert told.code == 0 and "choose with --rank, --step, --epoch or --nth" in told.said
    brief = page_commands("show", "a/b/x/y")
    assert [(row["rank"], row["tensor"], row["mean"]) for row in brief.table_rows] == [
        ("0", "x/y", "1.5"),
        ("1", "x/y", "1.5"),
    ]
    assert page_commands("show", "a/b/x/y", "--nth", 2)[0].startswith("datapoint a/b: rank 1")
    beyond = page_commands("show", "a/b", "--nth", 3)
    assert beyond.code == 2 and "2 datapoints have the key a/b" in beyond.said


def test_a_key_that_is_not_there(page_commands: Commands) -> None:
    told = page_commands("show", 13)
    assert told.code == 1 and told == []
    assert told.said == "tdbg: no datapoint has the key '13'\ntdbg: keys near to it: 12, 11, 10, 2, 1\n"
    other = page_commands("show", "a/c")
    assert other.code == 1 and "keys near to it: a/b" in other.said
    assert "among those that are selected" in page_commands("show", 1, "--steps", 2).said


def test_numbers_near_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PageWriter(tmp_path / "p") as writer:
        for number in range(0, 1000, 10):
            writer.add(number, [make_item("t", [1.0])])
    said = Commands(tmp_path / "p", capsys)("show", "123").said
    assert "keys near to it: 120, 130, 110, 140, 100" in said


def test_a_tensor_that_is_not_there(page_commands: Commands) -> None:
    told = page_commands("show", "1/conf:output")
    assert told.code == 1 and told == []
    assert told.said.splitlines() == [
        "tdbg: datapoint 1 has no tensor 'conf:output'",
        "tdbg: names near to it: conv:output, attn:output",
    ]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("1/conv", "--slice", "9"), "index 9 is outside a dimension of size 3"),
        (("1", "--slice", "0"), "--slice needs exactly one tensor"),
        (("1/conv", "--slice", "a"), "--slice cannot be 'a'"),
        (("1", "--nth", "-1"), "--nth -1: 1 datapoint has the key 1"),
        (("1", "--image", "jpeg"), "--image cannot be 'jpeg'"),
        (("1", "2"), "3 arguments were given"),
        ((), "is a path: the key is missing"),
        (("1", "--steps", "x"), "steps cannot be 'x'"),
    ],
)
def test_wrong_use(page_commands: Commands, words: tuple[str, ...], what: str) -> None:
    told = page_commands("show", *words)
    assert told.code == 2 and told == [] and what in told.said


def test_a_slice(page_commands: Commands) -> None:
    told = page_commands("show", "1/conv:output", "--slice", "1,:,3:1:-1")
    assert told[1] == "conv:output: float32 (3, 4, 4), 192 B, of it [1,:,3:1:-1]: (4, 2)"
    assert told[2].startswith("8 values") and "min 18, max 31" in told[3]
    rows = [line.split() for line in told[6:10]]
    assert rows == [["19", "18"], ["23", "22"], ["27", "26"], ["31", "30"]]


def test_json(page_commands: Commands) -> None:
    (one,) = page_commands("show", "1", "--json").json_data
    assert one["key"] == 1 and one["scalars"]["tokens"][3] == "\x1b[31mon"
    bad = next(tensor for tensor in one["tensors"] if tensor["path"] == "bad")
    assert bad["values"] == [1.0, "nan", "inf", 0.0] and bad["figures"]["nan"] == 1 and bad["shape"] == [4]
    assert sum(bad["histogram"]) == 2
    several = page_commands("show", "a/b", "--json").json_data
    assert [found["rank"] for found in several] == [0, 1]
    assert several[0]["tensors"][0] == {"path": "x/y", "dtype": "float32", "shape": [2], "bytes": 8, "note": {}}
    (cut,) = page_commands("show", "1/conv", "--slice", "0,0", "--json").json_data
    assert cut["tensors"][0]["values"] == [0, 1, 2, 3] and cut["tensors"][0]["slice_shape"] == [4]


@pytest.mark.parametrize("count", [1000, 70_000, 1_100_000])
def test_small_middling_and_large_tensors_read_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """With lists, with numpy, and streamed."""
    monkeypatch.setattr(stored_tensor, "EXACT", 1 << 20)
    values = [math.sin(number) * number / count for number in range(count)]
    with PageWriter(tmp_path / "p") as writer:
        writer.add("k", [make_item("t", values, (count // 100, 100))])
    told = Commands(tmp_path / "p", capsys)("show", "k/t")
    f32 = [round(value, 3) for value in values]
    assert told[2] == f"{count:,} values: nan 0, inf 0, zero 1 ({1 / count:.1%})"
    figures = dict(pair.rsplit(" ", 1) for pair in told[3].split(", "))
    assert float(figures["max"]) == pytest.approx(max(f32), abs=2e-3)
    median = next(pair for pair in told[4].split(", ") if pair.startswith("median"))
    assert float(median.split()[1]) == pytest.approx(sorted(values)[count // 2], abs=0.01)
    assert ("within 0.8 %" in told[4]) is (count > 1 << 20)
    assert ("--slice shows a part" in told[-1]) is (count > 1 << 20)


def test_a_tensor_that_cannot_be_read_does_not_hide_the_others(page_commands: Commands) -> None:
    page = page_commands.folder / "rank0000" / "pages" / "r0000-000000.safetensors"
    page.unlink()
    told = page_commands("show", "1")
    assert told.code == 2 and len(told.table_rows) == 4 and told.table_rows[0]["mean"] == "-"
    assert page_commands("show", "1/bad").code == 2


def test_a_batch_that_is_stored_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PageWriter(tmp_path / "p") as writer:
        items = [make_item("x", [1.0, 2.0, 3.0, 4.0], (2, 2)), make_item("w", [9.0])]
        writer.add("batch", items, keys=["s0", "s1"], split=["x", "loss"], scalars={"loss": [0.1, 0.2]})
    ask = Commands(tmp_path / "p", capsys)
    told = ask("show", "s1")
    assert told[0].endswith("row 1") and told[1] == "loss = 0.2"
    assert [(row["tensor"], row["shape"], row["min"]) for row in told.table_rows] == [
        ("x", "(2,)", "3"),
        ("w", "(1,)", "9"),
    ]
    assert ask("show", "batch").table_rows[0]["shape"] == "(2, 2)"


def test_all_types_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tdbg.pages.format.dtypes import DTYPES

    with PageWriter(tmp_path / "p") as writer:
        items = [Item(name, name, (8,), bytes(range(1, dtype.count_bytes((8,)) + 1))) for name, dtype in DTYPES.items()]
        items += [Item("empty", "float32", (0, 3), b""), Item("scalar", "bfloat16", (), pack_values([1.5], "bfloat16"))]
        writer.add("k", items)
    ask = Commands(tmp_path / "p", capsys)
    told = ask("show", "k")
    assert told.code == 0 and len(told.table_rows) == len(items)
    for one in items:
        assert ask("show", f"k/{one.path}").code == 0, one.path
    assert ask("show", "k/scalar")[-1] == "1.5"
    assert "0 values" in ask("show", "k/empty")[2]
