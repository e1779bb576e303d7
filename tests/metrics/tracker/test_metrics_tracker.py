"""The tracker: phases, tasks, subsets, snapshots, stamps; each fault seen elsewhere has a test here."""

import gc
import inspect
import json
import logging
import math
import sys
import warnings

import numpy as np
import pytest
import torch

from tdbg.core.errors import TdbgError
from tdbg.metrics import keys
from tdbg.metrics.keys import Key, KeyGrammarError
from tdbg.metrics.step_logger.ops_schedule import OpsSchedule
from tdbg.metrics.tracker import metrics_tracker
from tdbg.metrics.tracker.metric import HISTORY
from tdbg.metrics.tracker.metric_values import MetricValueError
from tdbg.metrics.tracker.metrics_tracker import BEFORE_RESET, MetricsTracker
from tdbg.metrics.tracker.subset_metrics import SubsetMetricWrapper
from tdbg.metrics.tracker.tracker_state import LIVE_TRACKERS, MAX_FINDINGS, TrackerState, UnknownPhaseError


def key_by_text(values):
    return {str(key): value for key, value in values.items()}


def make_two_epochs():
    """Two epochs of three uneven batches, each with a validation of two phases."""
    made = MetricsTracker(hierarchy=("species", "genus"), null_label=-1)
    step = 0
    for epoch in range(2):
        for samples in (4, 4, 1):
            step += 1
            tasks = {"genus": {"acc1": 0.5, "loss": 1.0}}
            made.update_train_batch({"loss": 2.0 - epoch}, samples, tasks=tasks, epoch=epoch, step=step)
        for phase in ("val", "val_mask_meta"):
            made.start_val_phase(phase)
            made.update_val_metrics({"loss": 3.0 - epoch}, 2, phase=phase)
            made.finalize_val_phase(phase)
        made.finalize_train_epoch()
    return made


def test_phases_appear_as_they_are_fed_and_keep_to_themselves():
    made = make_two_epochs()
    made.update_val_metrics({"loss": 9.0}, 1, phase="val_mask_SPATIAL")
    made.finalize_val_phase("val_mask_SPATIAL")
    assert list(made.phases) == ["train", "val", "val_mask_meta", "val_mask_SPATIAL"]
    assert made.metric("val/loss").value == made.metric("val_mask_meta/loss").value == 2.0
    assert made.metric("val_mask_SPATIAL/loss").value == 9.0
    assert made.phase_metrics["train"]["loss"].value == 1.0
    assert made.phase_task_metrics["train"]["genus"]["acc1"].value == 0.5


def test_a_phase_that_never_received_a_value_is_an_error_with_the_nearest_names():
    """Seen: a summary looked for val_mask, the state said val_mask_meta, and finals were never logged."""
    made = make_two_epochs()
    with pytest.raises(UnknownPhaseError, match="val_mask") as caught:
        made.phase("val_mask")
    assert "val_mask_meta" in caught.value.hint
    with pytest.raises(UnknownPhaseError) as caught:
        made.get_wandb_metrics("valMask")
    assert "val" in caught.value.hint
    with pytest.raises(UnknownPhaseError) as caught:
        MetricsTracker().phase("val")
    assert "nothing" in caught.value.hint
    with pytest.raises(Exception, match="val/acc9"):
        made.metric("val/acc9")


@pytest.mark.parametrize("name", ["lr", "core", "va l", "", "a/b"])
def test_a_name_that_no_phase_can_have(name):
    with pytest.raises(Exception, match=r"phase|key|prefix"):
        MetricsTracker().update_train_batch({"loss": 1.0}, 1, phase=name)


def test_every_value_is_stamped_with_the_epoch_and_step_of_its_own_pass():
    """Seen: rows of all epochs said epoch 0."""
    made = make_two_epochs()
    points = made.metric("train/loss").history
    assert [(point.epoch, point.step) for point in points] == [(0, 3), (1, 6)]
    assert (made.phase("val").epoch, made.phase("val").step) == (1, 6)
    made.update_learning_rates([0.1])
    made.update_schedule_values({"mixup": 0.5}, epoch=2, step=9)
    stamped = {str(key): found[1:] for store in made.stores.values() for key, found in store}
    assert stamped == {"lr/group0": (1, 6), "schedule/mixup": (2, 9)}


def test_subsets_are_sums_over_all_batches_not_the_last_one():
    """Seen: subset values overwritten by the last batch, and reset before the snapshot was taken."""
    made = MetricsTracker()
    made.start_val_phase("val")
    for value, samples in ((1.0, 3), (0.0, 1)):
        made.update_val_metrics({"loss": 1.0}, 4, subsets={"eu": {"acc1": value}}, subset_samples={"eu": samples})
    made.update_val_metrics({"loss": 1.0}, 4, subsets={"us": {"acc1_genus": 0.5}}, subset_samples={"us": 2})
    snapshot = key_by_text(made.finalize_val_phase("val"))
    assert snapshot == {"val/loss": 1.0, "val/eu/acc1": 0.75, "val/us/acc1_genus": 0.5}
    assert made.phase_subset_metrics["val"]["us"]["acc1_genus"].count == 2
    assert made.get_wandb_metrics()["val/eu/acc1"] == 0.75
    with pytest.raises(Exception, match="number of samples"):
        made.update_val_metrics({}, 4, subsets={"eu": {"acc1": 1.0}})


def test_the_snapshot_is_taken_before_the_sums_are_emptied():
    made = MetricsTracker()
    made.update_val_metrics({"loss": 2.0}, 2)
    seen = []

    def listener(one, phase):
        metric = one.metric("val/loss")
        record = one.dump_metrics_state(phase, "advanced")["phases"]["val"]
        seen.append((metric.value, metric.partial.count, record["samples"], record["metrics"]["val/loss"]["partial"]))

    BEFORE_RESET.append(listener)
    try:
        snapshot = made.finalize_val_phase("val")
    finally:
        BEFORE_RESET.remove(listener)
    assert seen == [(2.0, 2, 2, {"mean": 2.0, "count": 2, "batches": 1, "nan": 0, "inf": 0})]
    assert key_by_text(snapshot) == key_by_text(made.phase("val").snapshot) == {"val/loss": 2.0}
    assert not made.metric("val/loss").partial.has_samples


def test_starting_a_phase_empties_its_sums_and_nothing_else():
    made = make_two_epochs()
    made.update_val_metrics({"loss": 100.0}, 5, phase="val")
    made.update_train_batch({"loss": 7.0}, 5)
    before = made.state_dict()
    made.start_val_phase("val")
    after = made.state_dict()
    assert before.pop("val_phase") == "val_mask_meta" and made.val_phase == "val"
    assert made.metric("val/loss").partial.count == 0 and made.metric("train/loss").partial.count == 5
    assert after["phases"]["train"] == before["phases"]["train"]
    for state in (before, after):
        state["phases"]["val"] = {**state["phases"]["val"], "samples": 0, "batches": 0}
        for metric in state["phases"]["val"]["metrics"]:
            metric["partial"] = None
    assert before == after


def test_finalising_nothing_is_a_finding_and_leaves_the_old_value():
    """Seen: train accuracies were 0.0 in every run, because their update was called nowhere."""
    made = make_two_epochs()
    assert made.findings == []
    assert made.finalize_val_phase("val", 5, 50) == {}
    assert made.metric("val/loss").value == 2.0 and made.metric("val/loss").epoch == 1
    found = {"what": "finalised with count 0", "phase": "val", "epoch": 5, "step": 50, "metrics": ["val/loss"]}
    assert made.findings == [found]
    with pytest.warns(UserWarning, match="never_fed"):
        made.finalize_train_epoch(phase="never_fed")
    assert made.findings[-1]["phase"] == "never_fed"
    for _ in range(2 * MAX_FINDINGS):
        made.finalize_val_phase("val")
    assert len(made.findings) == MAX_FINDINGS


def test_non_finite_values_are_counted_and_never_enter_a_mean():
    made = MetricsTracker()
    for value in (1.0, math.nan, 3.0, -math.inf):
        made.update_val_metrics({"loss": torch.tensor(value)}, 2)
    assert key_by_text(made.finalize_val_phase()) == {"val/loss": 2.0}
    metric = made.metric("val/loss")
    assert (metric.count, metric.nan, metric.inf, metric.best) == (4, 2, 2, 2.0)


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        ({"values": {"loss": 1.0, "acc1": torch.ones(3)}, "samples": 4}, MetricValueError),
        ({"values": {"loss": 1.0, "acc1": None}, "samples": 4}, MetricValueError),
        ({"values": {"loss": 1.0}, "samples": -1}, MetricValueError),
        ({"values": {"loss": 1.0, "a b": 1.0}, "samples": 4}, KeyGrammarError),
        ({"values": {"loss": 1.0}, "samples": 4, "tasks": {"genus": {"acc1": "x"}}}, MetricValueError),
        ({"values": {"loss": 1.0}, "samples": 4, "tasks": {"scale": {"loss": 1.0}}}, KeyGrammarError),
    ],
)
def test_a_batch_is_added_whole_or_not_at_all(batch, error):
    made = make_two_epochs()
    before = made.state_dict()
    with pytest.raises(error) as caught:
        made.update_train_batch(**batch, step=99)
    assert caught.value.hint
    assert made.state_dict() == before
    fresh = MetricsTracker()
    with pytest.raises(error):
        fresh.update_train_batch(**batch, step=99)
    assert fresh.state_dict() == MetricsTracker().state_dict()


def test_best_epochs_are_by_one_criterion():
    """Seen: one list sorted accuracies and negative losses together."""
    made = MetricsTracker(best="val/acc1", best_size=2)
    for epoch, value in enumerate((0.5, 0.7, 0.7, 0.6)):
        made.update_val_metrics({"acc1": value, "loss": 100.0}, 1)
        made.finalize_val_phase("val", epoch, 10 * epoch)
    assert made.best_epochs.epochs == [(0.7, 1, 10), (0.7, 2, 20)]


def test_directions_and_units_may_be_said():
    made = MetricsTracker(directions={"energy": False, "drift": None}, units={"acc1": "pct"})
    for value in (2.0, 1.0):
        made.update_val_metrics({"energy": value, "drift": value, "acc1": 50.0}, 1)
        made.finalize_val_phase()
    assert made.metric("val/energy").best == 1.0 and made.metric("val/drift").best is None
    assert made.metric("val/acc1").unit == "pct"


def test_shares_have_one_unit_and_it_is_in_the_record():
    """Seen: accuracies from 0 to 100 beside chain accuracies from 0 to 1."""
    answers = {"genus": torch.tensor([1, 2, 3, 4])}, {"genus": torch.tensor([1, 2, 3, 0])}
    values = {}
    for unit in ("frac", "pct"):
        made = MetricsTracker(units=dict.fromkeys(("acc1", "chain_accuracy", "partial_chain_accuracy"), unit))
        made.update_predictions(*answers)
        values[unit] = set(made.finalize_val_phase().values())
        record = made.dump_metrics_state("val")["phases"]["val"]["metrics"]
        assert {metric["unit"] for metric in record.values()} == {unit}
    assert values == {"frac": {0.75}, "pct": {75.0}}
    plain = MetricsTracker()
    plain.update_predictions(*answers)
    assert plain.metric("val/acc1_genus").unit == "frac"


def test_flat_metrics_are_numbers_by_the_grammar_and_asking_changes_nothing():
    made = make_two_epochs()
    made.update_schedule_values({"mixup_group": "a", "alpha": 0.2})
    made.update_pipeline_metrics({"queue": 3, "workers": 2})
    made.update_gradnorm_metrics({"gradnorm/loss": 0.1, "ratio": {"genus": 1.5}})
    made.update_task_weights({"genus": 2.0})
    made.update_train_batch({"loss": 5.0}, 3)  # a pass that is under way stays so
    before = made.state_dict()
    flat = made.get_wandb_metrics()
    assert made.get_wandb_metrics() == flat and made.state_dict() == before
    assert flat["schedule/mixup_group_str"] == "a"
    assert all(type(value) is (str if key.endswith("_str") else float) for key, value in flat.items())
    assert all(str(Key.parse(text)) == text for text in flat)
    assert [text for text in flat if "_str" in text] == ["schedule/mixup_group_str"]
    wanted = {"gradnorm/loss", "gradnorm/ratio_genus", "gradnorm/weight_genus", "schedule/alpha", "pipeline/queue"}
    assert wanted <= set(flat)
    copies = {text for text in flat if text.startswith("core/")}
    assert copies == {"core/train_loss", "core/train_acc1/genus", "core/train_loss/genus"} | {
        "core/val_loss",
        "core/val_mask_meta_loss",
    }
    assert not any(text.startswith("core/") for text in made.get_wandb_metrics(core=False))
    assert set(made.get_wandb_metrics("val")) == {"val/loss", "core/val_loss"}
    assert str(next(iter(made.stores["schedule"].select_texts()))) == "schedule/mixup_group_str"


def test_durations_give_samples_per_second():
    made = MetricsTracker()
    for _ in range(3):
        made.update_train_batch({"loss": 1.0}, 10)
    values = key_by_text(made.finalize_train_epoch(0, 3, duration_sec=2.0))
    assert values["train/epoch_duration_sec"] == 2.0 and values["train/avg_samples_per_sec"] == 15.0


def test_histories_are_bounded():
    made = MetricsTracker()
    for epoch in range(HISTORY + 7):
        made.update_val_metrics({"loss": 1.0}, 1)
        made.finalize_val_phase("val", epoch)
        made.update_learning_rates([0.1])
    assert len(made.metric("val/loss").history) == HISTORY
    assert len(next(iter(made.stores["lr"].history.values()))) == HISTORY


def test_a_dump_is_one_record_and_two_can_be_compared(tmp_path):
    made = make_two_epochs()
    path = tmp_path / "new" / "dump.json"
    record = made.dump_metrics_state("val", "extreme", path)
    assert json.loads(path.read_text()) == json.loads(json.dumps(record))
    assert record["phases"]["val"]["metrics"]["val/loss"]["history"] == [[0, 3, 3.0], [1, 6, 2.0]]
    assert "history" not in made.dump_metrics_state(level="advanced")["phases"]["val"]["metrics"]["val/loss"]
    assert set(made.dump_metrics_state()["phases"]) == {"train", "val", "val_mask_meta"}
    assert made.dump_metrics_state() == made.dump_metrics_state()
    made.update_learning_rates([math.nan])
    made.dump_metrics_state("val", "basic", path)
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["stores"]["lr/group0"]["value"] == "nan"
    with pytest.raises(Exception, match="loud"):
        made.dump_metrics_state(level="loud")
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="cannot write"):
        made.dump_metrics_state(path=tmp_path / "file" / "dump.json")


def test_sums_and_counts_of_tasks_under_way():
    made = MetricsTracker()
    made.update_train_batch({}, 4, tasks={"genus": {"acc1": 0.5}}, task_samples={"genus": 3})
    made.update_train_batch({}, 4, tasks={"genus": {"acc1": 1.0}})
    assert made.partial_task_sums == {"train": {"genus": {"acc1": 5.5}}}
    assert made.partial_task_counts == {"train": {"genus": {"acc1": 7}}}


def test_every_public_method_is_reached_from_a_tiny_run():
    """Seen: summaries that were described, written, and called by nobody."""
    reached = set()
    watched = {vars(cls)[name].__code__: name for cls, name in iter_public_methods()}
    sys.setprofile(lambda frame, event, _: reached.add(watched.get(frame.f_code)) if event == "call" else None)
    try:
        make_tiny_run()
    finally:
        sys.setprofile(None)
    assert set(watched.values()) - reached == set()


def iter_public_methods():
    for cls in (MetricsTracker, TrackerState, OpsSchedule, SubsetMetricWrapper):
        for name, found in vars(cls).items():
            if inspect.isfunction(found) and not name.startswith("_"):
                yield cls, name


def make_tiny_run():
    schedule = OpsSchedule(total_steps=4, validation=2, levels={2: "advanced"}, early_stop={"patience": 1})
    made = MetricsTracker()
    for step in range(1, 5):
        answers = {"genus": torch.tensor([step])}, {"genus": torch.tensor([1])}
        made.update_train_batch({"loss": schedule.warmup_factor(step)}, 1, step=step, epoch=0)
        made.update_learning_rates([0.1])
        made.update_schedule_values({"warm": schedule.warming_up(step), "level": schedule.level_at(step) or "basic"})
        made.update_pipeline_metrics({"queue": 1})
        made.update_gradnorm_metrics({"loss": 1})
        made.update_task_weights({"genus": 1})
        if schedule.due("validation", step):
            made.start_val_phase()
            made.update_val_metrics({"loss": 1.0}, 1)
            made.update_predictions(*answers)
            subsets = SubsetMetricWrapper(made)
            subsets.update({"acc1": [1]}, ["eu"])
            assert subsets.keys() and subsets.compute()
            made.reduce_phase("val")
            made.finalize_val_phase()
    if schedule.due_after_epoch("checkpoint", 1) and not schedule.interval("checkpoint").is_off and schedule.rows():
        made.finalize_train_epoch()
        again, other = MetricsTracker(), OpsSchedule.from_config({"EARLY_STOP": {"PATIENCE": 1}})
        again.load_state_dict(made.state_dict())
        other.load_state_dict(schedule.state_dict())
        again.dump_metrics_state()
        assert again.phase("val") and again.metric("val/loss") and again.get_wandb_metrics()


def test_it_never_logs(capfd, caplog):
    with caplog.at_level(logging.DEBUG):
        made = make_two_epochs()
        made.finalize_val_phase("val")
        made.dump_metrics_state(level="extreme")
    assert not caplog.records and capfd.readouterr() == ("", "")


def test_trackers_of_this_process_are_known_as_long_as_they_live():
    made = MetricsTracker()
    assert made in LIVE_TRACKERS
    held = len(LIVE_TRACKERS)
    del made
    gc.collect()
    assert len(LIVE_TRACKERS) < held


def test_the_names_of_all_values_are_read_back():
    made = make_two_epochs()
    answers = {"species": torch.tensor([1]), "genus": torch.tensor([1])}
    made.update_predictions(answers, answers, phase="night_run")
    for phase in made.phases.values():
        for key, _ in phase:
            again = Key.parse(str(key))
            assert (again.phase, again.metric, again.task, again.subset) == (
                key.phase,
                key.metric,
                key.task,
                key.subset,
            )
    assert keys.is_key("night_run/chain_accuracy")


def test_predictions_that_do_not_fit_change_nothing():
    made = MetricsTracker(hierarchy=("a", "b"))
    good = {"a": torch.tensor([1, 2]), "b": torch.tensor([1, 2])}
    for bad in ({"a": good["a"]}, {**good, "b": torch.tensor([1])}, {**good, "b": torch.zeros(2, 2, 2)}):
        with pytest.raises(MetricValueError):
            made.update_predictions(bad, good)
        assert not made.phases
    assert metrics_tracker.BEFORE_RESET == []


@pytest.mark.parametrize(
    ("more", "what", "hint"),
    [
        ({"tasks": {"genus": {"acc1": 0.5}}, "task_samples": {"genu": 3}}, "task_samples has 'genu'", "mean 'genus'"),
        (
            {"tasks": {"genus": {"acc1": 0.5}}, "task_samples": {"genus": 5}},
            "task 'genus' has 5 samples",
            "a part cannot",
        ),
        ({"tasks": {"acc1": 0.5}}, "task 'acc1' is float, not a mapping of metric to mean", "tasks={"),
        ({"tasks": [("genus", 0.5)]}, "tasks is list, not a mapping", "tasks={"),
        ({"subsets": {"eu": {"acc1": 1.0}}, "subset_samples": {"us": 1}}, "subset_samples has 'us'", "there are: 'eu'"),
        ({"subsets": {"eu": {"acc1": 1.0}}, "subset_samples": {"eu": 5}}, "subset 'eu' has 5 samples", "a part cannot"),
        ({"subsets": {"eu": {"acc1": 1.0}}}, "subset 'eu' has no number", "subset_samples"),
    ],
)
def test_parts_that_do_not_fit_their_batch_are_refused_and_nothing_is_added(more, what, hint):
    made = MetricsTracker()
    with pytest.raises(TdbgError) as caught:
        made.update_val_metrics({"loss": 1.0}, 4, **more)
    assert what in str(caught.value) and hint in caught.value.hint
    assert "\n" not in str(caught.value) + caught.value.hint and made.phases == {}


def test_a_part_without_a_sample_may_lack_its_values():
    made = MetricsTracker()
    made.update_val_metrics({"loss": 1.0}, 4, tasks={"genus": {"acc1": 0.5}}, task_samples={"genus": 4, "family": 0})
    assert key_by_text(made.finalize_val_phase()) == {"val/loss": 1.0, "val/acc1_genus": 0.5}


def test_finalising_a_phase_that_nobody_updated_warns_once_with_what_there_is():
    """Seen: `finalize_val_phase("validaton")` said nothing at all."""
    made = MetricsTracker()
    made.update_val_metrics({"loss": 1.0}, 4, phase="validation")
    with pytest.warns(UserWarning, match="'validaton' .* never received a value: did you mean validation") as caught:
        assert made.finalize_val_phase("validaton") == {}
        made.finalize_val_phase("validaton")
    assert len(caught) == 1 and caught[0].filename == __file__
    with pytest.warns(UserWarning, match="there are: validation") as caught:
        made.finalize_train_epoch()
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.finalize_val_phase("validation")
        made.finalize_val_phase("validation")  # count 0, and a finding: no unknown phase


def test_samples_with_nan_scores_are_wrong_and_told():
    made = MetricsTracker(null_label=-1)
    scores = torch.tensor([[0.1, 0.9], [math.nan, 0.9], [0.9, math.nan], [math.nan, 0.0]])
    with pytest.warns(UserWarning, match="task 'genus' of 'val': 2 of 3 samples have NaN scores") as caught:
        for _ in range(2):
            made.update_predictions({"genus": scores}, {"genus": torch.tensor([1, 1, 0, -1])})
    assert len(caught) == 1 and caught[0].filename == __file__
    found = key_by_text(made.finalize_val_phase())
    assert found["val/acc1_genus"] == pytest.approx(1 / 3) and found["val/partial_chain_accuracy"] == pytest.approx(
        1 / 3
    )
    assert made.findings[0]["what"] == "2 of 3 samples have NaN scores"


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_a_label_beyond_the_classes_is_refused_and_nothing_is_added(kind):
    """Seen: it was counted as wrong, so that an accuracy was low for no reason."""
    made = MetricsTracker(null_label=-100)
    scores = kind([[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]])
    with pytest.raises(
        MetricValueError, match=r"task 'genus': label 2 and 1 more are not among its 2 classes \(0 to 1\)"
    ):
        made.update_predictions({"genus": scores}, {"genus": kind([1, 2, 7])})
    with pytest.raises(MetricValueError, match="label -1 is not among its 2 classes") as caught:
        made.update_predictions({"genus": scores}, {"genus": kind([1, -1, -100])})
    assert "null_label=-1" in caught.value.hint and made.phases == {}
    with pytest.raises(MetricValueError, match="no task in common: predictions have 'genus', targets 'genera'"):
        made.update_predictions({"genus": scores}, {"genera": kind([1, 0, 1])})


def test_the_phase_that_was_begun_is_where_updates_without_a_phase_go():
    made = MetricsTracker(hierarchy=("species", "genus"), null_label=0)
    made.update_val_metrics({"loss": 1.0}, 2)
    made.start_val_phase("val_mask_meta")
    made.update_val_metrics({"loss": 3.0}, 4)
    made.update_predictions({"species": [1, 2], "genus": [1, 1]}, {"species": [1, 1], "genus": [1, 1]})
    state = json.loads(json.dumps(made.state_dict()))
    again = MetricsTracker(hierarchy=("species", "genus"), null_label=0)
    again.load_state_dict(state)
    for one in (made, again):
        one.update_val_metrics({"loss": 5.0}, 4)
        assert one.finalize_val_phase()[Key("val_mask_meta", "loss")] == 4.0
        assert one.metric("val_mask_meta/acc1_species").value == 0.5
        one.start_val_phase()
        one.update_val_metrics({"loss": 2.0}, 1)
        assert one.finalize_val_phase(epoch=1) == {Key("val", "loss"): 2.0}
        one.update_val_metrics({"loss": 9.0}, 1, phase="val_other")
        assert one.finalize_val_phase("val_other") == {Key("val_other", "loss"): 9.0}


def test_last_values_are_attributes():
    made = make_two_epochs()
    made.update_schedule_values({"mixup_group": "a", "alpha": 0.2})
    made.update_gradnorm_metrics({"loss": 0.1, "ratio": {"genus": 1.5, "species": 0.5}})
    made.update_task_weights({"genus": 2.0})
    made.update_learning_rates({"body": 0.1, "head": 0.2})
    made.update_pipeline_metrics({"queue": 3})
    assert made.schedule_values == {"mixup_group": "a", "alpha": 0.2}
    assert made.gradnorm_metrics == {"loss": 0.1, "ratio": {"genus": 1.5, "species": 0.5}}
    assert (made.lr_dict, made.task_weights) == ({"body": 0.1, "head": 0.2}, {"genus": 2.0})
    assert made.pipeline_metrics == {"queue": 3.0}
    assert made.metrics["val/loss"] is made.metric("val/loss") and "train/loss" in made.metrics


@pytest.mark.filterwarnings("error")
def test_a_warning_that_the_program_makes_an_error_does_not_end_its_training(capsys: pytest.CaptureFixture[str]):
    made = MetricsTracker()
    assert made.finalize_val_phase() == {}
    assert "tdbg: phase 'val' was finalised and has never received a value" in capsys.readouterr().err
