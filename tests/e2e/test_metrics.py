"""Metrics of real programs with no change to their code: what is in metrics.jsonl is what the program saw."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from tdbg.metrics.keys import Key
from tdbg.metrics.rows import row_codec
from tdbg.metrics.rows.row import FILE, Header, Row
from tdbg.metrics.rows.row_files import find_rows_files
from tdbg.metrics.rows.run_summary import summarize_run
from tdbg.metrics.sanity import evaluate_metrics
from tests.e2e import conftest
from tests.e2e.conftest import (
    EVERY_STEP,
    Result,
    Runner,
    assert_same_output,
    build_program_command,
    build_torchrun_command,
)
from tests.metrics.rows_of import read_csv
from tests.metrics.wandb_files import load_runs


def read_rows_file(path: Path) -> tuple[Header, list[Row]]:
    """The header and the rows of a file of which every line is whole."""
    found = [row_codec.decode_line(line) for line in path.read_bytes().splitlines(keepends=True)]
    header, *rows = found
    assert isinstance(header, Header) and all(isinstance(row, Row) for row in rows)
    return header, rows  # type: ignore[return-value]


def assert_no_finding(result: Result, *known: str) -> None:
    """Neither the rules on the run nor those on its metrics have anything to say, but for codes that are known."""
    conftest.assert_no_finding(result)
    found, trouble = evaluate_metrics(summarize_run(find_rows_files(str(result.folder)))[0])
    assert ([one.code for one in found], trouble) == ([*known], [])


def list_rows(result: Result, source: str, rank: int = 0) -> list[Row]:
    """The rows of one source."""
    return [row for row in read_rows_file(result.folder / f"rank{rank:04d}" / FILE)[1] if row.source == source]


def index_by_step(rows: list[Row], key: str) -> dict[int, float]:
    """The values of a key by step."""
    return {row.step: row.values[key] for row in rows if key in row.values}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_plain_loop(watched_runner: Runner, bare_runner: Runner, ranks: int) -> None:
    words = build_program_command("metrics_plain") if ranks == 1 else build_torchrun_command("metrics_plain")
    result = watched_runner(words, EVERY_STEP)
    assert result.code == 0, result.stderr
    if ranks == 1:
        assert_same_output(result, bare_runner(words))
    printed = {line["step"]: line for line in bare_runner(build_program_command("metrics_plain")).list_printed("step")}
    for rank in range(ranks):
        header, rows = read_rows_file(result.folder / f"rank{rank:04d}" / FILE)
        assert (header.schema, header.run, header.rank, header.attempt) == (1, "run", rank, 0)
        assert {row.rank for row in rows} == {rank}
        steps = [row for row in rows if row.source == "tdbg" and row.phase == "train"]
        assert index_by_step(steps, "train/loss") == pytest.approx(
            {step: line["loss"] for step, line in printed.items()}
        )
        assert index_by_step(steps, "train/grad_norm") == pytest.approx(
            {step: line["norm"] for step, line in printed.items()}, rel=1e-4
        )
        assert {row.step: row.epoch for row in steps} == {step: line["epoch"] for step, line in printed.items()}
        assert set(index_by_step(steps, "lr/group0").values()) == {1e-2} and set(
            index_by_step(steps, "lr/group1").values()
        ) == {1e-3}
        assert (
            len(index_by_step(steps, "pipeline/step_ms")) == 18
            and min(index_by_step(steps, "pipeline/step_ms").values()) > 0
        )
        assert {key: str(Key.parse(key)) for row in steps for key in row.values} == {
            key: key for row in steps for key in row.values
        }
        units = {key: unit for row in rows for key, unit in row.units.items()}
        assert units["pipeline/step_ms"] == "ms" and units["pipeline/host_mb"] == "mb"
        assert sum("pipeline/step_ms" in row.units for row in rows) == 1, "a unit is told once"
    assert_no_finding(result, "TD-K011")  # the program tells a NaN of its own


def test_passes_of_evaluation_and_own_metrics(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("metrics_plain"), EVERY_STEP)
    passes = [row for row in list_rows(result, "tdbg") if row.phase == "val"]
    assert [(row.step, row.values["val/calls"], row.values["val/samples"]) for row in passes] == [
        (6, 3, 20),
        (12, 3, 20),
        (18, 3, 20),
    ]
    assert all(0 < row.values["val/epoch_duration_sec"] < 5 for row in passes)
    own = list_rows(result, "metric")
    assert index_by_step(own, "metric/val_loss") == {line["step"]: line["loss"] for line in result.list_printed("val")}
    assert (
        all(math.isnan(value) for value in index_by_step(own, "val/bad").values())
        and len(index_by_step(own, "val/bad")) == 3
    )


def test_a_summary_writer(watched_runner: Runner, bare_runner: Runner, tmp_path: Path) -> None:
    result = watched_runner(build_program_command("metrics_plain", str(tmp_path / "tb")), EVERY_STEP)
    rows = list_rows(result, "tensorboard")
    printed = {line["step"]: line for line in result.list_printed("step")}
    assert result.stdout == bare_runner(build_program_command("metrics_plain")).stdout
    for row in rows:
        assert row.own_step == row.step and row.values.keys() == {"loss", "norm", "pair/a", "pair/b"}
    assert index_by_step(rows, "loss") == {step: line["loss"] for step, line in printed.items()}
    assert index_by_step(rows, "norm") == {step: line["norm"] for step, line in printed.items()}
    assert index_by_step(rows, "pair/b") == {step: 2 * step for step in printed}
    assert _read_tensorboard(tmp_path / "tb", "loss") == pytest.approx(index_by_step(rows, "loss")), (
        "what TensorBoard itself reads"
    )


def _read_tensorboard(folder: Path, tag: str) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {event.step: event.value for event in found.Scalars(tag)}


def test_weights_and_biases(watched_runner: Runner, bare_runner: Runner, tmp_path: Path) -> None:
    folders = [tmp_path / "bare", tmp_path / "watched"]
    for folder in folders:
        folder.mkdir()
    result = watched_runner(build_program_command("metrics_wandb", str(folders[1])))
    assert result.stdout == bare_runner(build_program_command("metrics_wandb", str(folders[0]))).stdout
    rows = list_rows(result, "wandb")
    sent: dict[tuple[int, str], Any] = {}
    for row in rows:
        assert row.own_step is not None
        sent |= {(row.own_step, key): value for key, value in (row.values | row.text).items()}
    kept = _read_wandb(folders[1])
    assert sent.keys() == kept.keys() and len(kept) == 6 * 3 + 2
    for key, value in kept.items():
        assert sent[key] == (value if isinstance(value, str | bool) else pytest.approx(value, rel=1e-6, nan_ok=True)), (
            key
        )
    losses = {line["step"]: line["loss"] for line in result.list_printed("step")}
    assert index_by_step(rows, "train/loss") == losses, "on tdbg's own axis of steps"


def _read_wandb(folder: Path) -> dict[tuple[int, str], Any]:
    """What stands in the file of the one offline run, by step and key."""
    (run,) = load_runs(folder)
    found: dict[tuple[int, str], Any] = {}
    for items in run["history"]:
        for key, value in _flatten_items(items):
            if not key.startswith("_") and key != "none" and not key.startswith("picture"):
                found[int(items["_step"]), key] = float(value) if value == "NaN" else value
    return found


def _flatten_items(items: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for key, value in items.items():
        found += _flatten_items(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return found


def test_torchmetrics(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("metrics_torchmetrics")
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    rows = list_rows(result, "torchmetrics")
    for epoch, (line, more) in enumerate(
        zip(result.list_printed("epoch"), result.list_printed("more"), strict=True), start=1
    ):
        values: dict[str, float] = {}
        for row in rows:
            if row.step == 4 * epoch:
                assert not values.keys() & row.values.keys(), "each value once"
                values |= row.values
        assert values == {
            "train_acc": line["train"],
            "val_acc": line["val"],
            "MeanMetric": more["mean"],
            "val/acc": more["acc"],
            "val/f1": more["f1"],
        }
    assert_no_finding(result)


def test_hugging_face(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("hf_trainer")
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    rows = list_rows(result, "hf")
    printed = result.list_printed("step")
    for name, key in (("loss", "loss"), ("grad_norm", "norm"), ("learning_rate", "lr")):
        assert index_by_step(rows, name) == {line["step"]: line[key] for line in printed}
    assert [row.own_step for row in rows] == [row.step for row in rows]
    assert {row.phase for row in rows} == {"train"} and rows[4].epoch == pytest.approx(0.5)
    assert index_by_step(list_rows(result, "tdbg"), "schedule/planned_steps") == {0: 10.0}
    assert_no_finding(result)


def test_lightning(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("metrics_lightning")
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    rows = list_rows(result, "lightning")
    losses = {line["step"]: line["loss"] for line in result.list_printed("step")}
    logged = index_by_step(rows, "train/loss_step")
    assert logged == pytest.approx({step: losses[step] for step in (2, 4, 6, 8, 10)})
    by_epoch = index_by_step(rows, "train/loss_epoch")
    assert by_epoch == pytest.approx({5: _compute_mean(losses, range(1, 6)), 10: _compute_mean(losses, range(6, 11))})
    assert index_by_step(rows, "val/mse") == pytest.approx(
        {line["step"]: line["mse"] for line in result.list_printed("val")}
    )
    assert {row.phase for row in rows if "val/mse" in row.values} == {"val"}
    own = list_rows(result, "tdbg")
    assert index_by_step(own, "schedule/planned_epochs") == {0: 2.0}, "the try-out before training is no epoch"
    passes = [(row.step, row.epoch, row.values["val/calls"]) for row in own if row.phase == "val"]
    assert passes == [(5, 0, 3.0), (10, 1, 3.0)]
    computed = [(row.step, row.epoch) for row in list_rows(result, "torchmetrics")]
    assert computed == [(5, 0), (10, 1)]
    assert_no_finding(result)


def _compute_mean(losses: dict[int, float], steps: range) -> float:
    return sum(losses[step] for step in steps) / len(steps)


def test_level_off_and_processes_that_never_step_write_none(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("plain"), ["--level", "off"])
    assert not list(result.folder.rglob(FILE))


def test_loader_workers_write_none(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("plain"))
    assert [path.relative_to(result.folder).as_posix() for path in result.folder.rglob(FILE)] == [f"rank0000/{FILE}"]


def _load_states(result: Result) -> list[tuple[str, dict[str, Any]]]:
    folder = result.folder / "rank0000" / "metrics_state"
    return [(path.name, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))]


@pytest.mark.parametrize("flag", ["DUMP_METRICS", "VALIDATION_METRICS"])
def test_the_state_of_a_tracker_at_each_validation(watched_runner: Runner, bare_runner: Runner, flag: str) -> None:
    words = build_program_command("metrics_tracker")
    result = watched_runner(words, ["-f", flag])
    assert_same_output(result, bare_runner(words))
    states = _load_states(result)
    printed = result.list_printed("val")
    assert [name for name, _ in states] == ["step00000006_val.json", "step00000012_val.json"]
    for line, (_, state) in zip(printed, states, strict=True):
        metrics = state["phases"]["val"]["metrics"]
        assert metrics["val/loss"]["value"] == line["val_loss"] and metrics["val/acc1"]["value"] == line["val_acc1"]
        assert metrics["val/loss"]["count"] == metrics["val/loss"]["partial"]["count"] == 20, "taken before the reset"
        assert state["step"] == line["step"] and state["phases"]["train"]["metrics"]["train/loss"]["count"] == 48
    assert [state["epoch"] for _, state in states] == [0, 1]
    look = result.verdict["looks"][flag]
    assert look["count"] == 2 and ("val/loss" in look["last"]) == (flag == "VALIDATION_METRICS")
    assert_no_finding(result)


def test_without_a_tracker_the_feed_has_one(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("metrics_plain"), ["-f", "DUMP_METRICS", *EVERY_STEP])
    states, printed = _load_states(result), result.list_printed("step")
    assert [name for name, _ in states] == [f"step{step:08d}_val.json" for step in (6, 12, 18)]
    for epoch, (_, state) in enumerate(states):
        losses = [line["loss"] for line in printed if line["epoch"] == epoch]
        train = state["phases"]["train"]["metrics"]["train/loss"]
        assert train["value"] == pytest.approx(sum(losses) / 6) and train["count"] == 48
        assert state["phases"]["val"]["metrics"]["val/samples"]["value"] == 20
        assert state["stores"]["lr/group1"]["value"] == 1e-3
        assert (state["step"], state["epoch"]) == (6 * epoch + 6, epoch)
    assert_no_finding(result, "TD-K011")  # the program tells a NaN of its own


def test_without_a_flag_nothing_is_dumped(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("metrics_tracker"))
    assert _load_states(result) == [] and result.codes == []


def test_a_phase_without_a_sample_is_a_finding_of_the_report(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("metrics_tracker", "--forget"), ["--fail-on", "warning"])
    assert result.code == 1, result.stderr
    assert any(
        "TD-K003 warning: val was finalised with count 0 at step 12: val/acc1" in line for line in result.tdbg_lines
    )
    report = json.loads((result.folder / "report.json").read_text(encoding="utf-8"))
    assert [finding["code"] for finding in report["findings"]] == ["TD-K003"]


def test_a_phase_whose_samples_are_all_nan_is_not_said_to_have_none(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("metrics_tracker", "--wild"))
    assert result.code == 0, result.stderr
    assert result.codes == [], "nobody forgot an update: TD-K011 of `tdbg metrics sanity` tells of the NaN"
    assert not any("TD-K003" in line for line in result.tdbg_lines)


def test_a_logger_of_the_program_writes_into_the_same_file(
    watched_runner: Runner, bare_runner: Runner, tmp_path: Path
) -> None:
    result = watched_runner(build_program_command("metrics_tracker", "--logger"), EVERY_STEP)
    assert_same_output(result, bare_runner(build_program_command("metrics_tracker")))
    own, seen = list_rows(result, "tracker"), list_rows(result, "tdbg")
    losses = {line["step"]: line["loss"] for line in result.list_printed("step")}
    assert index_by_step(own, "train/loss") == losses == index_by_step(seen, "train/loss")
    assert index_by_step(own, "val/loss") == {line["step"]: line["val_loss"] for line in result.list_printed("val")}
    assert not (tmp_path / "metrics").exists(), "where it writes without tdbg"
    assert_no_finding(result)


def test_what_its_own_sinks_send_is_not_heard_twice(watched_runner: Runner, tmp_path: Path) -> None:
    """A W&B sink of the step logger sends rows that stand in the file already, and the program logs one more itself."""
    script = tmp_path / "own_sink.py"
    script.write_text(
        "import torch, wandb\n"
        "from tdbg import StepMetricsLogger\n"
        "from tdbg.metrics.sinks.wandb_ import WandbSink\n"
        "model = torch.nn.Linear(2, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        f"logger = StepMetricsLogger(sinks=[WandbSink(project='own', mode='offline', dir={str(tmp_path)!r})])\n"
        "for step in range(1, 21):\n"
        "    loss = model(torch.ones(4, 2)).square().mean(); loss.backward(); optimizer.step(); optimizer.zero_grad()\n"
        "    logger.log_step_metrics({'loss': loss.item()}, step=step, samples=4)\n"
        "wandb.log({'mine': 1.0})\n"
        "logger.close()\n"
    )
    result = watched_runner([sys.executable, str(script)], env={"WANDB_SILENT": "true"})
    assert result.code == 0, result.stderr
    assert [set(row.values) for row in list_rows(result, "wandb")] == [{"mine"}]
    assert list_rows(result, "tracker")


def test_files_of_sinks_lie_in_the_folder_of_their_rank_and_attempt(watched_runner: Runner, tmp_path: Path) -> None:
    script = tmp_path / "restarted.py"
    script.write_text(
        "import glob, os, sys, time, torch\n"
        "from tdbg import StepMetricsLogger\n"
        "model = torch.nn.Linear(2, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "logger = StepMetricsLogger(sinks=['csv', 'tensorboard'], console=False)\n"
        "for step in range(1, 21):\n"
        "    loss = model(torch.ones(4, 2)).square().mean(); loss.backward(); optimizer.step(); optimizer.zero_grad()\n"
        "    logger.log_step_metrics({'loss': loss.item()}, step=step, samples=4)\n"
        "logger.close()\n"
        "open(os.path.join(os.path.dirname(__file__), 'run', 'done' + os.environ['RANK']), 'w').close()\n"
        "while len(glob.glob(os.path.join(os.path.dirname(__file__), 'run', 'done*'))) < 2: time.sleep(0.01)\n"
        "sys.exit(3 * (os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'))\n"
    )
    words = ["torchrun", "--standalone", "--nproc-per-node=2", "--max-restarts=1", str(script)]
    result = watched_runner(words)
    assert result.code == 0, result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"run", "restarted.py"}
    for rank, attempt in ((0, "."), (0, "attempt1"), (1, "."), (1, "attempt1")):
        folder = result.folder / f"rank{rank:04d}" / attempt
        rows = read_csv(folder / "metrics.csv")
        assert {(row["rank"], row["attempt"]) for row in rows} == {(str(rank), "0")}
        steps = [int(row["step"]) for row in rows if row["key"] == "train/step_avg_loss"]
        assert steps == sorted(set(steps)) and steps[-1] == 20
        assert (folder / "tensorboard").is_dir() == (rank == 0)


def test_the_state_that_transformers_keeps(tmp_path: Path) -> None:
    """Three trainings without tdbg: two alike, and one with another learning rate."""
    printed: dict[str, list[dict[str, Any]]] = {}
    for name, rate in (("one", "1e-3"), ("same", "1e-3"), ("other", "1e-2")):
        (tmp_path / name).mkdir()
        done = conftest.run_command(build_program_command("hf_trainer", "1", name, rate), tmp_path)
        assert done.code == 0, done.stderr
        printed[name] = done.list_printed("step")

    def asked(*words: str) -> tuple[int, Any]:
        done = conftest.run_command([sys.executable, "-m", "tdbg", "metrics", *words, "--json"], tmp_path)
        return done.code, json.loads(done.stdout)["data"]

    code, shown = asked("show", "one")
    losses = {row["key"]: row for row in shown["series"]}
    assert code == 0 and losses["train/loss"]["latest"]["value"] == pytest.approx(printed["one"][-1]["loss"])
    assert losses["train/loss"]["count"] == 10 and losses["eval/loss"]["count"] == 1
    code, judged = asked("sanity", "one/trainer_state.json")
    assert code == 0 and judged.pop("not_watched")[0]["codes"] == ["TD-K002"]
    assert judged == {"run": "one/trainer_state.json", "rows": 12, "findings": []}
    code, found = asked("compare", "one", "same")
    assert code == 0 and not found["compared"][0]["differs"]
    code, found = asked("compare", "one", "other")
    parted = {row["key"]: row["parted"]["step"] for row in found["compared"][0]["series"] if row["parted"]}
    assert code == 1 and parted["train/learning_rate"] == 1 and parted["train/loss"] == 2 and "eval/loss" in parted
