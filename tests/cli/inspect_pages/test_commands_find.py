"""`tdbg inspect-pages find`: conditions on figures, and what they bring to light."""

from pathlib import Path

import pytest

from tdbg import cli
from tdbg.pages.format.page_writer import PageWriter
from tests.pages.samples import Commands, make_item, write_run


@pytest.fixture
def page_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(write_run(tmp_path / "run"), capsys)


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("nan > 0", ["1 bad"]),
        ("nan > 0 or absmax > 1e3", ["1 bad", "12 conv:output"]),
        ("inf == 1 and zero_share == 0.25", ["1 bad"]),
        ("count == 2", ["a/b x/y", "a/b x/y"]),
        ("median == 23.5 and rank == 0", ["0 conv:output", "1 conv:output", "2 conv:output"]),
        ("mean - min > 2000", ["12 conv:output"]),
        ("bytes == 24 and step == 2", ["2 labels", "12 labels"]),
        ("scalar.loss == 2 and max == 1", ["12 attn:output"]),
        ('scalar["loss"] == 2 and max == 1', ["12 attn:output"]),
        ("not (count > 1)", ["a/b x/z", "a/b x/z"]),
        ("min < 0", []),
    ],
)
def test_tensors(page_commands: Commands, condition: str, found: list[str]) -> None:
    told = page_commands("find", condition)
    assert [f"{row['key']} {row['tensor']}" for row in told.table_rows] == found
    assert told.code == (0 if found else 1)
    assert (f"{len(found)} of 23 tensors fit" if found else "no datapoint matches the condition") in told.said


def test_datapoints_alone_read_no_tensor(page_commands: Commands) -> None:
    for page in page_commands.folder.glob("rank*/pages/*.safetensors"):
        page.write_bytes(b"")
    told = page_commands("find", "scalar.loss >= 1 and step > 0", "--sort", "scalar.loss")
    assert [(row["key"], row["scalar.loss"]) for row in told.table_rows] == [("12", "2"), ("11", "1.5"), ("2", "1")]
    assert "3 of 8 datapoints fit" in told.said
    assert page_commands("find", "count > 0").code == 2


def test_sort_and_limit(page_commands: Commands) -> None:
    told = page_commands(
        "find", "count > 3", "--sort", "absmax - nan", "--limit", 2, "--layer", "bad", "--layer", "conv"
    )
    assert [f"{row['key']} {row['tensor']}" for row in told.table_rows] == ["12 conv:output", "0 conv:output"]
    assert "7 of 7 tensors fit, the first 2 are shown" in told.said
    unknown = page_commands("find", "count < 3", "--sort", "scalar.loss", "--ranks", 0)
    assert [row["scalar.loss"] for row in unknown.table_rows] == ["-", "-"]
    mixed = page_commands("find", "count < 4 and rank == 0", "--sort", "scalar.loss")
    assert [row["scalar.loss"] for row in mixed.table_rows] == ["1", "0.5", "0", "-", "-"]
    quantiles = page_commands("find", "count == 48", "--sort", "q99", "--limit", 1)
    assert quantiles.table_rows[0]["key"] == "12" and float(quantiles.table_rows[0]["q99"]) > 4000


def test_groups(page_commands: Commands) -> None:
    told = page_commands("find", "count > 3", "--group-by", "loss", "--layer", "conv", "--layer", "bad")
    columns = told.table_rows[0].keys()
    assert next(iter(columns)) == "group" and {row["group"] for row in told.table_rows} == {"high", "low"}
    in_high = sum(row["group"] == "high" for row in told.table_rows)
    assert f"high: {in_high} of " in told.said and f"{len(told.table_rows)} of " in told.said
    data = page_commands("find", "count > 3", "--group-by", "loss", "--json").json_data
    assert data["fit"] == sum(group["fit"] for group in data["groups"].values()) == len(data["found"])
    assert data["looked_at"] == sum(group["looked_at"] for group in data["groups"].values()) < 23, "not all have a loss"
    alone = page_commands("find", "scalar.loss >= 1", "--group-by", "step")
    assert all(row["group"] == row["step"] for row in alone.table_rows) and alone.table_rows
    assert page_commands("find", "count > 3", "--group-by", "loss", "--scores", "x").code == 2
    assert "groups" not in page_commands("find", "count > 3", "--json").json_data


def test_selections(page_commands: Commands) -> None:
    assert [row["rank"] for row in page_commands("find", "count == 48", "--ranks", 1, "--steps", "1:").table_rows] == [
        "1",
        "1",
    ]


def test_each_sample_of_a_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PageWriter(tmp_path / "p") as writer:
        rows = [1.0, 2.0, float("nan"), 4.0, 5.0, 6.0]
        about = {"keys": ["s0", "s1", "s2"], "split": ["x", "loss"], "scalars": {"loss": [0.5, 3.0, 4.0]}}
        writer.add("batch", [make_item("x", rows, (3, 2)), make_item("w", [float("nan")])], **about)
    ask = Commands(tmp_path / "p", capsys)
    assert [(row["key"], row["tensor"]) for row in ask("find", "nan > 0").table_rows] == [("s1", "x"), ("batch", "w")]
    assert [row["key"] for row in ask("find", "scalar.loss > 1").table_rows] == ["s1", "s2"]


def test_json(page_commands: Commands) -> None:
    data = page_commands("find", "nan > 0 and scalar.loss < 9", "--json").json_data
    assert (data["looked_at"], data["fit"]) == (23, 1)
    (one,) = data["found"]
    assert (one["key"], one["tensor"], one["figures"]["inf"], one["scalars"]) == (1, "bad", 1, {"loss": 0.5})


@pytest.mark.parametrize(
    ("words", "what", "hint"),
    [
        (("absmx > 1",), "unknown name 'absmx'", "did you mean absmax?"),
        (("loss > 1",), "unknown name 'loss'", "known names: count"),
        (("scalar > 1",), "scalar alone is not a number", "scalar.NAME"),
        (("nan",), "is a number, not a condition", "absmax > 10"),
        (("__import__('os')",), "unknown name '__import__'", "known names"),
        (("nan >",), "it cannot be read", "nan > 0 or absmax > 1e4"),
        (("median(max) > 1",), "unknown name 'median'", "known names: abs"),
        (("nan > 0", "--sort", "mx"), "unknown name 'mx'", "did you mean max?"),
        (("nan > 0", "--limit", "-1"), "--limit cannot be negative", "0 or more"),
        (("nan > 0", "x", "y"), "4 arguments were given", "find"),
        ((), "is a path: the condition is missing", "find"),
    ],
)
def test_wrong_use(page_commands: Commands, words: tuple[str, ...], what: str, hint: str) -> None:
    told = page_commands("find", *words)
    assert told.code == 2 and told == []
    first, second = told.said.splitlines()
    assert what in first and hint in second


def test_the_place_may_come_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PageWriter(tmp_path / "pages") as writer:
        writer.add("k", [make_item("x", [1.0])])
    for words in (["find", "count > 0"], ["show", "k/x"]):
        assert cli.main(["inspect-pages", *words, str(tmp_path / "pages")]) == 0
        last = capsys.readouterr().out
        assert cli.main(["inspect-pages", words[0], str(tmp_path / "pages"), words[1]]) == 0
        assert capsys.readouterr().out == last != ""


def test_a_path_with_brackets_means_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PageWriter(tmp_path / "pages") as writer:
        writer.add(1, [make_item(path, [1.0]) for path in ("heads[0]", "heads[0].q:output", "heads0", "heads[01]")])
    ask = Commands(tmp_path / "pages", capsys)
    told = ask("find", "count > 0", "--layer", "heads[0]")
    assert [row["tensor"] for row in told.table_rows] == ["heads[0]", "heads[0].q:output", "heads0"]
    assert [row["path"] for row in ask("stats", "--layer", "heads[01]").table_rows] == ["heads0", "heads[01]"]


def test_figures_of_a_batch_are_no_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("count", "nan", "inf", "mean", "std", "low", "high")
    with PageWriter(tmp_path / "pages") as writer:
        for step, mean in enumerate((1.0, 3.0)):
            figures = dict(zip((f"a/{name}" for name in names), (4, 0, 0, mean, 0.0, mean, mean), strict=True))
            writer.add(step, [], step=step, keys=[5, 6, 7, 8], scalars=figures)
    ask = Commands(tmp_path / "pages", capsys)
    assert [row["key"] for row in ask("find", "mean > 0").table_rows] == ["0", "1"]
    grouped = ask("stats", "--group-by", "step", "--json").json_data
    assert {group: row["count"] for group, row in grouped[0]["groups"].items()} == {"0": 4, "1": 4}
