"""Class weighting: effective numbers and shares with known answers; each planted mistake is named."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tdbg.core.errors import TdbgError
from tdbg.probes.loss import class_losses, class_weighting
from tdbg.probes.loss.class_weighting import compute_effective_numbers

pytestmark = pytest.mark.usefixtures("loss_flags")

COUNTS_C = torch.tensor([1000.0, 500.0, 200.0, 100.0, 50.0])


def report_weighting(weights_C: Any, counts_C: Any = COUNTS_C, **more: Any) -> Any:
    found = class_weighting(weights_C, counts_C, always=True, **more)
    assert found is not None and found.records()[0][1] and found.as_dict()
    return found


def list_codes(found: Any) -> list[str]:
    return [fault.code for fault in found.findings]


def compute_balanced(beta: float = 0.999) -> Tensor:
    """Cui et al. 2019: 1 / effective number, scaled to a sum of C."""
    inverse_C = (1 - beta) / (1 - beta ** COUNTS_C.double())
    return inverse_C * len(inverse_C) / inverse_C.sum()


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.999])
def test_effective_numbers_are_the_sum_of_their_series(beta: float) -> None:
    """Cui et al. 2019, eq. 3: 1 + beta + beta^2 + ..., n terms."""
    counts_C = torch.tensor([0.0, 1.0, 2.0, 10.0, 300.0], dtype=torch.float64)
    series = [sum(beta**power for power in range(int(count))) for count in counts_C]
    assert compute_effective_numbers(counts_C, beta).tolist() == pytest.approx(series)


def test_a_beta_near_one_gives_the_counts() -> None:
    assert compute_effective_numbers(torch.tensor([7.0], dtype=torch.float64), 1 - 1e-12).item() == pytest.approx(
        7.0, rel=1e-6
    )


def test_exponents_and_shares() -> None:
    found = report_weighting(1 / COUNTS_C, names=list("abcde"), others={"focal": torch.ones(5)})
    assert found.exponents == {"weights": pytest.approx(-1.0), "focal": pytest.approx(0.0)}
    assert found.exponent == pytest.approx(-1.0) and found.ratio == pytest.approx(20.0)
    assert [row["name"] for row in found.rows] == list("edcba"), "the rarest first"
    assert [row["share"] for row in found.rows] == pytest.approx([0.2] * 5)
    assert not found.findings


@pytest.mark.parametrize(
    "weights_C",
    [
        torch.ones(5),
        compute_balanced(0.9),
        compute_balanced(0.999),
        compute_balanced(0.99999),
        COUNTS_C.rsqrt(),
        [1.0, 1, 1, 0, 1],
    ],
    ids=["none", "0.9", "0.999", "0.99999", "root", "one class left out"],
)
def test_sound_weights(weights_C: Any) -> None:
    assert not report_weighting(weights_C).findings


def test_the_balanced_weights_are_those_of_the_paper() -> None:
    found = report_weighting(torch.ones(5), beta=0.999)
    assert [row["balanced"] for row in reversed(found.rows)] == pytest.approx(compute_balanced(0.999).tolist())


def test_classes_without_samples() -> None:
    found = report_weighting([1.0, 2.0, 0.0], [100.0, 50.0, 0.0])
    assert found.rows[0]["effective"] == 0 and found.rows[0]["balanced"] == 0 and not found.findings


def test_extreme_weights() -> None:
    """TD-L011."""
    counts_C = torch.tensor([10000.0, 1000.0, 10.0])
    found = report_weighting(1 / counts_C, counts_C, names=list("abc"))
    assert list_codes(found) == ["TD-L011"] and "1000 times" in found.findings[0].title
    assert "c 0.1 at 10 samples" in found.findings[0].evidence[0]
    assert not report_weighting(1 / counts_C, counts_C, extreme=2000.0).findings
    for value in (float("inf"), float("nan"), -1.0):
        assert list_codes(report_weighting([1.0, 1.0, value], counts_C)) == ["TD-L011"]


def test_inverted_weights() -> None:
    """TD-L012: frequencies as weights."""
    found = report_weighting(COUNTS_C / COUNTS_C.mean(), names=list("abcde"))
    assert list_codes(found) == ["TD-L012"] and "e: 50 samples" in found.findings[0].evidence[0]
    assert list_codes(report_weighting([2.0, 1.0], [10.0, 5.0])) == ["TD-L012"]


def test_a_hand_made_weight_is_no_inversion() -> None:
    assert not report_weighting([2.0, 1.0, 1.0, 1.0, 1.5]).findings


def test_double_weighting() -> None:
    """TD-L013: sampler and loss; or twice in the loss; roots of both are fine."""
    found = report_weighting(compute_balanced(0.99999), sampling=1 / COUNTS_C)
    assert list_codes(found) == ["TD-L013"] and "weights and sampling" in found.findings[0].title
    assert found.exponent == pytest.approx(-2.0, abs=0.02)
    assert list_codes(report_weighting(1 / COUNTS_C, others={"second": 1 / COUNTS_C})) == ["TD-L013"]
    assert not report_weighting(COUNTS_C.rsqrt(), sampling=COUNTS_C.rsqrt()).findings
    assert not report_weighting(torch.ones(5), sampling=1 / COUNTS_C).findings


def test_shares_of_the_loss() -> None:
    losses_B, targets_B = torch.tensor([1.0, 2.0, 3.0, 4.0, 9.0]), torch.tensor([0, 0, 2, 2, -1])
    found = class_losses(losses_B, targets_B, classes=4, weights=[1.0, 1.0, 0.5, 1.0], names=list("abcd"), always=True)
    assert found is not None and (found.samples, found.left_out, found.total) == (4, 1, 6.5)
    assert [(row["name"], row["samples"], row["mean"]) for row in found.rows] == [("c", 2, 1.75), ("a", 2, 1.5)]
    assert [row["share"] for row in found.rows] == pytest.approx([3.5 / 6.5, 3 / 6.5])
    assert "c: 53.8 % of the loss from 2 samples (50 %)" in found.records()[0][1]


def test_no_sample_at_all() -> None:
    found = class_losses(torch.zeros(0), torch.zeros(0, dtype=torch.int64), always=True)
    assert found is not None and found.samples == 0 and not found.rows


@pytest.mark.parametrize(
    "call",
    [
        lambda: class_weighting(torch.ones(3), torch.ones(4), always=True),
        lambda: class_weighting(torch.ones(3), torch.ones(3), beta=1.0, always=True),
        lambda: class_losses(torch.ones(3), torch.ones(4), always=True),
        lambda: class_losses(torch.ones(1), torch.tensor([2]), weights=[1.0], always=True),
    ],
)
def test_what_does_not_fit_is_refused(call: Any) -> None:
    with pytest.raises(TdbgError) as caught:
        call()
    assert caught.value.hint
