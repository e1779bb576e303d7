"""A loader that is waited for: the line of ``__getitem__`` that takes the time is named, at the default level."""

import re

import pytest

from tests.e2e.conftest import PROGRAMS, Runner, assert_named_first, assert_notes_alone, build_program_command

SOURCE = (PROGRAMS / "slow_loader.py").read_text().split("\n")
(LINE,) = (number for number, line in enumerate(SOURCE, 1) if "numpy.load(FILE) if self.rows is None" in line)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_the_slow_line_is_named_and_nothing_else_changes(
    watched_runner: Runner, bare_runner: Runner, workers: str
) -> None:
    command = build_program_command("slow_loader", "slow", workers)
    watched, bare = watched_runner(command), bare_runner(command)
    assert_named_first(watched, "TD-P002", "waiting for batches of Shards (training)")
    finding = watched.verdict["findings"][0]
    named = rf"Shards\.__getitem__: \d+% of the time to fetch a sample .* at \S*slow_loader\.py:{LINE}"
    assert re.fullmatch(named, finding["evidence"][0]), finding
    assert f"slow_loader.py:{LINE}: " in finding["try_next"]
    assert "up to step" not in finding["title"] and "after 79 batches" in finding["evidence"][1]
    assert watched.stdout == bare.stdout


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_quick_loader_is_not_complained_of(watched_runner: Runner, workers: str) -> None:
    watched = watched_runner(build_program_command("slow_loader", "quick", workers))
    assert_notes_alone(watched)
    assert "slow_loader.py:" not in watched.stderr
