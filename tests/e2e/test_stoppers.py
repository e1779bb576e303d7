"""Early stoppers of Lightning, Hugging Face's Trainer and ignite, unchanged, under the flag EARLY_STOPPING."""

import pytest

from tdbg.core.events import Observation
from tests.e2e.conftest import Result, Runner, nothing_found, program, same_output

FLAG = ("--flag", "EARLY_STOPPING")
CHECKS = 6
PATIENCE = 3


def checks(result: Result) -> list[dict[str, object]]:
    return [event.values for event in result.events(Observation) if event.probe == "early-stopping"]


@pytest.mark.parametrize("library", ["lightning", "hf", "ignite"])
def test_a_stopper_that_goes_on(watched: Runner, bare: Runner, library: str) -> None:
    words = program("stoppers", library)
    result = watched(words, FLAG)
    same_output(result, bare(words))
    rows = checks(result)
    assert [row["check"] for row in rows] == list(range(1, CHECKS + 1))
    assert {row["counter"] for row in rows} == {0} and {row["patience"] for row in rows} == {PATIENCE}
    assert not any(row["stop"] or "fault" in row for row in rows)
    assert all(isinstance(row["value"], float) for row in rows)
    nothing_found(result)


@pytest.mark.parametrize(("library", "metric"), [("lightning", "val_loss"), ("hf", "loss")])
def test_one_that_was_told_the_wrong_way(watched: Runner, bare: Runner, library: str, metric: str) -> None:
    words = program("stoppers", library, "--wrong")
    result = watched(words, FLAG)
    same_output(result, bare(words))
    rows = checks(result)
    assert [row["counter"] for row in rows] == [0, 1, 2, 3] and rows[-1]["stop"]
    assert (rows[-1]["mode"], rows[-1]["better"]) == ("max", "min")
    finding = result.finding("TD-S009")
    assert f"counts an improving {metric} as no improvement" in finding["title"]


def test_ignites_handler_keeps_its_value_to_itself(watched: Runner) -> None:
    """Its score has no name, and its value is known only as the best one."""
    rows = checks(watched(program("stoppers", "ignite", "--wrong"), FLAG))
    assert [row["value"] is None for row in rows] == [False, True, True, True]
    assert [row["stop"] for row in rows] == [False, False, False, True]
