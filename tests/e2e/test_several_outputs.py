"""A module with several outputs of which the loss uses one: torch calls the hooks of the others without a gradient."""

import pytest

from tests.e2e.conftest import EVERY_STEP, Runner, build_program_command
from tests.e2e.programs.several_outputs import FAULTY_STEP, KINDS
from tests.e2e.test_faults import find_first_bad

LEVELS = [(), ("--max-overhead", "0.01"), EVERY_STEP, ("--level", "extreme")]


@pytest.mark.parametrize("used", ["first", "last"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_module_of_the_fault_is_named_and_nothing_switches_off(
    kind: str, used: str, watched_runner: Runner
) -> None:
    result = watched_runner(build_program_command("several_outputs", kind, used, "--fault"))
    finding, event = find_first_bad(result, step=FAULTY_STEP)
    assert (finding["phase"], event.module, event.how) == ("backward", "root", "rerun"), finding
    assert result.codes[0] == "TD-N001" and "TD-C005" not in result.codes, result.stderr
    assert result.verdict["trouble"] == [], result.verdict


@pytest.mark.parametrize("options", LEVELS, ids=["default", "poor", "every-step", "extreme"])
@pytest.mark.parametrize("kind", ["chunk", "sparing-function"])
def test_a_healthy_run_is_silent_at_every_level(
    kind: str, options: tuple[str, ...], watched_runner: Runner, bare_runner: Runner
) -> None:
    command = build_program_command("several_outputs", kind, "first")
    result = watched_runner(command, options)
    assert [code for code in result.codes if code != "TD-G004"] == [], result.stderr
    assert result.verdict["trouble"] == [], result.verdict
    assert result.stdout == bare_runner(command).stdout


@pytest.mark.parametrize(
    "options", [("-f", "BACKWARD"), ("-f", "GRADIENTS"), ("--capture", "several:output,grad")], ids=" ".join
)
def test_what_gets_no_gradient_is_passed_over(options: tuple[str, ...], watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("several_outputs", "chunk", "last"), options)
    assert result.code == 0 and result.verdict["trouble"] == [], result.verdict
