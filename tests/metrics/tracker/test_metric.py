"""A metric's best: none until the first finite value, never from NaN or Inf, ties to the earlier."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdbg.core.directions import direction_of
from tdbg.core.errors import TdbgError
from tdbg.metrics.step_logger.early_stop import EarlyStop
from tdbg.metrics.tracker.best_epochs import BestEpochs
from tdbg.metrics.tracker.metric import HISTORY, Metric
from tdbg.metrics.tracker.metric_values import MetricValueError
from tdbg.metrics.tracker.metrics_tracker import MetricsTracker


@given(st.lists(st.floats(), max_size=30), st.booleans())
def test_best_is_that_of_the_finite_values_in_any_direction_and_sign(values, higher):
    metric = Metric("x", higher_is_better=higher)
    assert metric.best is None
    for epoch, value in enumerate(values):
        metric.record(value, epoch, 10 * epoch)
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        assert metric.best is metric.best_epoch is metric.best_step is metric.value is None
        return
    best = max(finite) if higher else min(finite)
    epoch = next(at for at, value in enumerate(values) if value == best)
    assert (metric.best, metric.best_epoch, metric.best_step) == (best, epoch, 10 * epoch)
    assert metric.value == finite[-1]
    assert metric.nan == sum(map(math.isnan, values)) and metric.inf == sum(map(math.isinf, values))


def test_a_loss_that_falls_from_above_zero_improves_and_so_does_a_score_below_it():
    """Seen: best began at 0.0, so that neither ever improved."""
    loss, score = Metric("loss", higher_is_better=False), Metric("elbo", higher_is_better=True)
    for epoch, value in enumerate((3.0, 2.0, 2.5)):
        loss.record(value, epoch)
        score.record(-value, epoch)
    assert (loss.best, loss.best_epoch) == (2.0, 1)
    assert (score.best, score.best_epoch) == (-2.0, 1)


def test_minus_infinity_does_not_poison_the_best():
    metric = Metric("loss", higher_is_better=False)
    metric.record(-math.inf, 0)
    metric.record(1.0, 1)
    assert (metric.best, metric.best_epoch, metric.inf) == (1.0, 1, 1)


def test_a_tie_keeps_the_earlier_epoch():
    metric = Metric("acc1")
    for epoch in range(3):
        metric.record(0.5, epoch)
    assert metric.best_epoch == 0


def test_neither_direction_has_no_best():
    metric = Metric("grad_norm", higher_is_better=None)
    metric.record(1.0)
    assert metric.value == 1.0 and metric.best is None


def test_batches_of_different_sizes_weigh_by_their_samples():
    """Seen: the mean of batch means, with an uneven last batch."""
    metric = Metric("loss")
    metric.add(1.0, 8)
    metric.add(4.0, 1)
    assert metric.finalize(0, 9)
    assert metric.value == 12 / 9 and metric.count == 9
    assert metric.value != (1.0 + 4.0) / 2


def test_a_pass_without_a_finite_sample_leaves_the_old_value():
    metric = Metric("loss", higher_is_better=False)
    metric.record(1.0, 0, 5)
    metric.add(math.nan, 4)
    assert not metric.finalize(1, 10)
    assert (metric.value, metric.epoch, metric.step, metric.count, metric.nan) == (1.0, 0, 5, 1, 4)
    assert not metric.finalize(2, 15)
    assert metric.nan == 4


def test_start_empties_the_sums_and_nothing_else():
    metric = Metric("loss")
    metric.record(1.0, 0)
    metric.add(5.0, 3)
    metric.start()
    assert not metric.partial.has_samples and metric.value == metric.best == 1.0 and len(metric.history) == 1


def test_the_history_is_bounded_and_the_best_is_not():
    metric = Metric("loss", higher_is_better=False)
    for epoch in range(HISTORY + 20):
        metric.record(float(epoch), epoch)
    assert len(metric.history) == HISTORY and metric.history[0].epoch == 20
    assert metric.best == 0.0 and metric.finished == HISTORY + 20


def test_bad_input_names_the_metric_and_changes_nothing():
    metric = Metric("loss")
    metric.add(1.0, 2)
    for wrong in ((None, 1), (1.0, -1), ("x", 1)):
        with pytest.raises(MetricValueError, match="loss"):
            metric.add(*wrong)
    assert metric.partial.count == 2


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("loss", False),
        ("loss_total", False),
        ("acc1", True),
        ("chain_accuracy", True),
        ("epoch_duration_sec", False),
        ("avg_samples_per_sec", True),
        ("step_ms", False),
        ("rmse", False),
        ("grad_norm", None),
        ("lr", None),
        ("loss_scale", None),
        ("f1", True),
        *(
            (name, False)
            for name in (
                "Loss",
                "trainLoss",
                "train loss",
                "CrossEntropy",
                "cross_entropy_loss",
                "MSELoss",
                "dice_loss",
                "step_avg_loss",
                "eval_runtime",
                "epochTime",
                "top5_error",
                "trainloss",
            )
        ),
        *((name, True) for name in ("valF1", "mAP50", "recall@5", "Accuracy", "eval_samples_per_second", "R2Score")),
        *(
            (name, None)
            for name in (
                "learning_rate",
                "learningRate",
                "total_flos",
                "batch_size",
                "epoch",
                "momentum",
                "num_input_tokens_seen",
                "error_count",
                "x",
                "score",
                "temperature",
                "train",
                "neg_loss",
                "negLoss",
                "loss_weight",
                "",
            )
        ),
    ],
)
def test_the_direction_by_name(name, direction):
    assert direction_of(name) is direction


def test_the_folder_tells_the_direction_where_the_name_does_not():
    assert direction_of("train", "Loss") is False and direction_of("train", "Accuracy") is True
    assert direction_of("epoch", "Loss") is None and direction_of("acc", "Loss") is True


@pytest.mark.parametrize(("said", "meant"), [("min", False), ("max", True), (True, True), (False, False), (None, None)])
def test_a_direction_can_be_said(said, meant):
    """Seen: any text was taken for "higher is better"."""
    assert Metric("x", higher_is_better=said).higher_is_better is meant
    assert MetricsTracker(directions={"x": said}).make_metric("x").higher_is_better is meant


@pytest.mark.parametrize("said", ["minimum", "MIN", "lower", "", 1, 0, -1, [], {"a": 1}])
def test_any_other_direction_is_refused(said):
    with pytest.raises(TdbgError, match="the direction of 'loss' cannot be") as caught:
        MetricsTracker(directions={"loss": said})
    assert '"min"' in caught.value.hint and "\n" not in str(caught.value)
    for make in (EarlyStop, BestEpochs):
        with pytest.raises(TdbgError, match="the direction of 'loss' cannot be"):
            make(higher_is_better=said)


@pytest.mark.parametrize(
    ("said", "hint"),
    [("percent", "write pct"), ("MS", "write ms"), ("s", "write sec"), (3, "one of"), ("a b", "one of")],
)
def test_a_unit_is_checked(said, hint):
    with pytest.raises(TdbgError, match="the unit of 'acc1' cannot be") as caught:
        MetricsTracker(units={"acc1": said})
    assert hint in caught.value.hint
    assert MetricsTracker(units={"acc1": "pct", "speed": "km/h"}).make_metric("speed").unit == "km/h"


def test_settings_are_of_metrics_without_their_phase():
    for setting in ({"directions": {"val/loss": "min"}}, {"units": {"val/loss": "pct"}}):
        with pytest.raises(TdbgError, match="is set for a metric, not for 'val/loss'"):
            MetricsTracker(**setting)


def test_the_unit_is_said_or_is_in_the_name():
    assert Metric("chain_acc_pct").unit == "pct"
    assert Metric("acc1", unit="frac").record_of()["unit"] == "frac"
