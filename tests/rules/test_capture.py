"""TD-C020: what was asked to be captured and is not there."""

from typing import Any

import pytest
from streams import Stream

from tdbg.core.events import Observation
from tdbg.core.observations.capture import CaptureDone


def make_done(**dropped: int) -> Observation:
    """What the probe says at the end. dropped: reason -> passes."""
    values: dict[str, Any] = {"datapoints": 8, "bytes": 1_000_000, "not_executed": [], "dropped": dropped}
    return Observation(probe="capture", part="DONE", step=9, text="captured 8 passes", values=values)


def test_passes_that_nobody_asked_to_leave_out_are_a_finding(make_stream: Any) -> None:
    run: Stream = make_stream()
    run.emit_events(
        run.begin_rank(0), make_done(**{"sampled": 3, "over budget": 2, "no room": 1, "two tensors have one name": 4})
    )
    (found,) = [finding for finding in run.judge_stream().findings if finding.code == "TD-C020"]
    assert found.title == "passes left out: 1 no room; 4 two tensors have one name, rank 0"


def test_what_was_asked_for_is_none(make_stream: Any) -> None:
    run: Stream = make_stream()
    run.emit_events(
        run.begin_rank(0), make_done(**{"sampled": 3, "over budget": 2, "of an epoch that was not the last": 1})
    )
    assert run.judge_stream().findings == []


def test_one_pass_is_not_several() -> None:
    assert CaptureDone(datapoints=1, bytes=0).text().startswith("captured 1 pass, ")
    assert CaptureDone(datapoints=2, bytes=0).text().startswith("captured 2 passes, ")


@pytest.mark.parametrize(
    ("field", "cause"), [("unscored", "no labels"), ("without_rows", "the number of samples is unknown")]
)
def test_why_samples_could_not_be_chosen(make_stream: Any, field: str, cause: str) -> None:
    run: Stream = make_stream()
    done = make_done()
    run.emit_events(
        run.begin_rank(0), Observation(probe="capture", part="DONE", step=9, values={**done.values, field: 3})
    )
    (found,) = [finding for finding in run.judge_stream().findings if finding.code == "TD-C020"]
    assert found.title == "cannot choose samples in 3 captured passes, all were kept, rank 0" and cause in found.cause
