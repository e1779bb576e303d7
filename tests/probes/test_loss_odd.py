"""What newcomers give to `tdbg.probes.loss`: lists and arrays, half precision, NaN, one class, nothing at all."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from tdbg.core.errors import TdbgError
from tdbg.probes import loss

NAN, INF = float("nan"), float("inf")
LABELS = [0, 1, 2, 0, 4, 3, 1, 2]
MASKED = [True, False, False, True, False, False, False, False]
HALVES = [torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def reset_loss_state() -> Iterator[None]:
    loss.forget()
    yield
    loss.forget()


def list_codes(report: Any) -> list[str]:
    json.dumps(report.as_dict(), allow_nan=False)
    return [fault.code for fault in report.findings]


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_lists_and_arrays_are_targets_too(make: Any) -> None:
    report = loss.null_masking(make(LABELS), make(MASKED), nulls=make(MASKED), probability=1.0, always=True)
    assert report is not None and list_codes(report) == []
    (task,) = report.tasks
    assert (task.nulls, task.masked_nulls, task.shape, task.dtype) == (2, 2, [8], "int64")
    assert loss.class_losses(make([0.5] * 8), make(LABELS), always=True).samples == 8  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_is_no_fault(dtype: torch.dtype) -> None:
    """Rows that sum to 1 as well as the precision lets them."""
    matrix_CC = (0.9 * torch.eye(80) + 0.1 / 79 * (1 - torch.eye(80))).to(dtype)
    assert list_codes(loss.taxonomy_matrix(matrix_CC, kept=0.9, always=True)) == []
    targets_B = torch.arange(8)
    soft_BC = matrix_CC[targets_B]
    assert list_codes(loss.taxonomy_forward(torch.randn(8, 80).to(dtype), targets_B, soft_BC, always=True)) == []
    report = loss.null_masking(soft_BC, targets_B == 0, always=True)
    assert report is not None and report.tasks[0].format == "soft" and list_codes(report) == []


def test_half_precision_hides_no_fault() -> None:
    matrix_CC = (0.9 * torch.eye(80) + 0.12 / 79 * (1 - torch.eye(80))).bfloat16()
    assert list_codes(loss.taxonomy_matrix(matrix_CC, always=True)) == ["TD-L007"]


@pytest.mark.parametrize("wild", [NAN, INF])
def test_the_class_of_a_loss_that_is_not_finite_is_named(wild: float) -> None:
    report = loss.class_losses(torch.tensor([wild, 1.0, 2.0]), torch.tensor([0, 1, 1]), always=True)
    assert report is not None and list_codes(report) == [] and report.total == 3.0
    ((_, text),) = report.records()
    first, *rows = text.splitlines()
    assert first.endswith("sum of the losses 3 without 1 that are not finite") and "nan %" not in text
    assert rows[0].startswith("  class 0: ") and rows[0].endswith("; 1 not finite") and "100 % of the loss" in rows[1]


@pytest.mark.parametrize(
    ("first", "now", "said"),
    [
        ([0.0, 1.0], [1.0, 2.0], "initial loss of task 0 is 0"),
        ([1.0, NAN], [1.0, 2.0], "initial_losses of task 1 is nan"),
        ([1.0, 1.0], [-1.0, 2.0], "targets of task 0 is nan"),
    ],
)
def test_rates_that_cannot_be_are_told(first: list[float], now: list[float], said: str) -> None:
    report = loss.gradnorm_metrics(now, first, [0.5, 0.1], [1.0, 1.0], always=True)
    assert report is not None and list_codes(report) == ["TD-L019"] and said in report.findings[0].evidence


def test_rates_that_the_program_guards_are_its_own_affair() -> None:
    """It clamps the initial loss, and its targets are finite; or no task has a sample, and all losses are 0."""
    guarded = loss.gradnorm_metrics([1.0, 2.0], [0.0, 1.0], [0.5, 0.1], [1.0, 1.0], targets=[0.3, 0.3], always=True)
    empty = loss.gradnorm_metrics([0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0], name="empty", always=True)
    assert list_codes(guarded) == list_codes(empty) == []


def test_complex_values_are_told_by_their_size() -> None:
    report = loss.gradnorm_values({"x": torch.tensor([3 + 4j, 1j])}, always=True)
    assert report is not None and report.rows[0]["values"] == [5.0, 1.0]


def test_memory_takes_a_tensor_and_passes_over_what_is_none() -> None:
    with loss.gradnorm_memory(always=True) as memory:
        memory.mark("loss", torch.ones(1000))  # type: ignore[arg-type]
        memory.mark("numbers", {"loss": 3.0, "all": [1.0, None]})  # type: ignore[dict-item]
    assert memory.report is not None
    first, second = memory.report.parts
    assert [row["name"] for row in first["tensors"]] == ["loss 1000 float32"] and second["tensors"] == []


Wrong = tuple[Any, str, str]
WRONG: dict[str, Wrong] = {
    "multi-label": (
        lambda: loss.null_masking(one_hot(torch.tensor(LABELS)).flip(1) | one_hot(torch.tensor(LABELS)),
                                  torch.tensor(MASKED), always=True),
        "masked has shape [8], the targets have [8, 5]", "give each label as a task of its own",
    ),
    "NaN counts": (
        lambda: loss.class_weighting([1.0, 2.0], [5, NAN], always=True), "negative values, NaN or Inf", "how many samples",
    ),
    "negative counts": (
        lambda: loss.class_weighting([1.0, 2.0], [5, -1], always=True), "negative values, NaN or Inf", "how many samples",
    ),
    "a tree of dictionaries": (
        lambda: loss.taxonomy_hierarchy({"cats": {"lion": None}}, always=True), "parents are no names", "child -> parent",
    ),
    "a mean loss": (
        lambda: loss.class_losses(torch.tensor(1.0), torch.tensor(LABELS), always=True), "1 loss, 8 targets", "'none'",
    ),
    "NaN targets": (
        lambda: loss.null_masking(torch.full((8,), NAN), torch.tensor(MASKED), always=True), "neither class indices", "[B]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_said(name: str) -> None:
    call, what, hint = WRONG[name]
    with pytest.raises(TdbgError) as error:
        call()
    assert what in str(error.value) and hint in error.value.hint


def test_next_to_nothing() -> None:
    """No sample, one sample, one class, nothing but nulls, no task: each is a report, and none a fault."""
    none = torch.zeros(0, dtype=torch.long)
    scalar = loss.null_masking(torch.tensor(3), torch.tensor(False), always=True)
    assert scalar is not None and "indices scalar int64" in scalar.records()[0][1]
    for targets in (none, torch.zeros(0, 5), torch.zeros(8, dtype=torch.long), torch.full((8,), 3)):
        masked = torch.zeros(len(targets), dtype=torch.bool)
        assert list_codes(loss.null_masking(targets, masked, name=str(targets.shape), always=True)) == []
    assert list_codes(loss.null_masking({}, {}, always=True)) == []
    assert list_codes(loss.class_losses(torch.zeros(0), none, always=True)) == []
    assert list_codes(loss.class_losses(torch.ones(8), torch.full((8,), -100), always=True)) == []
    assert list_codes(loss.class_weighting([1.0], [10], always=True)) == []
    assert list_codes(loss.taxonomy_matrix(torch.ones(1, 1), always=True)) == []
    assert list_codes(loss.taxonomy_hierarchy({}, always=True)) == []
    assert list_codes(loss.gradnorm_metrics([1.0], [1.0], [0.5], [1.0], always=True)) == []


def test_a_few_batches_again_and_again_are_no_proof_of_a_wrong_null_index(loss_flags: dict[str, Any]) -> None:
    """As one overfits them: their share of nulls is a little off that of the data, and stays so for ever."""
    loss_flags["LOSS.NULL_MASKING"] = True
    targets = torch.tensor([0] * 49 + [1] * 100 + [2] * 51)
    reports = [
        loss.null_masking(targets, targets == 0, null_index=0, expected_share=share)
        for share in (0.23, 0.5)
        for _ in range(400)
    ]
    assert reports[399] is not None and reports[399].findings == []
    assert reports[-1] is not None and [fault.code for fault in reports[-1].findings] == ["TD-L002"]
