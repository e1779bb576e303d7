"""Early stoppers of Lightning, Hugging Face's Trainer and ignite, unchanged, under the flag EARLY_STOPPING."""

import pytest

from tdbg.core.events import Observation
from tests.e2e.conftest import Result, Runner, assert_no_finding, assert_same_output, build_program_command

FLAG = ("--flag", "EARLY_STOPPING")
CHECKS = 6
PATIENCE = 3


def list_checks(result: Result) -> list[dict[str, object]]:
    return [event.values for event in result.list_events(Observation) if event.probe == "early-stopping"]


@pytest.mark.parametrize("library", ["lightning", "hf", "ignite"])
def test_a_stopper_that_goes_on(watched_runner: Runner, bare_runner: Runner, library: str) -> None:
    words = build_program_command("stoppers", library)
    result = watched_runner(words, FLAG)
    assert_same_output(result, bare_runner(words))
    rows = list_checks(result)
    assert [row["check"] for row in rows] == list(range(1, CHECKS + 1))
    assert {row["counter"] for row in rows} == {0} and {row["patience"] for row in rows} == {PATIENCE}
    assert not any(row["stop"] or "fault" in row for row in rows)
    assert all(isinstance(row["value"], float) for row in rows)
    assert_no_finding(result)


@pytest.mark.parametrize(("library", "metric"), [("lightning", "val_loss"), ("hf", "loss")])
def test_one_that_was_told_the_wrong_way(
    watched_runner: Runner, bare_runner: Runner, library: str, metric: str
) -> None:
    words = build_program_command("stoppers", library, "--wrong")
    result = watched_runner(words, FLAG)
    assert_same_output(result, bare_runner(words))
    rows = list_checks(result)
    assert [row["counter"] for row in rows] == [0, 1, 2, 3] and rows[-1]["stop"]
    assert (rows[-1]["mode"], rows[-1]["better"]) == ("max", "min")
    finding = result.find_finding("TD-S009")
    assert f"counts an improving {metric} as no improvement" in finding["title"]


def test_ignites_handler_keeps_its_value_to_itself(watched_runner: Runner) -> None:
    """Its score has no name, and its value is known only as the best one."""
    rows = list_checks(watched_runner(build_program_command("stoppers", "ignite", "--wrong"), FLAG))
    assert [row["value"] is None for row in rows] == [False, True, True, True]
    assert [row["stop"] for row in rows] == [False, False, False, True]
