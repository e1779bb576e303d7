"""W&B for real, offline: what its own files hold, key by key."""

import json
import re

import pytest
from metrics.rows_of import make_row, run_program
from metrics.wandb_files import load_runs as records

from tdbg.metrics.sinks.wandb_ import WandbSink
from tdbg.metrics.step_logger.ops_schedule import OpsSchedule
from tdbg.metrics.step_logger.step_metrics_logger import StepMetricsLogger

wandb = pytest.importorskip("wandb")


@pytest.fixture(autouse=True)
def offline_wandb(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    for name in ("WANDB_API_KEY", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_every_row_stands_in_the_files_of_wandb(tmp_path):
    sink = WandbSink(project="p", dir=str(tmp_path))
    schedule = OpsSchedule(total_steps=25, wandb=10, console=0, lr=10)
    log = StepMetricsLogger(
        schedule=schedule, sinks=[sink], folder=tmp_path / "m", rank=0, config={"SOLVER": {"LR": 0.1}, "name": "x"}
    )
    for step in range(1, 26):
        log.log_step_metrics(
            {"loss": 1 / step}, step=step, epoch=step // 10, tasks={"genus": {"acc1": 0.5}}, lr={"head": 0.1 / step}
        )
    log.log_schedule_values({"group": "a", "mixup": 0.5}, step=25, static={"epochs": 3})
    log.tracker.update_val_metrics({"loss": 0.5}, 4)
    log.tracker.finalize_val_phase("val", 2, 25)
    log.log_validation_summary()
    log.log_final_results()
    log.close()
    (found,) = records(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "m" / "metrics.jsonl").read_text().splitlines()[1:]]
    assert len(rows) == len(found["history"]) >= 7
    for ours, theirs in zip(rows, found["history"], strict=True):
        sent = {key: value for key, value in theirs.items() if not key.startswith("_")}
        stamp = {"global_step": ours["step"], "rank": 0, "epoch": ours["epoch"]}
        stamp |= {"phase": ours["phase"]} if "phase" in ours else {}
        assert sent == ours["values"] | ours.get("text", {}) | stamp
    means = [one["train/step_avg_loss"] for one in found["history"] if "train/step_avg_loss" in one]
    assert means[0] == pytest.approx(sum(1 / s for s in range(1, 11)) / 10) and len(means) == 3
    config = {key: value for key, value in found["config"].items() if not key.startswith("_wandb")}
    assert config == {"SOLVER.LR": 0.1, "name": "x", "schedule/epochs": 3, "run_id": found["id"]}
    assert found["summary"]["val/best_loss"] == 0.5 and found["summary"]["val/best_loss.epoch"] == 2


def test_a_resumed_run_has_the_same_id(tmp_path):
    log = StepMetricsLogger(
        sinks=[WandbSink(project="p", dir=str(tmp_path))], folder=tmp_path / "m", rank=0, console=False
    )
    log.log_step_metrics({"loss": 1.0}, step=10)
    state = json.loads(json.dumps(log.state_dict()))
    log.close()
    log = StepMetricsLogger(
        sinks=[WandbSink(project="p", dir=str(tmp_path))], folder=tmp_path / "m", rank=0, console=False, config={"a": 1}
    )
    log.load_state_dict(state)
    log.log_step_metrics({"loss": 2.0}, step=20)
    log.close()
    one, other = records(tmp_path)
    assert one["id"] == other["id"] == state["sinks"]["wandb"]["run_id"]
    assert re.fullmatch(r"[a-z0-9]{8}", one["id"])
    assert other["history"][-1]["train/step_avg_loss"] == 2.0 and other["config"]["a"] == 1


def test_resume_must_is_what_wandb_is_asked(monkeypatch, tmp_path):
    asked = []
    begin = wandb.init
    monkeypatch.setattr(wandb, "init", lambda **given: asked.append(given) or begin(**given))
    sink = WandbSink(project="p", dir=str(tmp_path))
    sink.load_state_dict({"run_id": "abcd1234"})
    sink.write(make_row(1, {"train/loss": 1.0}))
    sink.close()
    assert (asked[0]["id"], asked[0]["resume"]) == ("abcd1234", "must")
    assert records(tmp_path)[0]["id"] == "abcd1234"


def test_only_rank_0_writes(tmp_path):
    for rank in (0, 1):
        log = StepMetricsLogger(
            sinks=[WandbSink(dir=str(tmp_path))], folder=tmp_path / str(rank), rank=rank, console=False
        )
        log.log_step_metrics({"loss": 1.0}, step=10)
        log.close()
    assert len(records(tmp_path)) == 1 and (tmp_path / "1" / "metrics.jsonl").exists()


UNREACHABLE = """
import sys
from tdbg.metrics.step_logger.step_metrics_logger import StepMetricsLogger
from tdbg.metrics.sinks.wandb_ import WandbSink
import wandb
sink = WandbSink(project="p", settings=wandb.Settings(init_timeout=3, base_url="http://127.0.0.1:9"))
log = StepMetricsLogger(sinks=[sink], folder=sys.argv[1], rank=0, console=False)
for step in range(1, 31): log.log_step_metrics({"loss": 1 / step}, step=step)
log.close()
print("trained")
"""


@pytest.mark.parametrize("key", ["", "x" * 40])
def test_a_server_that_cannot_be_reached_loses_nothing(tmp_path, key):
    env = {"WANDB_MODE": "online", "WANDB_API_KEY": key, "WANDB_SILENT": "true"}
    done = run_program(UNREACHABLE, tmp_path / "m", env=env, cwd=tmp_path, timeout=200)
    assert done.returncode == 0 and done.stdout.endswith("trained\n"), done.stderr
    assert done.stderr.count("W&B cannot be reached") == 1
    (found,) = records(tmp_path, "offline-run-*")
    assert [one["global_step"] for one in found["history"]] == [10, 20, 30]


@pytest.mark.parametrize("form", [dict, lambda **given: wandb.Settings(**given)])
def test_the_time_allowed_for_a_server_is_not_that_to_begin_offline(monkeypatch, tmp_path, form):
    """Else a busy machine does not begin offline in time, and every row is lost."""
    asked = []
    begin = wandb.init

    def record_init(**given):
        asked.append(given)
        return begin(**given)

    monkeypatch.setattr(wandb, "init", record_init)
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    given = form(init_timeout=0.2, base_url="http://127.0.0.1:9")
    sink = WandbSink(project="p", dir=str(tmp_path), mode="online", settings=given)
    sink.write(make_row(1, {"train/loss": 1.0}))
    sink.close()
    first, second = (dict(one["settings"]) for one in asked)
    assert (first["init_timeout"], second["init_timeout"]) == (0.2, 60)
    assert second["base_url"] == "http://127.0.0.1:9" and given is asked[0]["settings"]
    (found,) = records(tmp_path, "offline-run-*")
    assert len(found["history"]) == 1


def test_without_wandb_the_file_is_written_all_the_same(tmp_path):
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "wandb.py").write_text("raise ImportError('not here')")
    code = """
import sys
from tdbg.metrics.step_logger.step_metrics_logger import StepMetricsLogger
from tdbg.metrics.sinks.wandb_ import WandbSink
log = StepMetricsLogger(sinks=[WandbSink()], folder=sys.argv[1], rank=0, console=False)
for step in range(1, 51): log.log_step_metrics({"loss": 1 / step}, step=step)
"""
    done = run_program(code, tmp_path / "m", env={"PYTHONPATH": str(tmp_path / "none")}, cwd=tmp_path)
    assert done.returncode == 0
    assert "pip install" in done.stderr or "needs wandb" in done.stderr
    assert (tmp_path / "m" / "metrics.jsonl").read_text().count('"values"') == 5
