"""The step logger: what is due is written, once, under the right name, with the right step and epoch."""

import inspect
import json
import math

import pytest
import torch
from metrics.rows_of import list_lines, read_raw

from tdbg.core.errors import TdbgError
from tdbg.metrics.keys import Key, is_key
from tdbg.metrics.sinks.base import MetricSink
from tdbg.metrics.step_logger.averaging import AveragingWindow
from tdbg.metrics.step_logger.ops_schedule import OpsSchedule
from tdbg.metrics.step_logger.step_metrics_logger import StepMetricsLogger
from tdbg.metrics.tracker.metric_values import MetricValueError
from tdbg.metrics.tracker.metrics_tracker import MetricsTracker


class Keeps(MetricSink):
    name = "keeps"
    every_rank = True

    def __init__(self):
        self.rows, self.configs, self.summaries, self.told = [], {}, {}, 0

    def write(self, row):
        self.rows.append(row)

    def config(self, values):
        self.configs |= values
        self.told += 1

    def summary(self, values):
        self.summaries |= values

    def list_values(self, key):
        return [(row.step, row.epoch, row.values[key]) for row in self.rows if key in row.values]


@pytest.fixture
def make_logger(tmp_path):
    made = []

    def make_one(sink=None, tracker=None, **schedule):
        more = {name: schedule.pop(name) for name in ("rank", "config", "core") if name in schedule}
        schedule = OpsSchedule(**{"console": 0, **schedule})
        log = StepMetricsLogger(tracker, schedule, sinks=[sink] if sink else (), folder=tmp_path, **{"rank": 0, **more})
        made.append(log)
        return log

    yield make_one
    for log in made:
        log.close()


def test_averages_carry_step_avg_and_weigh_samples(make_logger):
    sink = Keeps()
    log = make_logger(sink, wandb=3)
    for step, (loss, samples) in enumerate([(1.0, 4), (2.0, 4), (6.0, 1), (5.0, 2)], 1):
        log.log_step_metrics({"loss": loss}, step=step, samples=samples, tasks={"genus": {"acc1": loss / 10}})
    log.close()
    assert sink.list_values("train/step_avg_loss") == [(3, None, 18 / 9), (4, None, 5.0)]
    assert sink.list_values("train/step_avg_acc1_genus")[0][2] == pytest.approx(1.8 / 9)
    assert sink.list_values("core/train_loss") == sink.list_values("train/step_avg_loss")
    assert not sink.list_values("train/loss")


def test_where_each_step_is_written_no_key_is_renamed(make_logger):
    sink = Keeps()
    log = make_logger(sink, wandb=1)
    for step in (1, 2, 3):
        log.log_step_metrics({"loss": float(step)}, step=step)
    assert [value for *_, value in sink.list_values("train/loss")] == [1.0, 2.0, 3.0]
    assert not any("step_avg_" in key for row in sink.rows for key in row.values)


def test_every_averaged_key_is_renamed_and_last_values_never(make_logger):
    sink = Keeps()
    log = make_logger(sink, wandb=5, lr=1)
    values = {"loss": 1.0, "loss/class": 2.0, "europe/acc1": 3.0, "pipeline/wait_ms": 4.0, "lr/head": 0.5}
    values["train/europe/acc1"] = values.pop("europe/acc1")
    for step in range(1, 6):
        log.log_step_metrics({**values, "lr/head": 0.5 / step, "lr": 1.0 / step}, step=step)
    (row,) = sink.rows
    rates = {"train/samples_per_sec"}
    assert row.values.keys() - rates == {
        "train/step_avg_loss",
        "core/train_loss",
        "loss/step_avg_class",
        "train/europe/step_avg_acc1",
        "pipeline/wait_ms",
        "lr/head",
        "train/lr",
    }
    assert (row.values["lr/head"], row.values["train/lr"]) == (0.1, 0.2)
    assert all(is_key(key) for key in row.values)


def test_rows_are_stamped_by_the_writer(make_logger, tmp_path):
    sink = Keeps()
    log = make_logger(sink, wandb=2, lr=2, total_steps=20)
    for step in range(1, 21):
        log.log_step_metrics({"loss": 1 / step}, step=step, epoch=step // 5, lr=0.1)
    log.tracker.update_val_metrics({"loss": 0.5}, 4)
    log.tracker.finalize_val_phase("val", 4, 20)
    log.log_validation_summary(step=20, epoch=4)
    stamps = [(row.step, row.epoch) for row in sink.rows]
    assert stamps == sorted(stamps) and stamps[-1] == (20, 4) and len({epoch for _, epoch in stamps}) == 5
    assert all(row.epoch == row.step // 5 for row in sink.rows)


def test_a_row_has_the_epoch_and_step_that_the_tracker_alone_was_told(make_logger):
    """Seen: rows without an epoch, summaries of the step before, and a tracker that was told that its epoch is None."""
    sink = Keeps()
    log = make_logger(sink, wandb=2)
    for epoch in range(2):
        for step in (epoch * 4 + 1, epoch * 4 + 2):
            log.tracker.update_train_batch({"loss": 1.0}, 4, epoch=epoch, step=step)
            log.log_step_metrics({"loss": 1.0}, step=step)
        log.tracker.update_val_metrics({"loss": 0.5 - epoch}, 4)
        log.tracker.finalize_val_phase("val", epoch, epoch * 4 + 3)
        log.log_validation_summary()
        log.tracker.finalize_train_epoch()
        log.log_epoch_summary()
    assert [(row.step, row.epoch) for row in sink.rows] == [(2, 0), (3, 0), (3, 0), (6, 1), (7, 1), (7, 1)]
    assert [(point.epoch, point.step) for point in log.tracker.metric("train/loss").history] == [(0, 3), (1, 7)]


def test_the_sum_of_counts_is_the_batches_seen(make_logger):
    """Also of a last window that is not whole."""
    sink = Keeps()
    log = make_logger(sink, wandb=7)
    for step in range(1, 101):
        log.log_step_metrics({"loss": 1.0, "seen": float(step)}, step=step)
    log.close()
    log.close()
    sizes = [7] * 14 + [2]
    assert [round(value * 2) for *_, value in sink.list_values("train/step_avg_seen")] == [
        2 * last - size + 1 for last, size in zip([*range(7, 99, 7), 100], sizes, strict=True)
    ]


def test_a_window_goes_on_over_the_end_of_an_epoch(make_logger):
    """Seen: the averages were made anew each epoch, and what was in them was lost."""
    sink = Keeps()
    log = make_logger(sink, wandb=7)
    for step in range(1, 16):
        log.log_step_metrics({"loss": float(step)}, step=step, epoch=(step - 1) // 5)
        if step % 5 == 0:
            log.tracker.update_train_batch({"loss": 1.0}, 1)
            log.tracker.finalize_train_epoch()
            log.log_epoch_summary()
    log.close()
    assert sink.list_values("train/step_avg_loss") == [(7, 1, 4.0), (14, 2, 11.0), (15, 2, 15.0)]


def test_what_is_not_finite_is_in_no_mean_but_told(make_logger):
    sink = Keeps()
    log = make_logger(sink, wandb=4)
    for step, loss in enumerate([1.0, float("nan"), 3.0, float("inf"), float("nan")], 1):
        log.log_step_metrics({"loss": loss}, step=step, samples=2)
    log.close()
    assert next(value for *_, value in sink.list_values("train/step_avg_loss")) == 2.0
    assert [value for *_, value in sink.list_values("train/not_finite_loss")] == [4, 2]
    last = sink.list_values("train/step_avg_loss")[1][2]
    assert last != last  # NaN: nothing finite came


def test_intervals_are_kept_apart_and_checked_at_the_step(make_logger, capsys):
    sink = Keeps()
    log = make_logger(sink, wandb=4, lr=3, pipeline=5, gradnorm=6, schedule_values=8, console=10, total_steps=24)
    for step in range(1, 25):
        log.log_step_metrics({"loss": 1.0}, step=step)
        log.log_learning_rates({"head": 0.1}, step=step)
        log.log_pipeline_metrics({"wait_ms": 1.0}, step=step)
        log.log_gradnorm_metrics({"loss": {"genus": 1.0}}, step=step)
        log.log_schedule_values({"mixup": 0.5, "group": "a"}, step=step, static={"epochs": 3})
    steps = lambda key: [step for step, *_ in sink.list_values(key)]  # noqa: E731
    assert steps("train/step_avg_loss") == [4, 8, 12, 16, 20, 24]
    assert steps("lr/head") == [3, 6, 9, 12, 15, 18, 21, 24]
    assert steps("pipeline/wait_ms") == [5, 10, 15, 20]
    assert steps("gradnorm/loss_genus") == [6, 12, 18, 24]
    assert steps("schedule/mixup") == [1, 8, 16, 24]  # the first call counts as the start
    assert next(row.text for row in sink.rows if row.text) == {"schedule/group_str": "a"}
    assert sink.configs == {"schedule/epochs": 3} and sink.told == 1  # the static schedule, once
    printed = capsys.readouterr().err.splitlines()
    assert [line.split(" [")[0] for line in printed] == ["step 10/24", "step 20/24"]


def test_each_public_method_writes_in_a_tiny_run(make_logger, tmp_path):
    """No summary without a caller: what is public is reached, and leaves its mark."""
    sink = Keeps()
    tracker = MetricsTracker(hierarchy=("genus",))
    log = make_logger(sink, tracker, wandb=2, lr=2, pipeline=2, gradnorm=2, schedule_values=2)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD([{"params": model.parameters(), "name": "head"}], lr=0.1)
    called = set()

    def call_method(name, *args, **kwargs):
        called.add(name)
        return getattr(log, name)(*args, **kwargs)

    for step in (1, 2):
        loss = model(torch.ones(4, 2)).mean()
        tracker.update_train_batch({"loss": loss}, 4)
        call_method("log_step_metrics", {"loss": loss, "grad_norm": torch.tensor(2.0)}, step=step, epoch=0, samples=4)
        call_method("log_learning_rates", optimizer, step=step)
        call_method("log_pipeline_metrics", {"queue": 3}, step=step)
        call_method("log_gradnorm_metrics", {"weight": {"genus": 0.5}}, step=step)
        call_method("log_schedule_values", {"mixup": 0.1}, step=step)
    call_method("accumulate_metrics_for_wandb", {"loss": 3.0}, 4)
    assert call_method("get_averaged_wandb_metrics")["train/step_avg_loss"] == 3.0
    tracker.finalize_train_epoch(0, 2)
    tracker.update_val_metrics({"loss": 0.25}, 4)
    tracker.finalize_val_phase("val", 0, 2)
    call_method("log_epoch_summary", epoch=0, step=2)
    call_method("log_validation_summary", "val")
    call_method("flush")
    results = call_method("log_final_results")
    call_method("load_state_dict", json.loads(json.dumps(call_method("state_dict"))))
    call_method("close")
    public = {name for name, _ in inspect.getmembers(StepMetricsLogger, inspect.isfunction) if not name.startswith("_")}
    assert called == public
    keys = {key for row in sink.rows for key in row.values}
    assert keys >= {"train/step_avg_loss", "train/loss", "val/loss", "lr/head", "pipeline/queue", "val/best_loss"}
    assert keys >= {"gradnorm/weight_genus", "schedule/mixup", "core/val_loss", "core/train_loss"}
    assert all(is_key(key) and str(Key.parse(key)) == key for key in keys)
    assert results["val/best_loss"] == 0.25 == sink.summaries["val/best_loss"]
    assert results.keys() >= {"train/loss", "val/loss"}
    ours = [line for line in read_raw(tmp_path / "metrics.jsonl") if "step" in line]
    assert [line["values"] for line in ours] == [row.values for row in sink.rows]


def test_units_stand_in_the_row_that_has_the_key_first(make_logger, tmp_path):
    """Those of averages, copies and bests are the metric's own."""
    tracker = MetricsTracker(units={"accuracy": "pct"})
    log = make_logger(tracker=tracker, wandb=2)
    log.log_step_metrics({"loss": 1.0}, step=2, tasks={"genus": {"accuracy": 25.0}})
    for epoch in (0, 1):
        tracker.update_val_metrics({"accuracy": 50.0}, 4)
        tracker.finalize_val_phase("val", epoch, epoch)
        log.log_validation_summary()
    log.log_final_results()
    log.close()
    assert [line.get("units") for line in read_raw(tmp_path / "metrics.jsonl")[1:]] == [
        {"train/step_avg_accuracy_genus": "pct", "core/train_accuracy/genus": "pct"},
        {"val/accuracy": "pct", "core/val_accuracy": "pct"},
        None,
        {"val/best_accuracy": "pct"},
    ]


def test_an_unknown_phase_is_an_error_with_the_nearest(make_logger):
    log = make_logger()
    log.tracker.update_val_metrics({"loss": 0.5}, 4, phase="val_mask_meta")
    log.tracker.finalize_val_phase("val_mask_meta")
    with pytest.raises(TdbgError) as failed:
        log.log_validation_summary("val_mask")
    assert "val_mask_meta" in failed.value.hint


def test_a_step_that_is_no_number_is_taken_not_at_all(make_logger):
    sink = Keeps()
    log = make_logger(sink, wandb=1)
    with pytest.raises(MetricValueError, match="loss"):
        log.log_step_metrics({"acc1": 1.0, "loss": torch.ones(3)}, step=1)
    assert not sink.rows and not log.window.steps


def test_early_stopping_gives_its_reason(make_logger):
    log = make_logger(early_stop={"patience": 1, "max_loss": 100.0})
    assert log.log_step_metrics({"loss": 1.0}, step=1) is None
    for epoch, loss in enumerate([1.0, 2.0, 3.0]):
        log.tracker.update_val_metrics({"loss": loss}, 4)
        log.tracker.finalize_val_phase("val", epoch, epoch)
        reason = log.log_validation_summary()
    assert reason is log.stop and reason.rule == "patience" and "val/loss" in reason.text
    other = make_logger(early_stop={"max_loss": 100.0})
    assert other.log_step_metrics({"loss": 101.0}, step=2).rule == "max_loss"


def test_the_level_of_the_schedule_is_told(make_logger):
    log = make_logger(levels={2: "advanced", 3: "basic"})
    seen = []
    for step in (1, 2, 3):
        log.log_step_metrics({"loss": 1.0}, step=step)
        seen.append(log.level)
    assert seen == [None, "advanced", "basic"]


def test_a_window_in_epochs_is_written_at_the_end_of_its_epoch(make_logger):
    sink = Keeps()
    log = make_logger(sink, wandb={"epochs": 2})
    for epoch in range(4):
        log.log_step_metrics({"loss": float(epoch)}, step=epoch + 1, epoch=epoch)
        log.tracker.update_train_batch({"loss": float(epoch)}, 1)
        log.tracker.finalize_train_epoch(epoch, epoch + 1)
        log.log_epoch_summary(epoch=epoch)
    assert [value for *_, value in sink.list_values("train/step_avg_loss")] == [0.5, 2.5]


def test_an_interval_in_epochs_counts_those_of_a_program_that_names_none(make_logger):
    sink = Keeps()
    log = make_logger(sink, wandb={"epochs": 2})
    for step in range(1, 5):
        log.log_step_metrics({"loss": float(step)}, step=step)
        log.tracker.update_train_batch({"loss": 1.0}, 1)
        log.tracker.finalize_train_epoch()
        log.log_epoch_summary()
    assert sink.list_values("train/step_avg_loss") == [(2, None, 1.5), (4, None, 3.5)]


def test_what_is_left_where_the_interval_is_off_is_a_mean_by_its_name(make_logger):
    sink = Keeps()
    log = make_logger(sink, wandb=0)
    for step in range(1, 11):
        log.log_step_metrics({"loss": float(step)}, step=step)
    assert not sink.rows
    log.close()
    assert sink.list_values("train/step_avg_loss") == [(10, None, 5.5)] and not sink.list_values("train/loss")


def test_core_copies_can_be_left_out(make_logger):
    sink = Keeps()
    log = make_logger(sink, wandb=1, core=False)
    log.log_step_metrics({"loss": 1.0}, step=1)
    log.tracker.update_val_metrics({"loss": 0.5}, 4)
    log.tracker.finalize_val_phase("val", 0, 1)
    log.log_validation_summary()
    assert not any(key.startswith("core/") for row in sink.rows for key in row.values)


def test_finals_are_of_every_phase_that_there_is(make_logger):
    """Seen: a fixed list of phases, with a name that no phase had."""
    sink = Keeps()
    log = make_logger(sink)
    phases = ("train", "val", "val_mask_meta", "val_mask_SPATIAL", "night")
    for phase in phases:
        for epoch, loss in enumerate((0.25, 0.5)):
            log.tracker.update_val_metrics(
                {"loss": loss}, 4, phase=phase, subsets={"eu": {"acc1": loss}}, subset_samples={"eu": 2}
            )
            log.tracker.finalize_val_phase(phase, epoch, epoch + 1)
    results = log.log_final_results()
    for phase in phases:
        assert (results[f"{phase}/loss"], results[f"{phase}/best_loss"]) == (0.5, 0.25)
        assert sink.summaries[f"{phase}/best_loss.epoch"] == 0 and sink.list_values(f"{phase}/best_loss")
        assert results[f"{phase}/eu/best_acc1"] == 0.5


def test_a_summary_has_the_subsets_of_its_pass(make_logger):
    """Seen: subset values were never exported."""
    sink = Keeps()
    log = make_logger(sink)
    for samples, value in ((3, 1.0), (1, 0.0)):
        log.tracker.update_val_metrics(
            {"loss": 1.0}, 4, subsets={"eu": {"acc1": value}}, subset_samples={"eu": samples}
        )
    log.tracker.finalize_val_phase("val", 0, 1)
    log.log_validation_summary()
    assert sink.list_values("val/eu/acc1") == [(1, 0, 0.75)]


def test_other_ranks_write_their_file_and_print_nothing(make_logger, tmp_path, capsys):
    log = make_logger(rank=3, console=1)
    log.log_step_metrics({"loss": 1.0}, step=10)
    log.close()
    assert [line.rank for line in list_lines(tmp_path / "metrics.jsonl")] == [3]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "broken", [{}, {"version": 9}, {"version": 1, "step": "x", "epoch": 0, "window": {}, "sinks": {}}]
)
def test_a_corrupt_state_changes_nothing(make_logger, broken):
    log = make_logger(wandb=100)
    log.log_step_metrics({"loss": 1.0}, step=5)
    before = log.state_dict()
    with pytest.raises(TdbgError, match="invalid"):
        log.load_state_dict(broken)
    with pytest.raises(TdbgError, match="invalid"):
        log.load_state_dict({**before, "window": {"version": 1, "steps": 1, "sums": {"train/loss": [1]}, "last": {}}})
    assert log.state_dict() == before


def test_a_window_goes_on_exactly(make_logger):
    one, other = AveragingWindow(renames=True), AveragingWindow(renames=True)
    values = [{Key("train", "loss"): 0.1 * step, Key("lr", "head"): 1.0 / step} for step in range(1, 20)]
    for at, step in enumerate(values):
        one.add_step(step, at % 3 + 1)
        other.add_step(step, at % 3 + 1)
        again = AveragingWindow(renames=True)
        again.load_state_dict(json.loads(json.dumps(other.state_dict())))
        other = again
    assert one.flush() == other.flush() and one.flush() == {} == other.flush()


def test_a_pass_whose_values_are_not_finite_is_written_as_such(make_logger):
    """Seen: the row said the values of the pass before once more."""
    sink = Keeps()
    log = make_logger(sink, early_stop={"patience": 1})
    log.tracker.update_val_metrics({"loss": 1.0, "acc1": 0.5}, 4)
    log.tracker.finalize_val_phase(epoch=0, step=10)
    assert log.log_validation_summary(step=10, epoch=0) is None
    log.tracker.update_val_metrics({"loss": math.nan}, 4)
    log.tracker.finalize_val_phase(epoch=1, step=20)
    reason = log.log_validation_summary(step=20, epoch=1)
    first, second = sink.rows
    assert first.values == {"val/loss": 1.0, "val/acc1": 0.5, "core/val_loss": 1.0, "core/val_acc1": 0.5}
    assert {key: str(value) for key, value in second.values.items()} == {"val/loss": "nan"}
    assert second.text == {"val/count_0_str": "val/acc1"} and not first.text
    assert reason.text == "val/loss was no better than 1 of epoch 0 for 1 check, and is nan now"
    assert log.tracker.metric("val/loss").value == 1.0, "the state keeps its last finite value"


def test_the_summary_of_an_empty_pass_warns_and_goes_on(make_logger):
    log = make_logger()
    log.tracker.start_val_phase("val")
    with pytest.warns(UserWarning, match="never received a value"):
        log.tracker.finalize_val_phase()
    with pytest.warns(UserWarning, match="the last pass of 'val' has no value to summarise"):
        assert log.log_validation_summary(step=1) is None
        assert log.log_validation_summary("val", step=2) is None
    log.tracker.start_val_phase("val_mask_meta")
    log.tracker.update_val_metrics({"loss": 0.5}, 4)
    log.tracker.finalize_val_phase()
    log.log_validation_summary(step=3)
    log.tracker.start_val_phase("val_mask_meta")
    log.tracker.finalize_val_phase()
    with pytest.warns(UserWarning, match="'val_mask_meta' has no value"):
        log.log_validation_summary(step=4)
    log.close()
    values = [row for row in map(json.loads, log.path.read_text().splitlines()) if "val_mask_meta/loss" in str(row)]
    assert values, "the pass that had values is written, without a name too"
