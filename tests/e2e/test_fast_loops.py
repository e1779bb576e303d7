"""Steps far below a millisecond, in which no probe of loaders or memory stays: the records of steps name what is wrong.

Once the allowance is used up, their losses are checked one in a few.
"""

import pytest

from tdbg.core.events import Cost, NonFinite
from tdbg.runtime.duty_cycle import RARITIES
from tests.e2e.conftest import (
    Result,
    Runner,
    assert_named_first,
    assert_no_finding,
    assert_notes_alone,
    build_program_command,
)

MOST_UNCHECKED = RARITIES[-1].check_every  # steps of which one has its loss checked
NAMED = {  # kind -> code, and the beginning of the line; the probe that would name it in longer steps
    "starved": ("TD-P002", "waiting for batches of Rows (training) takes", "dataloader"),
    "leak": ("TD-M001", "host memory grew ", "memory"),
}


def has_stayed(watched: Result, probe: str) -> bool:
    """True if the opening steps took so long, on a busy machine, that the probe stayed in the loop."""
    return probe in (watched.list_events(Cost)[-1].stayed or ())


@pytest.mark.parametrize("kind", NAMED)
def test_the_records_of_a_fast_loop_name_what_is_wrong(watched_runner: Runner, kind: str) -> None:
    watched = watched_runner(build_program_command("fast_loop", kind, "fault"))
    code, line, probe = NAMED[kind]
    assert_named_first(watched, code, line)
    finding = watched.find_finding(code)
    assert has_stayed(watched, probe) or any("read off the records of " in one for one in finding["evidence"])
    assert f"{code} " in watched.stderr.split("verdict:")[0], "told while the program runs"


@pytest.mark.parametrize("kind", NAMED)
def test_the_healthy_twin_is_not_complained_of(watched_runner: Runner, kind: str) -> None:
    watched = watched_runner(build_program_command("fast_loop", kind, "healthy"))
    assert_notes_alone(watched)
    assert NAMED[kind][0] not in watched.codes


STEPS = 12_000


@pytest.mark.parametrize("bad", [9_000, STEPS - 1])
def test_a_nan_among_losses_that_are_not_checked_is_named_with_its_range(watched_runner: Runner, bad: int) -> None:
    watched = watched_runner(build_program_command("shortest_steps", str(STEPS), str(bad)), ["--allowance", "0"])
    (found,) = watched.list_events(NonFinite)
    assert found.step <= bad <= (found.until or found.step) < found.step + MOST_UNCHECKED, found
    assert_named_first(watched, "TD-N001", "first NaN ")
    assert watched.verdict["watched"]["unchecked_losses"] == watched.list_events(Cost)[-1].unchecked_losses > 0


@pytest.mark.parametrize("allowance", ["0", "30"])
def test_healthy_losses_that_are_not_checked_are_counted(watched_runner: Runner, allowance: str) -> None:
    watched = watched_runner(build_program_command("shortest_steps", str(STEPS)), ["--allowance", allowance])
    assert_no_finding(watched)
    unchecked = watched.list_events(Cost)[-1].unchecked_losses
    assert 0 < unchecked <= STEPS * (MOST_UNCHECKED - 1) / MOST_UNCHECKED if allowance == "0" else not unchecked
