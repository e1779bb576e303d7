"""Bits are those of the program without tdbg, though tdbg looked, captured and escalated; all with ``bit_identity.py``."""

from pathlib import Path

import pytest

from tests.e2e.bit_identity import count_work, list_differences, run_bare, run_watched


@pytest.mark.parametrize(("name", "level"), [("accumulate", "extreme"), ("amp", "basic"), ("ddp", "advanced")])
def test_parameters_random_states_and_files(tmp_path: Path, name: str, level: str) -> None:
    expected = run_bare(name, tmp_path / "bare" / name)
    result = run_watched(name, level, tmp_path / "watched" / name)
    assert list_differences(result, expected, level) == [], result.stderr
    assert all(count_work(result).values()), count_work(result)
