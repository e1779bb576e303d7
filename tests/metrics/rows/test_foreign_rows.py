"""Rows of other tools: JSON lines of flat numbers, and the state of transformers' and TRL's trainers."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tdbg.cli import main
from tdbg.metrics.rows import foreign_rows

HISTORY: list[dict[str, Any]] = [
    {"loss": 2.0, "grad_norm": 1.5, "learning_rate": 1e-4, "epoch": 0.5, "step": 10},
    {"eval_loss": 1.8, "eval_accuracy": 0.5, "eval_runtime": 0.1, "epoch": 1.0, "step": 20},
    {"loss": float("nan"), "rewards/margins": 0.25, "mean_token_accuracy": 0.5, "epoch": 1.5, "step": 30},
    {"train_runtime": 12.0, "train_loss": 1.5, "epoch": 2.0, "step": 40},
]


def run_metrics(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, str]:
    code = main(["metrics", *words, "--json"])
    told = capsys.readouterr()
    return code, json.loads(told.out)["data"] if told.out else None, told.err


@pytest.mark.parametrize("place", ["file", "folder", "checkpoint"])
def test_the_state_of_a_trainer(tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
    folder = tmp_path / "checkpoint-40" if place == "checkpoint" else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 40, "log_history": HISTORY}, indent=2))
    if place == "checkpoint":
        (tmp_path / "checkpoint-9").mkdir()
        (tmp_path / "checkpoint-9" / "trainer_state.json").write_text(json.dumps({"log_history": HISTORY[:1]}))
    named = folder / "trainer_state.json" if place == "file" else tmp_path
    code, found, said = run_metrics(capsys, "show", str(named))
    text = json.dumps(found)
    assert code == 0 and "skipped" not in said
    for key in ("train/loss", "eval/loss", "eval/accuracy", "train/grad_norm", "train/train_loss", "rewards/margins"):
        assert f'"{key}"' in text, key


def test_flat_lines_with_an_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"epoch": epoch, "train_loss": 2.0 / (epoch + 1), "train_acc1": 0.0, "val_acc1": 0.2 * epoch, "note": "x"}
        for epoch in range(4)
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"epoch": 4, "tor')
    code, found, said = run_metrics(capsys, "show", str(log))
    text = json.dumps(found)
    assert code == 0 and '"train/loss"' in text and '"val/acc1"' in text and '"epoch": 3' in text
    assert "1 line skipped" in said
    code, found, _ = run_metrics(capsys, "sanity", str(log))
    assert [(one["code"], one["title"]) for one in found["findings"]] == [("TD-K001", "train/acc1 was 0 all 4 times")]


def write_trainer_state(folder: Path, *, scale: float = 1.0, accuracy: float = 0.5, seconds: float = 1.0) -> Path:
    """A trainer's state of 12 epochs as transformers writes it, with the times of its machine."""
    history: list[dict[str, Any]] = []
    for epoch in range(1, 13):
        at = {"epoch": float(epoch), "step": 10 * epoch}
        speed = {"samples_per_second": 80 / seconds, "steps_per_second": 10 / seconds}
        history.append({"loss": scale / epoch, "grad_norm": 1.5 / epoch, "learning_rate": 1e-3 / epoch, **at})
        told = {"loss": 1.1 * scale / epoch, "accuracy": accuracy * epoch / 12, "runtime": seconds, **speed}
        history.append({**{f"eval_{name}": value for name, value in told.items()}, **at})
    history.append({"train_runtime": 12 * seconds, "total_flos": 0.0, "train_loss": 0.3, "epoch": 12.0, "step": 120})
    folder.mkdir(parents=True)
    path = folder / "trainer_state.json"
    path.write_text(json.dumps({"best_metric": None, "global_step": 120, "log_history": history}, indent=2))
    return path


def test_two_trainings_alike_differ_in_their_times_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_trainer_state(tmp_path / "one")
    other = write_trainer_state(tmp_path / "other" / "checkpoint-120", seconds=1.3)
    code, found, _ = run_metrics(capsys, "compare", str(one), str(tmp_path / "other"))
    (compared,) = found["compared"]
    assert code == 0 and not compared["differs"]
    assert {"train/loss", "train/grad_norm", "eval/loss", "eval/accuracy"} <= {row["key"] for row in compared["series"]}
    assert run_metrics(capsys, "compare", str(one), str(other), "--key", "eval/runtime")[0] == 1, (
        "unless they are asked for"
    )


def test_two_trainings_part_where_they_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = write_trainer_state(tmp_path / "one"), write_trainer_state(tmp_path / "other", scale=1.5)
    code, found, _ = run_metrics(capsys, "compare", str(one.parent), str(other.parent))
    parted = {row["key"]: row["parted"]["step"] for row in found["compared"][0]["series"] if row["parted"]}
    assert code == 1 and parted == {"train/loss": 10, "eval/loss": 10}


def test_sanity_of_a_trainers_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found, _ = run_metrics(capsys, "sanity", str(write_trainer_state(tmp_path / "fine")))
    assert (code, found["findings"], found["rows"]) == (0, [], 25)
    _, found, _ = run_metrics(capsys, "sanity", str(write_trainer_state(tmp_path / "still", accuracy=0.0)))
    assert [(one["code"], one["title"]) for one in found["findings"]] == [
        ("TD-K001", "eval/accuracy was 0 all 12 times")
    ]
    _, found, _ = run_metrics(capsys, "sanity", str(write_trainer_state(tmp_path / "lost", scale=float("nan"))))
    assert [one["code"] for one in found["findings"]] == ["TD-K011"]
    assert "first nan at step 10, and 1 more metric" in found["findings"][0]["title"]


@pytest.mark.parametrize("view", ["show", "sanity"])
def test_a_pipe_or_a_document_beyond_the_limit_holds_nothing_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, view: str
) -> None:
    os.mkfifo(tmp_path / "waits.json")
    path = write_trainer_state(tmp_path / "large")
    monkeypatch.setattr(foreign_rows, "LARGEST", 1000)
    for named, why in ((tmp_path / "waits.json", "it is a pipe, not a regular file"), (path, "larger than")):
        assert main(["metrics", view, str(named)]) == 2
        said = capsys.readouterr().err
        assert "tdbg itself failed" not in said and why in said


def test_two_logs_of_other_tools_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, scale in (("a", 1.0), ("b", 2.0)):
        rows = [{"global_step": step, "loss": scale / step} for step in range(1, 30)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, _ = run_metrics(capsys, "compare", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"))
    assert code == 1
    assert run_metrics(capsys, "compare", str(tmp_path / "a.jsonl"), str(tmp_path / "a.jsonl"))[0] == 0


@pytest.mark.parametrize("text", ["[1, 2]", "{}", '{"log_history": 3}', "{broken", '{"a": 1}\n{"b": 2}\n', "[[["])
def test_what_is_no_log_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    for name in ("x.json", "x.jsonl"):
        (tmp_path / name).write_text(text)
        assert main(["metrics", "show", str(tmp_path / name)]) in (1, 2)
        assert "Traceback" not in capsys.readouterr().err
