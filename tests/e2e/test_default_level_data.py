"""Silent bugs in data and ranks, each planted in a small training: the default level names them, and no healthy twin."""

import pytest

from tests.e2e.conftest import Runner, program

NAMED = {  # kind -> code, and a part of the first line
    "scaled": ("TD-D010", "input 0 is scaled otherwise in evaluation"),
    "scaled-early": ("TD-D010", "input 0 is scaled otherwise in evaluation"),
    "scaled-short": ("TD-D010", "input 0 is scaled otherwise in evaluation"),
}


@pytest.mark.parametrize("kind", NAMED)
def test_the_default_level_names_what_is_wrong(watched: Runner, kind: str) -> None:
    result = watched(program("planted_data", kind, "fault"))
    assert result.code == 0, result.stderr
    code, words = NAMED[kind]
    finding = result.verdict["findings"][0]
    assert finding["code"] == code and words in finding["title"], result.stderr


@pytest.mark.parametrize("kind", NAMED)
def test_the_default_level_is_silent_about_the_healthy_twin(watched: Runner, kind: str) -> None:
    result = watched(program("planted_data", kind, "healthy"))
    assert result.code == 0, result.stderr
    assert [one for one in result.verdict["findings"] if one["severity"] != "info"] == [], result.stderr
