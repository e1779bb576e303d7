"""A rank that native code ends is named with the line it was at, at the default level."""

from pathlib import Path

import pytest

from tests.e2e.conftest import PROGRAMS, Runner, build_program_command, build_torchrun_command

NATIVE_STACK = "native_stack.txt"

pytestmark = pytest.mark.cold  # how a process ends is its own


def find_line(text: str) -> int:
    lines = (PROGRAMS / "native_crash.py").read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def list_stacks(folder: Path) -> list[str]:
    return [path.parent.name for path in sorted(folder.rglob(NATIVE_STACK))]


def test_a_bad_address_is_named_with_its_line(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("native_crash", "pointer"))
    finding = result.find_finding("TD-R002")
    place = f"native_crash.py:{find_line('ctypes.string_at(0)')} in read_bad_address"
    assert finding["title"].startswith(f"rank 0 was ended by SIGSEGV in string_at ({place})"), finding
    assert f"Python stacks: rank0000/{NATIVE_STACK}" in finding["evidence"]


def test_a_collective_that_the_other_rank_does_not_call_is_named(watched_runner: Runner) -> None:
    """gloo gives up at once: the sizes of what meets differ."""
    result = watched_runner(build_torchrun_command("native_crash", "collective"))
    finding = result.find_finding("TD-R002")
    place = f"native_crash.py:{find_line('dist.all_reduce')} in main"
    assert finding["rank"] == 0 and f"SIGABRT in all_reduce ({place})" in finding["title"], finding
    assert "another rank called a different collective" in finding["cause"]
    assert result.verdict["findings"][0]["code"] == "TD-R002", "the other rank's error follows from it"


def test_a_run_that_ends_well_leaves_no_file(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("native_crash", "none"))
    assert result.code == 0 and result.codes == [] and list_stacks(result.folder) == []


def test_a_program_with_a_handler_of_its_own_keeps_it(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("native_crash", "pointer"), env={"PYTHONFAULTHANDLER": "1"})
    assert "Fatal Python error: Segmentation fault" in result.stderr
    assert list_stacks(result.folder) == []
    assert result.find_finding("TD-R002")["title"].startswith("rank 0 was ended by SIGSEGV, last recorded at step")
