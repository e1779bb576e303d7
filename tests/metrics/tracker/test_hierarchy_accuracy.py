"""Chains over a hierarchy with null labels, against a count by hand in plain Python."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tdbg.metrics.tracker.hierarchy_accuracy import ChainCounts, chain_counts, top_counts
from tdbg.metrics.tracker.metric_values import MetricValueError

TASKS = ("species", "genus", "family")


def compute_by_hand(predictions, targets, null):
    """The meaning, sample by sample."""
    right = partial = counted = 0
    samples = len(targets[TASKS[0]])
    for at in range(samples):
        answers = [(predictions[task][at], targets[task][at]) for task in TASKS]
        right += all(said == true for said, true in answers)
        labelled = [(said, true) for said, true in answers if null is None or true != null]
        if labelled:
            counted += 1
            partial += all(said == true for said, true in labelled)
    return ChainCounts(right, samples, partial, counted)


@st.composite
def draw_answers(draw):
    samples = draw(st.integers(0, 12))
    column = st.lists(st.integers(-1, 2), min_size=samples, max_size=samples)
    return {task: draw(column) for task in TASKS}, {task: draw(column) for task in TASKS}


@given(draw_answers(), st.sampled_from([None, -1, 0]))
def test_lists_arrays_and_tensors_count_alike(found, null):
    predictions, targets = found
    wanted = compute_by_hand(predictions, targets, null)
    assert chain_counts(predictions, targets, TASKS, null) == wanted
    for make in (lambda rows: np.array(rows, dtype="int64"), lambda rows: torch.tensor(rows, dtype=torch.int64)):
        made = [{task: make(rows) for task, rows in side.items()} for side in (predictions, targets)]
        assert chain_counts(*made, TASKS, null) == wanted


def test_scores_are_answers_too():
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    counts = chain_counts({"a": scores, "b": [1, 1]}, {"a": torch.tensor([1, 1]), "b": [1, 1]}, ("a",))
    assert counts == (1, 2, 1, 2)


def test_each_task_may_have_its_own_null():
    targets = {"a": torch.tensor([0, 1]), "b": torch.tensor([9, 9])}
    said = {"a": torch.tensor([1, 1]), "b": torch.tensor([5, 5])}
    assert chain_counts(said, targets, ("a", "b"), {"a": 0, "b": 9}) == (0, 2, 1, 1)


@pytest.mark.parametrize(
    ("predictions", "says"),
    [
        ({"genus": torch.zeros(3)}, "species"),
        ({"species": torch.zeros(4), "genus": torch.zeros(3)}, r"\(4,\)"),
        ({"species": torch.zeros(3, 2, 2), "genus": torch.zeros(3)}, r"\(3, 2, 2\)"),
        ({"species": [1, 2], "genus": [1, 2, 3]}, "2 predictions"),
    ],
)
def test_shapes_that_do_not_fit_name_the_task(predictions, says):
    targets = {"species": torch.zeros(3), "genus": torch.zeros(3)}
    if isinstance(predictions["genus"], list):
        targets = {task: [0, 0, 0] for task in targets}
    with pytest.raises(MetricValueError, match=says):
        chain_counts(predictions, targets, ("species", "genus"))


def test_tasks_of_different_lengths_are_refused():
    both = {"a": torch.zeros(3), "b": torch.zeros(2)}
    with pytest.raises(MetricValueError, match="'b' has 2 samples"):
        chain_counts(both, both)
    with pytest.raises(MetricValueError, match="at least one task"):
        chain_counts({}, {})


@given(st.data())
def test_the_k_best_classes(data):
    """Against a stable sort by hand, with ties, null labels and NaN."""
    samples, classes = data.draw(st.integers(0, 8)), data.draw(st.integers(1, 6))
    value = st.sampled_from([0.0, 0.25, 0.5, 1.0, float("nan")])
    row = st.lists(value, min_size=classes, max_size=classes)
    scores = data.draw(st.lists(row, min_size=samples, max_size=samples))
    targets = data.draw(st.lists(st.integers(-1, classes - 1), min_size=samples, max_size=samples))
    for k in (1, 3):
        right = 0
        for row, true in zip(scores, targets, strict=True):
            if true == -1 or any(score != score for score in row):
                continue
            ahead = sum(s > row[true] or (s == row[true] and at < true) for at, s in enumerate(row))
            right += ahead < k
        labelled = sum(true != -1 for true in targets)
        tensors = torch.tensor(scores).reshape(samples, classes), torch.tensor(targets, dtype=torch.int64)
        assert top_counts(*tensors, (k,), null_label=-1)[:2] == ({k: right}, labelled)
        arrays = [tensor.numpy() for tensor in tensors]
        assert top_counts(*arrays, (k,), null_label=-1)[:2] == ({k: right}, labelled)


def test_k_best_of_classes_alone_is_not_known():
    with pytest.raises(MetricValueError, match="scores"):
        top_counts(torch.tensor([1, 2]), torch.tensor([1, 2]), (1, 3), task="genus")
    assert top_counts(torch.tensor([1, 2, 0]), torch.tensor([1, 1, 0]), null_label=0) == ({1: 1}, 2, 0)
    with pytest.raises(MetricValueError, match="genus"):
        top_counts(torch.zeros(3, 2), torch.zeros(4), task="genus")
