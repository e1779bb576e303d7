"""What torch.compile has given up is told at the default level; a program that compiles well has nothing to hear."""

import pytest

from tests.e2e.conftest import Runner, assert_same_output, build_program_command

TOLD = {
    "recompile": ("TD-P005", "warning", "reached its recompile limit for forward (", "self.label"),
    "break": ("TD-P006", "info", "breaks its graph in 1 place (2 graphs)", "print"),
    "fail": ("TD-P005", "warning", "could not compile forward (", "planted: no such backend"),
}


@pytest.mark.parametrize("kind", TOLD)
def test_what_the_compiler_gave_up_is_named(watched_runner: Runner, kind: str) -> None:
    result = watched_runner(build_program_command("compile_limits", kind))
    assert result.code == 0, result.stderr
    code, severity, words, reason = TOLD[kind]
    finding = result.find_finding(code)
    assert finding["severity"] == severity and words in finding["title"], finding
    assert reason in " ".join(finding["evidence"]).replace("s.label", "self.label"), finding
    assert finding["grade"] == "located"


@pytest.mark.parametrize("kind", ["well", "dynamic"])
def test_a_program_that_compiles_well_hears_nothing(watched_runner: Runner, bare_runner: Runner, kind: str) -> None:
    result = watched_runner(build_program_command("compile_limits", kind))
    assert_same_output(result, bare_runner(build_program_command("compile_limits", kind)))
    assert result.codes == [], result.stderr
