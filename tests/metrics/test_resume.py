"""Any order of updates, a restart at any point and any split over ranks give the same final values."""

import json

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tdbg.metrics.ranks import merge_states
from tdbg.metrics.tracker.metrics_tracker import MetricsTracker

from .loops import EPOCHS, collect_values, feed_tracker, finish_epoch, play_epochs

BEST = "val_mask_meta/loss"


def play_tracker(epochs):
    tracker = MetricsTracker(best=BEST)
    play_epochs(tracker, epochs)
    return tracker


@given(EPOCHS, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_any_order_of_updates(epochs, random):
    shuffled = [random.sample(batches, len(batches)) for batches in epochs]
    one, other = play_tracker(epochs).state_dict(), play_tracker(shuffled).state_dict()
    assert collect_values(one) == collect_values(other)
    assert one["best_epochs"] == other["best_epochs"]


@given(EPOCHS, st.data())
@settings(deadline=None)
def test_a_restart_at_any_point_equals_never_stopping(epochs, data):
    """The state goes through JSON each time, between batches, at the end of an epoch, or several times."""
    whole = play_tracker(epochs)
    tracker = MetricsTracker(best=BEST)
    for epoch, batches in enumerate(epochs):
        for found in batches:
            tracker = restart_maybe(tracker, data)
            feed_tracker(tracker, found)
        tracker = restart_maybe(tracker, data)
        finish_epoch(tracker, epoch)
    assert restart_maybe(tracker, data).state_dict() == whole.state_dict()


def restart_maybe(tracker, data):
    if not data.draw(st.booleans()):
        return tracker
    again = MetricsTracker(best=BEST)
    again.load_state_dict(json.loads(json.dumps(tracker.state_dict())))
    assert again.state_dict() == tracker.state_dict()
    return again


@given(EPOCHS, st.integers(1, 4), st.data())
@settings(deadline=None)
def test_any_split_over_ranks_merged_offline(epochs, ranks, data):
    trackers = [MetricsTracker(best=BEST) for _ in range(ranks)]
    for epoch, batches in enumerate(epochs):
        for found in batches:
            feed_tracker(trackers[data.draw(st.integers(0, ranks - 1))], found)
        for tracker in trackers:
            finish_epoch(tracker, epoch)
    merged = merge_states([json.loads(json.dumps(tracker.state_dict())) for tracker in trackers])
    whole = play_tracker(epochs).state_dict()
    assert collect_values(merged) == collect_values(whole)
    assert merged["best_epochs"] == whole["best_epochs"]


@given(EPOCHS, st.integers(1, 4), st.data())
@settings(deadline=None)
def test_a_split_of_the_pass_under_way_is_merged_too(epochs, ranks, data):
    trackers = [MetricsTracker(best=BEST) for _ in range(ranks)]
    whole = MetricsTracker(best=BEST)
    for found in (found for batches in epochs for found in batches):
        feed_tracker(trackers[data.draw(st.integers(0, ranks - 1))], found)
        feed_tracker(whole, found)
    merged = MetricsTracker(best=BEST)
    merged.load_state_dict(merge_states([tracker.state_dict() for tracker in trackers]))
    finish_epoch(merged, 0)
    finish_epoch(whole, 0)
    assert collect_values(merged.state_dict()) == collect_values(whole.state_dict())


def test_a_checkpoint_of_torch_carries_it_without_pickled_classes(tmp_path):
    tracker = MetricsTracker()
    tracker.update_train_batch({"loss": 0.1}, 3, epoch=0, step=1)
    tracker.update_schedule_values({"group": "a"})
    torch.save({"metrics": tracker.state_dict()}, tmp_path / "last.pt")
    again = MetricsTracker()
    again.load_state_dict(torch.load(tmp_path / "last.pt", weights_only=True)["metrics"])
    assert again.state_dict() == tracker.state_dict()
