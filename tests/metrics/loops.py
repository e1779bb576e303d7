"""Runs as Hypothesis makes them: epochs of batches, each with its metrics, tasks and subsets."""

import warnings

from hypothesis import strategies as st

NUMBERS = st.one_of(st.floats(), st.floats(-10, 10, width=32), st.integers(-5, 5).map(float))
COUNTS = st.integers(0, 50)
TASKS = st.sampled_from(["genus", "taxa_L10"])
SUBSETS = st.sampled_from(["eu", "us"])


@st.composite
def draw_batch(draw):
    """What `update_val_metrics` takes."""
    samples = draw(COUNTS)
    part = st.integers(0, samples)
    tasks = draw(st.dictionaries(TASKS, st.dictionaries(st.sampled_from(["acc1", "loss"]), NUMBERS), max_size=2))
    subsets = draw(st.dictionaries(SUBSETS, st.dictionaries(st.just("acc1"), NUMBERS, max_size=1), max_size=2))
    return {
        "values": draw(st.dictionaries(st.sampled_from(["loss", "psnr"]), NUMBERS, max_size=2)),
        "samples": samples,
        "tasks": tasks,
        "task_samples": {task: draw(part) for task in tasks if draw(st.booleans())},
        "subsets": subsets,
        "subset_samples": {subset: draw(part) for subset in subsets},
    }


EPOCHS = st.lists(st.lists(draw_batch(), max_size=6), min_size=1, max_size=4)


def play_epochs(tracker, epochs):
    """The whole run: one training update and one validation update a batch."""
    for epoch, batches in enumerate(epochs):
        for found in batches:
            feed_tracker(tracker, found)
        finish_epoch(tracker, epoch)


def feed_tracker(tracker, found):
    tracker.update_train_batch(**found)
    tracker.update_val_metrics(**found, phase="val_mask_meta")
    tracker.update_learning_rates([0.1])


def finish_epoch(tracker, epoch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an epoch without a batch
        _finalize_epoch(tracker, epoch)


def _finalize_epoch(tracker, epoch):
    tracker.finalize_train_epoch(epoch, 10 * epoch)
    tracker.finalize_val_phase("val_mask_meta", epoch, 10 * epoch)


def collect_values(state):
    """What a run says in the end: values, counts and bests by key, whatever the way there."""
    return {
        (phase, metric["metric"], metric["task"], metric["subset"]): {
            name: metric[name]
            for name in ("value", "count", "best", "best_epoch", "best_step", "nan", "inf", "finished", "history")
        }
        for phase, found in state["phases"].items()
        for metric in found["metrics"]
        if metric["finished"] or metric["nan"] or metric["inf"]
    }
