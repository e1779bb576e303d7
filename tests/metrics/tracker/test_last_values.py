"""Last values: never averaged, stamped, prefixed once; learning rates by group; the best epochs; subsets."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tdbg.core.errors import TdbgError
from tdbg.metrics.keys import Key, KeyGrammarError
from tdbg.metrics.tracker.best_epochs import BestEpochs
from tdbg.metrics.tracker.last_values import LastValues, lr_dict
from tdbg.metrics.tracker.metric_values import MetricValueError
from tdbg.metrics.tracker.metrics_tracker import MetricsTracker
from tdbg.metrics.tracker.subset_metrics import MAX_SUBSETS, SubsetMetricWrapper


def test_last_values_are_not_averaged():
    """Seen: the learning rate was averaged with the rest."""
    tracker = MetricsTracker()
    for step, rate in enumerate((1.0, 0.5, 0.25)):
        tracker.update_learning_rates({"body": rate}, epoch=0, step=step)
    assert tracker.get_wandb_metrics()["lr/body"] == 0.25
    ((key, stamped),) = tracker.stores["lr"]
    assert (str(key), stamped) == ("lr/body", (0.25, 0, 2))
    assert key.average() == key


def test_a_prefix_is_applied_once_and_texts_are_marked():
    """Seen: gradnorm/gradnorm/..., and texts among the numbers."""
    store = LastValues("gradnorm")
    store.update({"loss": 1, "gradnorm/loss_total": torch.tensor(2.0), "mode": "auto", "why_str": "x"}, 1, 2)
    assert {str(key): value for key, value in store.select_numbers().items()} == {
        "gradnorm/loss": 1,
        "gradnorm/loss_total": 2,
    }
    assert {str(key): value for key, value in store.select_texts().items()} == {
        "gradnorm/mode_str": "auto",
        "gradnorm/why_str": "x",
    }
    assert store.get_last("loss") == 1.0


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"a": 1.0, "b": None}, MetricValueError),
        ({"a": 1.0, "b": [1]}, MetricValueError),
        ({"a": 1.0, "b c": 1.0}, KeyGrammarError),
        ({"a": 1.0, "b_str": 1.0}, KeyGrammarError),
        ({"a": 1.0, "b": {"genus": "x"}}, MetricValueError),
    ],
)
def test_all_values_are_taken_or_none(values, error):
    store = LastValues("schedule")
    with pytest.raises(error):
        store.update(values, 0, 0)
    assert not store.history


def make_optimizer(*rates, **names):
    weights = [{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in rates]
    for at, name in names.items():
        weights[int(at[1:])]["name"] = name
    return torch.optim.SGD(weights, lr=0.1)


def test_learning_rates_of_whatever_has_them():
    optimizer = make_optimizer(0.1, 0.2, 0.3, _1="the head/a", _2="the head/a")
    names = {"group0": 0.1, "the_head.a": 0.2, "the_head.a.2": 0.3}
    assert lr_dict(optimizer) == names
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    assert lr_dict(scheduler) == {name: rate / 2 for name, rate in names.items()}
    assert lr_dict([0.1, torch.tensor(0.5)]) == {"group0": 0.1, "group1": 0.5}
    assert lr_dict(0.1) == lr_dict(np.float64(0.1)) == lr_dict({"group0": 0.1}) == {"group0": 0.1}
    assert lr_dict(torch.tensor(0.5)) == {"group0": 0.5}
    for wrong in (None, "fast", [None], {"a": "b"}):
        with pytest.raises(MetricValueError):
            lr_dict(wrong)
    tracker = MetricsTracker()
    tracker.update_learning_rates(optimizer)
    assert all(str(Key.parse(text)) == text for text in tracker.get_wandb_metrics())


@given(st.lists(st.floats(), max_size=20), st.integers(0, 5), st.booleans())
def test_the_best_epochs_are_the_first_of_a_stable_sort(values, size, higher):
    best = BestEpochs("val/x", size, higher)
    taken = [best.add_if_best(value, epoch, 10 * epoch) for epoch, value in enumerate(values)]
    finite = [(value, epoch) for epoch, value in enumerate(values) if math.isfinite(value)]
    wanted = sorted(finite, key=lambda one: -one[0] if higher else one[0])[:size]
    assert [(one.value, one.epoch) for one in best.epochs] == wanted
    assert not any(taken[epoch] for epoch, value in enumerate(values) if not math.isfinite(value))


def test_a_criterion_without_direction_or_key_is_refused():
    with pytest.raises(TdbgError, match="direction"):
        BestEpochs("val/grad_norm")
    with pytest.raises(KeyGrammarError):
        BestEpochs("loss")
    with pytest.raises(TdbgError, match="-1"):
        BestEpochs(size=-1)
    assert BestEpochs("val/acc1_genus").higher_is_better is True


def test_subsets_of_single_samples():
    tracker = MetricsTracker()
    wrapper = SubsetMetricWrapper(tracker, "val_mask_meta")
    right = torch.tensor([1, 0, 1, 1])
    wrapper.update({"acc1": right}, ["eu", "us", "eu", None], task="genus")
    wrapper.update({"acc1": [0.0], "loss": np.array([2.5])}, ["eu"], task="genus")
    assert wrapper.compute() == {"eu": {"acc1_genus": 2 / 3, "loss_genus": 2.5}, "us": {"acc1_genus": 0.0}}
    assert list(map(str, wrapper.keys())) == [
        "val_mask_meta/eu/acc1_genus",
        "val_mask_meta/eu/loss_genus",
        "val_mask_meta/us/acc1_genus",
    ]
    metric = tracker.metric("val_mask_meta/eu/acc1_genus")
    assert metric.partial.count == 3 and metric.partial.batches == 2


def test_subsets_by_number_are_named_by_it():
    tracker = MetricsTracker()
    SubsetMetricWrapper(tracker).update({"acc1": [1, 0]}, torch.tensor([7, 8]))
    assert set(tracker.phase_subset_metrics["val"]) == {"7", "8"}


@pytest.mark.parametrize(
    ("values", "subsets", "error"),
    [
        ({"acc1": [1, 2]}, ["eu"], MetricValueError),
        ({"acc1": torch.zeros(2, 2)}, ["eu", "us"], MetricValueError),
        ({"acc1": [1, None]}, ["eu", "us"], MetricValueError),
        ({"acc1": [1]}, ["e u"], KeyGrammarError),
        ({"acc1": [1]}, ["val"], KeyGrammarError),
        ({"acc1": list(range(MAX_SUBSETS + 1))}, list(range(MAX_SUBSETS + 1)), TdbgError),
    ],
)
def test_what_does_not_fit_adds_nothing(values, subsets, error):
    tracker = MetricsTracker()
    with pytest.raises(error):
        SubsetMetricWrapper(tracker).update(values, subsets)
    assert not tracker.phases
