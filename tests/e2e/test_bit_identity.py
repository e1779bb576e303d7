"""Bits are those of the program without tdbg, though tdbg looked, captured and escalated; all with ``bit_identity.py``."""

from pathlib import Path

import pytest

from tests.e2e.bit_identity import differences, run_bare, run_watched, work_done


@pytest.mark.parametrize(("name", "level"), [("accumulate", "extreme"), ("amp", "basic"), ("ddp", "advanced")])
def test_parameters_random_states_and_files(tmp_path: Path, name: str, level: str) -> None:
    expected = run_bare(name, tmp_path / "bare" / name)
    result = run_watched(name, level, tmp_path / "watched" / name)
    assert differences(result, expected, level) == [], result.stderr
    assert all(work_done(result).values()), work_done(result)
