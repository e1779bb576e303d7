"""Null masking: formats, counts and intervals with known answers; each planted mistake is named, its clean twin is not."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from tdbg.core.errors import TdbgError
from tdbg.probes.loss import NullMasking, null_masking
from tdbg.probes.loss.arithmetic import compute_surprise, compute_wilson_interval
from tdbg.probes.loss.null_targets import find_format

pytestmark = pytest.mark.usefixtures("loss_flags")


def report_masking(targets: Any, masked: Any, **more: Any) -> NullMasking:
    found = null_masking(targets, masked, always=True, **more)
    assert found is not None
    return found


def list_codes(found: NullMasking) -> list[str]:
    return [fault.code for fault in found.findings]


def make_batch(seed: int, size: int = 64, classes: int = 6, share: float = 0.25) -> Tensor:
    """Targets with the given share of nulls (0); the other classes are alike."""
    generator = torch.Generator().manual_seed(seed)
    labels_B = torch.randint(1, classes, (size,), generator=generator)
    return torch.where(torch.rand(size, generator=generator) < share, 0, labels_B)


def draw_mask(nulls_B: Tensor, probability: float, seed: int) -> Tensor:
    return nulls_B & (torch.rand(len(nulls_B), generator=torch.Generator().manual_seed(seed)) < probability)


# known answers


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_the_interval_is_that_of_newcombes_table(successes: int, trials: int, low: float, high: float) -> None:
    """Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I, method 3."""
    assert compute_wilson_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("probability", [0.02, 0.3, 0.5, 0.9])
def test_the_bound_is_above_the_exact_chance(probability: float) -> None:
    trials = 40
    weights = [math.comb(trials, k) * probability**k * (1 - probability) ** (trials - k) for k in range(trials + 1)]
    for seen in range(trials + 1):
        tail = sum(weights[: seen + 1]) if seen < probability * trials else sum(weights[seen:])
        assert math.exp(-compute_surprise(seen, trials, probability)) >= tail * (1 - 1e-9)


def test_the_bound_of_the_impossible() -> None:
    assert compute_surprise(3, 4, 1.0) == math.inf == compute_surprise(1, 4, 0.0)
    assert compute_surprise(4, 4, 1.0) == 0.0 == compute_surprise(0, 4, 0.0) == compute_surprise(0, 0, 0.5)
    assert compute_surprise(64, 64, 0.5) == pytest.approx(64 * math.log(2))


def test_counts_of_one_batch() -> None:
    targets_B = torch.tensor([0, 0, 0, 0, 2, 2, 1, 5])
    masked_B = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0], dtype=torch.bool)
    found = report_masking({"genus": targets_B}, {"genus": masked_B}, probability=0.75, schedule=(30, 10, 50))
    (row,) = found.tasks
    assert (row.format, row.samples, row.nulls, row.masked, row.masked_nulls) == ("indices", 8, 4, 3, 3)
    assert row.contents == {"0": 4, "2": 2, "1": 1, "5": 1} and row.realised == 0.75
    assert row.interval == pytest.approx((0.3006, 0.9544), abs=1e-4)  # 3 of 4, worked out apart
    assert found.position == 0.5 and not found.findings
    (first, _), (second, text), (third, summary) = found.records()
    assert (first, second, third) == ("INPUT", "INTERNAL", "SUMMARY")
    assert "genus: 4 of 8 null (class == 0); masked 3, of the nulls 3 = 75 % [30.1 to 95.4 %], asked 75 %" in text
    assert summary == "training: 8 targets in 1 task, 4 null, 3 masked, schedule at 50 %; no fault found"
    assert found.as_dict()["tasks"][0]["interval"] == list(row.interval)


def test_counts_go_on_apart_for_validation() -> None:
    targets_B = torch.tensor([0, 0, 1, 1])
    for _ in range(3):
        found = report_masking(targets_B, targets_B == 0, probability=1.0)
    assert (found.tasks[0].calls, found.tasks[0].all_nulls, found.tasks[0].all_masked_nulls) == (3, 6, 6)
    assert report_masking(targets_B, targets_B == 0, probability=1.0, training=False).tasks[0].calls == 1


@pytest.mark.parametrize(
    ("targets", "form"),
    [
        (torch.tensor([3, 0, 1]), "indices"),
        (torch.tensor([3.0, 0.0, 1.0]), "indices"),
        (torch.tensor([[3], [0]]), "indices"),
        (torch.eye(4), "one-hot"),
        (torch.eye(4, dtype=torch.int64), "one-hot"),
        (torch.tensor([[0, 1], [0, 0]]), "one-hot"),  # the second row has no class
        (torch.tensor([[0.9, 0.1], [0.2, 0.8]]), "soft"),
        (torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float16), "soft"),
        (torch.tensor([[1, 2, 0], [4, 0, 1]]), "indices"),  # a map of indices
    ],
    ids=str,
)
def test_formats(targets: Tensor, form: str) -> None:
    assert find_format(targets) == form


def test_nulls_of_rows_are_those_of_their_classes() -> None:
    targets_B = make_batch(1)
    hot_BC = one_hot(targets_B, 6)
    soft_BC = 0.9 * hot_BC + 0.1 / 6
    nulls_B = targets_B == 0
    for rows_BC in (hot_BC, soft_BC):
        found = report_masking(rows_BC, nulls_B, nulls=nulls_B, probability=1.0)
        assert found.tasks[0].nulls == int(nulls_B.sum()) and not found.findings
    hot_BC[nulls_B] = 0
    found = report_masking(hot_BC, nulls_B, null_index=-1, probability=1.0)
    assert found.tasks[0].nulls == int(nulls_B.sum()) and "without a class" in found.tasks[0].how
    assert not found.findings


# clean runs


@pytest.mark.parametrize("share", [0.02, 0.25, 0.7])
def test_clean_training_says_nothing(share: float) -> None:
    """60 batches a task, a gradual schedule, and everything that may be compared is given."""
    for step in range(60):
        targets = {task: make_batch(2 * step + place, share=share) for place, task in enumerate("ab")}
        nulls = {task: target == 0 for task, target in targets.items()}
        asked = 1 - step / 60
        masked = {task: draw_mask(null, asked, step) for task, null in nulls.items()}
        more = {"nulls": nulls, "classes": 6, "probability": asked, "expected_share": share}
        assert not report_masking(targets, masked, **more).findings
        assert not report_masking(targets, nulls, training=False, nulls=nulls, probability=1.0, name="masked").findings
        nothing = {task: torch.zeros_like(null) for task, null in nulls.items()}
        assert not report_masking(targets, nothing, training=False, nulls=nulls, name="whole").findings


def test_an_ignore_index_is_a_null_index() -> None:
    targets_B = torch.where(make_batch(0) == 0, -100, make_batch(0))
    assert not report_masking(targets_B, targets_B == -100, null_index=-100, classes=6, probability=1.0).findings


def test_empty_and_tiny_batches() -> None:
    assert not report_masking(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool)).findings
    assert not report_masking(torch.tensor([0]), torch.tensor([True]), probability=0.5).findings


# planted mistakes


def test_no_nulls_reach_the_loss() -> None:
    """TD-L001: the loader drops them; a quarter of the data has none."""
    for step in range(4):
        labels_B = make_batch(step).clamp(min=1)
        found = report_masking(labels_B, labels_B < 0, expected_share=0.25)
    assert (
        list_codes(found) == ["TD-L001"]
        and "0 of 256 targets are null, the data has 25 %" in found.findings[0].evidence[0]
    )


def test_the_program_finds_none_of_them() -> None:
    targets_B = make_batch(0)
    nothing_B = torch.zeros(64, dtype=torch.bool)
    assert list_codes(report_masking(targets_B, nothing_B, nulls=nothing_B)) == ["TD-L001"]


def test_few_samples_are_no_proof() -> None:
    labels_B = torch.ones(8, dtype=torch.int64)
    assert not report_masking(labels_B, labels_B < 0, expected_share=0.25).findings


def test_an_index_off_by_one_shows_in_the_share() -> None:
    """TD-L002: class 1 stands for no label."""
    found = None
    for step in range(20):
        targets_B = make_batch(step, share=0.4)
        found = report_masking(targets_B, targets_B == 1, null_index=1, expected_share=0.4)
    assert found is not None and list_codes(found) == ["TD-L002"]
    assert "class 0 has" in found.findings[0].evidence[0]


def test_another_class_is_masked() -> None:
    targets_B = make_batch(0)
    found = report_masking(targets_B, targets_B == 3)
    assert list_codes(found) == ["TD-L002"] and "masked samples are of class 3" in found.findings[0].evidence[0]
    found = report_masking(targets_B, torch.zeros(64, dtype=torch.bool), nulls=targets_B == 3)
    assert list_codes(found) == ["TD-L002"] and "took class 3 for null" in found.findings[0].evidence[0]


@pytest.mark.parametrize("value", [-1, 6, 255])
def test_a_value_that_is_no_class(value: int) -> None:
    targets_B = torch.where(make_batch(0) == 0, value, make_batch(0))
    found = report_masking(targets_B, targets_B == 0, classes=6)
    assert (
        list_codes(found) == ["TD-L002"] and f"targets are {value}, which is no class" in found.findings[0].evidence[0]
    )


def test_an_index_that_no_row_can_have() -> None:
    hot_BC = one_hot(make_batch(0), 6)
    assert list_codes(report_masking(hot_BC, hot_BC[:, 0] == 1, null_index=6)) == ["TD-L002"]
    assert not report_masking(hot_BC, hot_BC[:, 0] == 1, null_index=0).findings


def test_one_hot_rows_taken_for_indices() -> None:
    """TD-L003, in the ways it happens."""
    hot_BC = one_hot(make_batch(0), 6)
    nulls_BC, nulls_B = hot_BC == 0, (hot_BC == 0).any(1)
    for found in (
        report_masking(hot_BC, nulls_BC),
        report_masking(hot_BC, nulls_B),
        report_masking(hot_BC, draw_mask(nulls_B, 0.5, 0), nulls=nulls_B, probability=0.5),
        report_masking(hot_BC, draw_mask(nulls_B, 0.5, 0), nulls=nulls_BC),
        report_masking(hot_BC.flatten(), hot_BC.flatten() == 0, classes=6),
        report_masking(hot_BC, torch.zeros(64, dtype=torch.bool), null_index=4, nulls=(hot_BC == 4).any(1)),
    ):
        assert list_codes(found) == ["TD-L003"] and "taken for class indices" in found.findings[0].title


def test_an_inverted_mask_leaves_nothing() -> None:
    """TD-L004."""
    targets_B = make_batch(0)
    found = report_masking(targets_B, torch.ones(64, dtype=torch.bool), probability=1.0)
    assert list_codes(found) == ["TD-L004"]
    assert f"{int((targets_B != 0).sum())} of them with a label" in found.findings[0].evidence[0]
    found = report_masking(targets_B, targets_B != 0, probability=1.0)
    assert list_codes(found)[0] == "TD-L004" and "everything with a label is masked" in found.findings[0].title


def test_nothing_but_nulls_is_told_once_it_lasts() -> None:
    targets_B = torch.zeros(32, dtype=torch.int64)
    said = [list_codes(report_masking(targets_B, targets_B == 0, probability=1.0)) for _ in range(3)]
    assert said == [[], [], ["TD-L004"]]


@pytest.mark.parametrize(("asked", "real"), [(0.5, 1.0), (0.5, 0.0), (0.9, 0.1), (1.0, 0.9), (0.0, 0.1)])
def test_a_probability_that_is_not_applied(asked: float, real: float) -> None:
    """TD-L005, within 20 batches; realised as asked it is silent."""
    for applied, expected in ((real, {"TD-L005"}), (asked, set())):
        said = set()
        for step in range(20):
            targets_B = make_batch(step)
            masked_B = draw_mask(targets_B == 0, applied, 100 + step)
            said |= set(list_codes(report_masking(targets_B, masked_B, probability=asked, name=str(applied))))
        assert said == expected


def test_one_bad_batch_after_many_good_ones() -> None:
    """In all the batches together it would not show."""
    for step in range(60):
        targets_B = make_batch(step)
        assert not report_masking(targets_B, draw_mask(targets_B == 0, 0.5, step), probability=0.5).findings
    targets_B = make_batch(60, share=0.9)
    assert list_codes(report_masking(targets_B, targets_B == 0, probability=0.5)) == ["TD-L005"]


def test_masks_drawn_in_validation() -> None:
    """TD-L006."""
    targets_B = make_batch(0)
    half_B = draw_mask(targets_B == 0, 0.5, 0)
    for asked in (None, 0.0, 0.5):
        assert list_codes(report_masking(targets_B, half_B, training=False, probability=asked)) == ["TD-L006"]
    assert list_codes(report_masking(targets_B, targets_B == 0, training=False, probability=0.0)) == ["TD-L006"]
    for asked, masked_B in ((None, targets_B == 0), (1.0, targets_B == 0), (0.0, targets_B < 0), (0.5, targets_B < 0)):
        assert not report_masking(targets_B, masked_B, training=False, probability=asked).findings


def test_a_fault_is_told_of_its_task() -> None:
    targets_B = make_batch(0)
    found = report_masking(
        {"family": targets_B, "genus": targets_B}, {"family": targets_B == 0, "genus": targets_B == 3}
    )
    assert [(fault.code, fault.what) for fault in found.findings] == [("TD-L002", "genus")]
    assert "in task genus" in found.findings[0].title


# wrong use


@pytest.mark.parametrize(
    ("targets", "masked", "more", "words"),
    [
        (torch.zeros(4), torch.zeros(3), {}, "masked has shape [3]"),
        (torch.zeros(4), None, {}, "masked is missing"),
        (torch.full((4,), 0.3), torch.zeros(4), {}, "neither class indices nor rows"),
        (torch.zeros(4), torch.zeros(4), {"probability": 1.5}, "probability 1.5"),
        ({"a": torch.zeros(4)}, {"b": torch.zeros(4)}, {}, "masked has no task 'a'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused(targets: Any, masked: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(TdbgError, match=words.replace("[", r"\[").replace(".", r"\.")) as caught:
        null_masking(targets, masked, always=True, **more)
    assert caught.value.hint
