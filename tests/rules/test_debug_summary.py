"""Steps with an anomaly, counted from records: what `TrainingDebugger` would have counted in the program."""

from typing import Any

import pytest

from tdbg.core.events import Step
from tdbg.rules.debug_summary import TrainingCounts, summarize_training


def count(records: list[dict[str, Any]]) -> dict[str, Any]:
    counts = TrainingCounts()
    for number, record in enumerate(records, 1):
        counts.add_step(Step(step=number, micro=1, **record))
    return dict(summarize_training([counts]))


HEALTHY = {"loss": 1.0, "grad_norm": 0.5, "finite": True}


def test_a_healthy_run_has_none() -> None:
    found = count([{**HEALTHY, "loss": 1.0 + 0.01 * (number % 7)} for number in range(100)])
    assert found.pop("total_steps") == 100 and set(found.values()) == {0}


def test_nothing_is_divided_by_no_steps() -> None:
    assert set(summarize_training([]).values()) == {0}


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf"])
def test_a_loss_that_is_not_finite(loss: str) -> None:
    found = count([HEALTHY, {**HEALTHY, "loss": loss}, HEALTHY, HEALTHY])
    assert found["loss_anomalies"] == found["anomaly_steps"] == 1 and found["loss_anomaly_rate"] == 0.25


def test_a_spike_of_the_loss() -> None:
    course = [{**HEALTHY, "loss": 1.0 + 0.01 * (number % 7)} for number in range(60)]
    assert count([*course, {**HEALTHY, "loss": 9.0}, *course])["loss_anomalies"] == 1


@pytest.mark.parametrize(
    ("norm", "kind"),
    [
        (11.0, "gradient_explosions"),
        ("inf", "gradient_explosions"),
        ("nan", "gradient_explosions"),
        (1e-7, "gradient_vanishing"),
        (0.0, "gradient_vanishing"),
    ],
)
def test_a_norm_out_of_bounds(norm: object, kind: str) -> None:
    for record in ({"grad_norm": norm}, {"grad_norm": 0.5, "grad_norms": [0.5, norm, -1]}):
        found = count([HEALTHY, {"loss": 1.0, **record}])
        assert found[kind] == found["anomaly_steps"] == 1, record
        assert found["gradient_explosions"] + found["gradient_vanishing"] == 1


def test_no_gradient_is_no_vanishing_one() -> None:
    assert count([{**HEALTHY, "grad_norms": [-1, 0.5]}])["anomaly_steps"] == 0


def test_a_step_that_gradscaler_skips_is_none() -> None:
    assert count([{"loss": 1.0, "grad_norm": "inf", "finite": False, "skipped": True}])["anomaly_steps"] == 0


def test_of_several_ranks_the_highest_counts() -> None:
    ranks = [TrainingCounts(), TrainingCounts()]
    for number in range(1, 11):
        ranks[0].add_step(Step(step=number, micro=1, loss=1.0))
        ranks[1].add_step(Step(step=number, micro=1, loss="nan" if number > 8 else 1.0))
    found = summarize_training(ranks)
    assert (found["total_steps"], found["anomaly_steps"], found["anomaly_rate"]) == (10, 2, 0.2)
