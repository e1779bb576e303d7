"""Steps with an anomaly, counted from records: what `TrainingDebugger` would have counted in the program."""

from typing import Any

import pytest

from tdbg.core.events import Anomaly, Step
from tdbg.rules.debug_summary import (
    MAX_KINDS,
    AnomalyCounts,
    TrainingCounts,
    merge_anomalies,
    summarize_debuggers,
    summarize_training,
)


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


def test_of_anomalies_each_kind_counts_as_often_as_in_the_process_that_has_most() -> None:
    first, second = AnomalyCounts(), AnomalyCounts()
    for counts, debugger, kind, so_many in (
        (first, "diffusion", "latents", 3),
        (second, "diffusion", "latents", 2),
        (second, "diffusion", "non-finite", 5),
        (second, "general", "odd", 1),
        (second, "training", "loss", 9),
    ):
        for count in range(1, so_many + 1):
            counts.add_anomaly(Anomaly(debugger=debugger, kind=kind, count=count))
    found = summarize_debuggers(summarize_training([]), [], 10, merge_anomalies([first, second]))
    assert found["diffusion_debugger"] == {"total_anomalies": 8, "debug_history_length": 7}
    assert found["general_debugger"] == {"total_anomalies": 1, "debug_history_length": 11, "anomalies": {"odd": 1}}
    assert found["training_debugger"]["total_anomalies"] == 0, "of these the step records speak"


def test_a_hostile_number_of_kinds_is_not_kept() -> None:
    counts = AnomalyCounts()
    for number in range(5 * MAX_KINDS):
        counts.add_anomaly(Anomaly(debugger="general", kind=f"kind {number}"))
    assert len(counts.count_kinds("general")) == MAX_KINDS
