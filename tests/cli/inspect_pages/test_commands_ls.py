"""`tdbg inspect-pages ls`: what is there, of which datapoints, and what is not."""

from pathlib import Path

import pytest

from tdbg.pages.format.page_writer import PageWriter
from tdbg.pages.read import listing
from tests.pages.samples import Commands, make_item, write_run


@pytest.fixture
def page_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(write_run(tmp_path / "run"), capsys)


def test_layers(page_commands: Commands) -> None:
    told = page_commands("ls")
    assert told.code == 0
    assert told[0] == "8 datapoints, 23 tensors, 6 layers, 1.72 kB, ranks 0 to 1, steps 0 to 3, epochs 0 to 1"
    rows = {row["path"]: row for row in told.table_rows}
    assert list(rows) == ["conv:output", "attn:output", "labels", "bad", "x/y", "x/z"]
    assert rows["conv:output"] == {
        "path": "conv:output",
        "dtype": "float32",
        "shape": "(3, 4, 4)",
        "datapoints": "6",
        "bytes": str(6 * 192),
    }
    assert rows["bad"]["datapoints"] == "1" and rows["labels"]["dtype"] == "int64"


def test_what_was_dropped_is_told(page_commands: Commands) -> None:
    said = page_commands("ls").said.splitlines()
    assert said[:2] == [f"tdbg: rank {rank} dropped 2 datapoints (steps 1 to 2): the ring was full" for rank in (0, 1)]


def test_samples_of_several_ranks_are_told(
    page_commands: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sampler that pads gives them out twice; in another epoch, or as the number of a step, they are no such thing."""
    told = "tdbg: 1 of 5 samples were captured on several ranks (a/b): a sampler pads, or ranks see the same data"
    assert page_commands("ls").said.splitlines()[2:] == [told]
    assert "several ranks" not in page_commands("ls", "--ranks", "0").said
    for rank in (0, 1):
        for epoch in (0, 1):
            with PageWriter(tmp_path / "out" / f"epoch_{epoch}" / f"rank{rank:04d}", rank=rank, world_size=2) as writer:
                writer.add(7, [make_item("x", [1.0])], step=7)
                writer.add("of a rank" if rank == epoch else "of the other", [make_item("x", [1.0])])
                writer.add(8, [make_item("x", [1.0, 2.0])], keys=[rank, "a" if rank else "b"], split=["x"])
    said = Commands(tmp_path / "out", capsys)("ls").said
    assert said == ""


def test_datapoints(page_commands: Commands) -> None:
    rows = page_commands("ls", "--datapoints").table_rows
    assert [row["key"] for row in rows] == ["0", "1", "2", "a/b", "10", "11", "12", "a/b"]
    first = {"key": "1", "rank": "0", "step": "1", "epoch": "0", "phase": "train", "page": "0"}
    assert rows[1] == {**first, "tensors": "4", "bytes": str(192 + 64 + 24 + 16)}
    assert rows[3]["epoch"] == "-"


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (("--ranks", "1"), ["10", "11", "12", "a/b"]),
        (("--rank", "0-1"), ["0", "1", "2", "a/b", "10", "11", "12", "a/b"]),
        (("--steps", "1:2", "--ranks", "0"), ["1", "2"]),
        (("--steps", ":0,3:"), ["0", "a/b", "10", "a/b"]),
        (("--epochs", "1"), ["2", "12"]),
        (("--phase", "eval"), ["a/b", "a/b"]),
        (("--phase", "evil"), []),
    ],
)
def test_selections(page_commands: Commands, words: tuple[str, ...], keys: list[str]) -> None:
    told = page_commands("ls", "--datapoints", *words)
    assert [row["key"] for row in told.table_rows] == keys and told.code == (0 if keys else 1)
    assert ("no datapoint fits" in told.said) is not bool(keys)


def test_a_selection_narrows_the_layers_too(page_commands: Commands) -> None:
    assert [(row["path"], row["datapoints"]) for row in page_commands("ls", "--phase", "eval").table_rows] == [
        ("x/y", "2"),
        ("x/z", "2"),
    ]


def test_json(page_commands: Commands) -> None:
    data = page_commands("ls", "--json", "--datapoints").json_data
    assert (data["datapoints"], data["tensors"], data["ranks"], data["epochs"]) == (8, 23, [0, 1], [0, 1])
    layer = {"path": "conv:output", "dtypes": ["float32"], "shapes": [[3, 4, 4]], "datapoints": 6, "bytes": 1152}
    assert data["layers"][0] == layer
    assert data["drops"][1] == {"rank": 1, "datapoints": 2, "reason": "the ring was full", "first": 1, "last": 2}
    assert data["list"][0]["key"] == 0 and data["list"][0]["scalars"]["loss"] == 0 and data["list"][3]["key"] == "a/b"


def test_nothing_was_captured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PageWriter(tmp_path / "p") as writer:
        writer.prepare_journal()
    told = Commands(tmp_path / "p", capsys)("ls")
    assert told.code == 1 and told == [] and "nothing was captured" in told.said


def test_layers_of_which_figures_alone_were_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PageWriter(tmp_path / "p") as writer:
        for number in range(3):
            writer.add(number, [], scalars={"fc:output/count": 4, "fc:output/mean": 1.0, "loss": 2.0})
    rows = Commands(tmp_path / "p", capsys)("ls").table_rows
    assert [(row["path"], row["dtype"], row["datapoints"], row["bytes"]) for row in rows] == [
        ("fc:output", "figures", "3", "0")
    ]


def test_shapes_that_change_with_every_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with PageWriter(tmp_path / "p") as writer:
        for number in range(20):
            writer.add(number, [make_item("x", [0.0] * (number + 1)), make_item("y", [1.0])])
    ask = Commands(tmp_path / "p", capsys)
    told = ask("ls")
    assert told.table_rows[0]["shape"] == "(1,), (2,), (3,), (4,) and 16 more" and told.table_rows[0]["bytes"] == "840"
    monkeypatch.setattr(listing, "LAYOUTS", 3)
    assert ask("ls") == told


def test_problems_are_told(page_commands: Commands) -> None:
    (page_commands.folder / "rank0001" / "pages" / "r0001-000000.safetensors").unlink()
    told = page_commands("ls")
    assert told.code == 0 and "page 0 of rank 1 is missing" in told.said


def test_names_do_nothing_to_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PageWriter(tmp_path / "p") as writer:
        writer.add("k\x1b[2J\t\u202ek", [make_item("a\x1b]0;t\x07\nb", [1.0])], phase="\x9b1m")
        writer.record_drop(1, "\x1b[31mred")
    ask = Commands(tmp_path / "p", capsys)
    for words in (("ls",), ("ls", "--datapoints"), ("show", "k\x1b[2J\t\u202ek"), ("stats",), ("find", "count > 0")):
        told = ask(*words)
        text = "\n".join(told) + told.said
        assert told.code == 0 and all(letter.isprintable() or letter in "\t\n" for letter in text)
    assert ask("ls", "--datapoints").table_rows[0]["key"] == r"k\x1b[2J\t\u202ek"
