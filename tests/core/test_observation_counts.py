"""The line of an observation counts one thing as one."""

import pytest

from tdbg.core.observations import Observed
from tdbg.core.observations.model_build import StuckAtZero, UngradedParameters
from tdbg.core.observations.preflight import BatchOverfitted
from tdbg.core.observations.schedule import ScheduleOver, SchedulerStepped
from tdbg.core.observations.training_loop import EpochUpdates, EvaluationPhase

KINDS = [EpochUpdates, ScheduleOver, SchedulerStepped, StuckAtZero, UngradedParameters]


def describe_overfit(updates: int) -> str:
    return BatchOverfitted(loss="loss", first=2.0, last=1.0, updates=updates).describe_outcome()


@pytest.mark.parametrize("kind", KINDS)
def test_one_update_is_no_updates(kind: type[Observed]) -> None:
    one, two = (kind(updates=number).text() for number in (1, 2))
    assert "1 update" in one and "1 updates" not in one
    assert "2 updates" in two


def test_a_trial_of_one_update() -> None:
    assert describe_overfit(1).endswith(" 1 update") and describe_overfit(2).endswith(" 2 updates")


def test_a_phase_of_one_call() -> None:
    assert EvaluationPhase(evaluations=1, step=5).text().startswith("1 call without gradients")
