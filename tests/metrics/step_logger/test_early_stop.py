"""Early stop: each rule with its reason, its default works, and it goes on after a restart."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdbg.metrics.keys import KeyGrammarError
from tdbg.metrics.step_logger.early_stop import EarlyStop
from tdbg.metrics.step_logger.schedule_intervals import ScheduleError
from tdbg.metrics.tracker.metrics_tracker import MetricsTracker
from tdbg.metrics.tracker.state_fields import StateError


def test_the_default_metric_is_one_that_a_tracker_makes():
    """Seen: the default key did not have the shape that the code splits it by: a TypeError on first use."""
    tracker, stop = MetricsTracker(), EarlyStop(patience=2)
    reasons = []
    for epoch, loss in enumerate((1.0, 0.5, 0.5, 0.6, 0.1)):
        tracker.update_val_metrics({"loss": loss}, 4)
        reasons.append(
            stop.check_metrics(tracker.finalize_val_phase("val", epoch, 10 * epoch), epoch=epoch, step=10 * epoch)
        )
    assert [reason is None for reason in reasons] == [True, True, True, False, False]
    assert reasons[3] == reasons[4]
    assert reasons[3].rule == "patience" and (reasons[3].step, reasons[3].epoch) == (30, 3)
    assert reasons[3].text == "val/loss was no better than 0.5 of epoch 1 for 2 checks"


@pytest.mark.parametrize("metric", ["loss", "val_loss", "val/", "a/b/c/d"])
def test_a_metric_that_is_no_key_is_refused_when_it_is_made(metric):
    with pytest.raises(KeyGrammarError):
        EarlyStop(metric=metric, patience=1)


def test_a_metric_without_a_direction_needs_one():
    with pytest.raises(ScheduleError, match="direction"):
        EarlyStop(metric="val/grad_norm", patience=1)
    assert EarlyStop(metric="val/grad_norm", patience=1, higher_is_better=False).higher_is_better is False


def test_a_metric_that_its_phase_does_not_have_is_an_error_with_the_nearest():
    stop = EarlyStop(metric="val/acc1_genus", patience=1)
    with pytest.raises(ScheduleError, match="val/acc1_genus") as caught:
        stop.check_metrics({"val/acc1_genera": 0.5, "val/loss": 1.0})
    assert "val/acc1_genera" in caught.value.hint
    assert stop.check_metrics({"train/loss": 1.0}) is None and stop.waited == 0


@given(st.lists(st.floats(-5, 5), max_size=30), st.integers(0, 5), st.sampled_from([0.0, 0.5]), st.booleans())
def test_the_run_ends_at_the_check_at_which_patience_is_spent(values, patience, delta, higher):
    stop = EarlyStop(metric="val/x", higher_is_better=higher, patience=patience, min_delta=delta)
    best, waited, wanted = None, 0, None
    for at, value in enumerate(values):
        gain = math.inf if best is None else (value - best if higher else best - value)
        if (best is None) or (value > best + delta if higher else value < best - delta):
            best, waited = value, 0
        else:
            waited += 1
        assert gain > 0 or waited
        if waited and waited >= patience:
            wanted = at
            break
    found = next((at for at, value in enumerate(values) if stop.check_metrics({"val/x": value}, epoch=at)), None)
    assert found == wanted


def test_nan_is_no_improvement():
    stop = EarlyStop(patience=0)
    stop = EarlyStop(patience=2)
    assert [stop.check_metrics({"val/loss": value}, epoch=at) for at, value in enumerate((0.5, math.nan))] == [None] * 2
    text = stop.check_metrics({"val/loss": math.nan}, epoch=2).text
    assert text == "val/loss was no better than 0.5 of epoch 0 for 2 checks, and is nan now"
    stop = EarlyStop(patience=0)
    assert stop.check_metrics({"val/loss": math.nan}).text == "val/loss was never finite in 1 check, and is nan now"


@pytest.mark.parametrize(
    ("rule", "bound", "fine", "bad", "says"),
    [
        ("max_loss", 10.0, {"loss": 10.0}, {"loss": 10.5}, "the loss 10.5 is above 10"),
        ("max_loss", 10.0, {"loss": None}, {"loss": math.nan}, "the loss is nan, not a finite number"),
        ("max_loss", 10.0, {}, {"loss": math.inf}, "inf"),
        ("max_grad_norm", 5.0, {"grad_norm": 5.0}, {"grad_norm": 6.0}, "gradient norm 6 is above 5"),
        ("min_lr", 1e-3, {"lr": 1e-3}, {"lr": 9e-4}, "learning rate 0.0009 is below 0.001"),
        ("min_lr", 1e-3, {"lr": {"a": 1e-9, "b": 1e-2}}, {"lr": {"a": 1e-9, "b": 1e-4}}, "0.0001"),
        ("min_lr", 1e-3, {"lr": [1e-2]}, {"lr": [1e-4, 1e-5]}, "0.0001"),
    ],
)
def test_each_bound_of_a_step(rule, bound, fine, bad, says):
    stop = EarlyStop(**{rule: bound})
    assert stop.check_step(1, **fine) is None
    reason = stop.check_step(2, **bad, epoch=7)
    assert reason.rule == rule and says in reason.text and (reason.step, reason.epoch) == (2, 7)
    assert stop.check_step(3, **fine) is reason, "the first reason stays"


def test_a_pass_whose_loss_is_not_finite_is_a_check():
    """Seen: the snapshot of such a pass lacks the loss, so that it was no check, or was called unknown."""
    tracker, stop = MetricsTracker(), EarlyStop(patience=2)
    found = []
    for epoch, loss in enumerate((1.0, math.nan, math.nan)):
        tracker.update_val_metrics({"loss": loss, "acc1": 0.5}, 4)
        passed = tracker.finalize_val_phase(epoch=epoch, step=epoch + 1)
        found.append(stop.check_metrics(passed, epoch=epoch, step=epoch + 1))
    assert found[:2] == [None, None] and found[2].text.endswith("for 2 checks, and is nan now")
    stop = EarlyStop(patience=1, warmup_steps=10)
    assert stop.check_metrics({"val/loss": 1.0, "val/acc1": 0.5}, step=10) is None, "not in the warm-up"
    assert stop.check_metrics({"val/acc1": 0.5}, step=20).text == "val/loss was never finite in 1 check, and is nan now"


def test_the_last_step():
    stop = EarlyStop(max_steps=3, warmup_steps=100, max_loss=1.0)
    assert stop.check_step(2, loss=math.nan) is None, "not in the warm-up"
    assert stop.check_step(3).text == "step 3 is the last of 3"


def test_checks_in_the_warm_up_do_not_count():
    stop = EarlyStop(patience=0, warmup_steps=10)
    assert stop.check_metrics({"val/loss": 0.0}, step=10) is None and stop.best is None
    assert stop.check_metrics({"val/loss": 1.0}, step=11) is None and stop.best == 1.0


@pytest.mark.parametrize(
    "settings", [{"patience": -1}, {"min_delta": -0.1}, {"max_steps": 0}, {"max_loss": math.nan}, {"min_lr": "low"}]
)
def test_bounds_that_cannot_be(settings):
    with pytest.raises(ScheduleError, match=next(iter(settings))):
        EarlyStop(**settings)


@given(st.lists(st.floats(-5, 5), max_size=12), st.integers(0, 12))
def test_a_restart_at_any_check_equals_never_stopping(values, at):
    whole, first, second = (EarlyStop(patience=2) for _ in range(3))
    for value in values:
        whole.check_metrics({"val/loss": value})
    for value in values[:at]:
        first.check_metrics({"val/loss": value})
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for value in values[at:]:
        second.check_metrics({"val/loss": value})
    assert second.state_dict() == whole.state_dict() and second.reason == whole.reason


def test_a_state_of_another_metric_is_not_taken_and_a_corrupt_one_refused():
    other = EarlyStop(metric="val/acc1", patience=0)
    other.check_metrics({"val/acc1": 0.9})
    stop = EarlyStop(patience=0)
    stop.load_state_dict(other.state_dict())
    assert stop.best is None
    for broken in ({}, None, {**stop.state_dict(), "best": "x"}, {**stop.state_dict(), "reason": [1]}):
        with pytest.raises(StateError):
            stop.load_state_dict(broken)
