"""A saved state that is not sound is refused whole, with the place that is wrong."""

import copy
import json
import math
import random

import pytest

from tdbg.core.errors import TdbgError
from tdbg.metrics.tracker.metrics_tracker import MetricsTracker
from tdbg.metrics.tracker.state_fields import StateError


def make_sound_state():
    tracker = MetricsTracker()
    for epoch in range(2):
        tracker.update_train_batch({"loss": 2.0}, 4, tasks={"genus": {"acc1": 0.5}}, epoch=epoch, step=epoch)
        tracker.update_val_metrics({"loss": 1.0 - epoch}, 4)
        tracker.finalize_train_epoch()
        tracker.finalize_val_phase()
    tracker.update_val_metrics({"loss": 5.0}, 1)
    tracker.update_schedule_values({"mixup": 1.0, "group": "a"})
    return tracker


def set_value(state, path, value):
    *way, last = path
    for step in way:
        state = state[step]
    if value is KeyError:
        del state[last]
    else:
        state[last] = value


LOSS = ("phases", "val", "metrics", 0)
CORRUPT = [
    (("kind",), "other", "not the state"),
    (("version",), 2, "newer than this tdbg knows"),
    (("version",), "1", "version"),
    (("epoch",), "first", "state.epoch"),
    (("step",), -1, "state.step"),
    (("step",), 1.5, "state.step"),
    (("phases",), [], "state.phases"),
    (("phases", "val"), 3, "phases.val"),
    (("phases", "val", "samples"), KeyError, "phases.val.samples is missing"),
    (("phases", "val", "reduced"), 1, "phases.val.reduced"),
    (("phases", "a b"), {}, "phases.a b"),
    ((*LOSS, "metric"), "a b", r"metrics\[0\]"),
    ((*LOSS, "metric"), None, r"metrics\[0\].metric"),
    ((*LOSS, "value"), 17.0, "its sums say 0.0"),
    ((*LOSS, "value"), math.nan, "value"),
    ((*LOSS, "count"), 5, "value"),
    ((*LOSS, "best"), None, "best is missing"),
    ((*LOSS, "best"), math.inf, "best"),
    ((*LOSS, "best"), "0.0", "best"),
    ((*LOSS, "higher_is_better"), "no", "higher_is_better"),
    ((*LOSS, "finished"), 1, "finished"),
    ((*LOSS, "history"), [], "finished"),
    ((*LOSS, "history", 0), [0, 0], "history"),
    ((*LOSS, "history", 0, 2, 2), 0, "no samples"),
    ((*LOSS, "partial"), None, "partial"),
    ((*LOSS, "partial", 0), "zz", "'zz'"),
    ((*LOSS, "partial", 0), 5, "partial"),
    ((*LOSS, "partial", 0), "0x" + "f" * 10_000, "too long"),
    ((*LOSS, "partial", 0), "0x" + "f" * 600, "too large"),
    ((*LOSS, "partial", 1), 10**9, "shift"),
    ((*LOSS, "partial", 2), -1, "count"),
    ((*LOSS, "partial", 3), True, "batches"),
    (("stores", "schedule", "schedule/mixup"), [], "schedule/mixup"),
    (("stores", "schedule", "schedule/mixup", 0, 0), None, "neither a number nor a text"),
    (("stores", "schedule", "mixup"), [[1.0, 0, 0]], "is not a metric key"),
    (("best_epochs",), KeyError, "best_epochs is missing"),
    (("best_epochs", "epochs", 0), [1.0], "best_epochs"),
    (("best_epochs", "epochs", 0, 0), "x", "best_epochs"),
    (("findings",), None, "findings"),
]


@pytest.mark.parametrize(
    ("path", "value", "says"), CORRUPT, ids=[f"{one[0][-1]}-{at}" for at, one in enumerate(CORRUPT)]
)
def test_a_corrupt_state_is_refused_and_nothing_of_it_taken(path, value, says):
    state = make_sound_state().state_dict()
    set_value(state, path, value)
    tracker = make_sound_state()
    before = tracker.state_dict()
    with pytest.raises(StateError, match=says) as caught:
        tracker.load_state_dict(state)
    assert caught.value.exit_code == 2 and caught.value.hint
    assert tracker.state_dict() == before


@pytest.mark.parametrize("state", [None, [], "x", {}, {"kind": "tdbg.metrics"}])
def test_what_is_no_state_at_all(state):
    with pytest.raises(StateError):
        MetricsTracker().load_state_dict(state)


def test_a_metric_that_is_there_twice():
    state = make_sound_state().state_dict()
    state["phases"]["val"]["metrics"].append(copy.deepcopy(state["phases"]["val"]["metrics"][0]))
    with pytest.raises(StateError, match="twice"):
        MetricsTracker().load_state_dict(state)


def test_any_damage_is_refused_with_a_state_error_or_harmless():
    """A thousand random damages: never another exception, and never a state that cannot be saved again."""
    dice = random.Random(0)
    junk = [None, True, -1, 1.5, math.nan, 10**30, "", "x", "0x1", [], [1], {}, {"a": 1}]
    refused = 0
    for _ in range(1000):
        state = json.loads(json.dumps(sound_state))
        holder, key = dice.choice(list(iter_places(state)))
        holder[key] = dice.choice(junk)
        tracker = MetricsTracker()
        try:
            tracker.load_state_dict(state)
        except StateError:
            refused += 1
            assert tracker.state_dict() == MetricsTracker().state_dict()
        else:
            json.dumps(tracker.state_dict())
    assert refused > 500


sound_state = make_sound_state().state_dict()


def iter_places(value):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from iter_places(inner)


def test_another_criterion_makes_the_best_epochs_anew_from_the_history():
    made = MetricsTracker(best="train/acc1_genus")
    made.load_state_dict(sound_state)
    assert [one.value for one in made.best_epochs.epochs] == [0.5, 0.5]


def test_what_the_program_says_now_counts_for_direction_and_mixed_units_are_refused():
    made = MetricsTracker(directions={"loss": True})
    made.load_state_dict(sound_state)
    assert (made.metric("val/loss").best, made.metric("val/loss").best_epoch) == (1.0, 0)
    told = MetricsTracker(directions={"energy": False}, units={"energy": "frac"})
    told.update_val_metrics({"energy": 1.0}, 1)
    told.finalize_val_phase()
    plain = MetricsTracker()
    plain.load_state_dict(told.state_dict())
    assert plain.metric("val/energy").higher_is_better is False and plain.metric("val/energy").unit == "frac"
    with pytest.raises(TdbgError, match="unit"):
        MetricsTracker(units={"energy": "pct"}).load_state_dict(told.state_dict())


def test_a_shorter_history_keeps_value_and_best():
    made = MetricsTracker(history=1)
    made.load_state_dict(sound_state)
    assert len(made.metric("val/loss").history) == 1
    assert made.metric("val/loss").value == made.metric("val/loss").best == 0.0
    assert made.metric("train/loss").best_epoch == 0
