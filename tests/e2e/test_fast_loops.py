"""Steps far below a millisecond, in which no probe of loaders or memory stays: the records of steps name what is wrong."""

import pytest

from tdbg.core.events import Cost
from tests.e2e.conftest import Result, Runner, assert_named_first, assert_notes_alone, build_program_command

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
