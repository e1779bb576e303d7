"""Every flag at work: on a program that shows its symptom, and on the same program in health."""

import pytest

from tdbg.core.events import Observation
from tdbg.core.flags import FLAGS, tag
from tests.e2e.conftest import Result, Runner, assert_no_finding
from tests.e2e.symptoms import Symptom, iter_symptoms

TABLE = {symptom.flag: symptom for symptom in iter_symptoms()}


def list_flag_observations(result: Result, symptom: Symptom) -> list[Observation]:
    """What the flag's probe saw on all ranks; every field is declared, and its lines are in the debug log."""
    from tdbg.probes import PROBES

    probe = next(flag.probe for flag in FLAGS if flag.name == symptom.flag)
    seen: list[Observation] = []
    for rank in range(symptom.ranks):
        found = [event for event in result.list_events(Observation, rank) if event.probe == probe]
        assert found, f"rank {rank} saw nothing\n{result.stderr}"
        for event in found:
            assert set(event.values) <= set(PROBES[probe].fields), f"undeclared: {event}"
            assert event.text
        (log,) = result.folder.glob(f"rank{rank:04d}/debug_log_rank{rank}.txt")
        mark = tag(symptom.flag).rstrip("]")
        assert any(mark in line for line in log.read_text(encoding="utf-8").splitlines())
        seen += found
    return seen


@pytest.mark.parametrize("flag", TABLE)
def test_the_symptom_is_named(watched_runner: Runner, flag: str) -> None:
    symptom = TABLE[flag]
    result = watched_runner(symptom.build_command(healthy=False), symptom.run_options())
    list_flag_observations(result, symptom)
    finding = result.find_finding(symptom.code)
    assert symptom.says in " ".join([finding["title"], *finding["evidence"]]), finding
    assert result.verdict["trouble"] == []
    assert result.verdict["cost"].get("errors", 0) == 0, result.stderr


@pytest.mark.parametrize("flag", TABLE)
def test_health_is_silent(watched_runner: Runner, flag: str) -> None:
    symptom = TABLE[flag]
    result = watched_runner(symptom.build_command(healthy=True), symptom.run_options())
    assert result.code == 0, result.stderr
    assert_no_finding(result)
    list_flag_observations(result, symptom)


def test_every_flag_with_a_probe_has_its_program() -> None:
    losses = {flag.name for flag in FLAGS if flag.probe == "loss-calls"}  # theirs are in test_losses
    assert set(TABLE) == {flag.name for flag in FLAGS if flag.probe} - losses
