"""Numbers of datapoints that were not captured with them, but stand in the record of their step."""

from pathlib import Path
from typing import Any

import pytest

from tdbg.core.events import Step, encode
from tdbg.pages.format.page_writer import PageWriter
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.selection.datapoint_numbers import DatapointNumbers
from tests.pages.samples import Commands, make_item


def write_capture(folder: Path, rank: int = 0, attempt: str = "", losses: Any = (3.0, None, 1.0)) -> Path:
    """Three training steps of two samples and a pass of validation, with a record of each step that has a loss."""
    home = folder / f"rank{rank:04d}" / attempt
    with PageWriter(home / "pages", run="r", rank=rank, world_size=2) as writer:
        for step, _ in enumerate(losses, 1):
            keys = {"keys": [2 * step, 2 * step + 1], "split": ["x"]}
            writer.add(f"step{step}", [make_item("x", [step, step + 0.5])], step=step, epoch=0, phase="train", **keys)
        writer.add("step3", [make_item("x", [9.0, 9.0])], step=3, epoch=0, phase="val", keys=[20, 21], split=["x"])
    records = [Step(step=step, loss=loss, grad_norm=0.5) for step, loss in enumerate(losses, 1) if loss is not None]
    records.append(Step(step=3, phase="eval", forward_ms=1.0))
    lines = [encode(record) for record in records]
    (home / "events.jsonl").write_bytes(b"".join([*lines[:1], b'{"type":"step",torn\n', *lines[1:]]))
    return folder


def list_losses(folder: Path) -> list[Any]:
    with PageSet.open(folder) as pages:
        known = DatapointNumbers(pages)
        return [known.resolve_value(datapoint, "loss") for datapoint in pages]


def test_training_passes_have_the_loss_of_their_step(tmp_path: Path) -> None:
    assert list_losses(write_capture(tmp_path)) == [3.0, None, 1.0, None]
    assert list_losses(tmp_path / "rank0000" / "pages") == [3.0, None, 1.0, None], "whatever is named"


def test_ranks_and_attempts_have_their_own(tmp_path: Path) -> None:
    write_capture(tmp_path)
    write_capture(tmp_path, rank=1, losses=(7.0, 8.0, 9.0))
    write_capture(tmp_path, attempt="attempt1", losses=(5.0, 5.0, 5.0))
    assert sorted(map(str, list_losses(tmp_path))) == sorted(
        map(str, [3.0, None, 1.0, None, 5.0, 5.0, 5.0, None, 7.0, 8.0, 9.0, None])
    )


def test_what_was_captured_comes_first(tmp_path: Path) -> None:
    write_capture(tmp_path)
    with PageWriter(tmp_path / "rank0000" / "pages", run="r") as writer:
        writer.add("own", [], step=1, phase="train", scalars={"loss": 42.0})
    assert sorted(map(str, list_losses(tmp_path)))[-1] == "None" and 42.0 in list_losses(tmp_path)


def test_not_finite_numbers_are_numbers(tmp_path: Path) -> None:
    first, *_ = list_losses(write_capture(tmp_path, losses=(float("inf"),)))
    assert first == float("inf")


def test_stats_and_find_know_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = Commands(write_capture(tmp_path), capsys)
    assert [row["key"] for row in ask("find", "scalar.loss > 2 and max > 1.2").table_rows] == ["3"]
    assert [row["key"] for row in ask("find", "scalar.loss > 2").table_rows] == ["2", "3"]
    told = ask("stats", "--group-by", "loss")
    assert "1: 2 datapoints, 3: 2 datapoints" in told.said and "4 datapoints without loss: left out" in told.said


def test_a_name_that_nothing_has_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = Commands(write_capture(tmp_path), capsys)
    told = ask("find", "scalar.los > 2")
    assert told.code == 1
    assert "no datapoint has a scalar los; what they have: loss, grad_norm" in told.said
    assert "what they have" not in ask("find", "scalar.loss > 100").said
    assert "known fields: rank, step, epoch, phase, loss" in ask("stats", "--group-by", "los").said
