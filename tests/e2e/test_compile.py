"""torch.compile: graphs, frames and breaks with tdbg are those without; so are the losses."""

import pytest

from tests.e2e.conftest import (
    EVERY_STEP,
    Runner,
    assert_no_finding,
    assert_same_output,
    assert_same_steps,
    build_program_command,
)

FORMS = ("whole", "block", "fullgraph", "loss", "method")


@pytest.mark.parametrize("form", FORMS)
def test_counts_do_not_change(watched_runner: Runner, bare_runner: Runner, form: str) -> None:
    words = build_program_command("compiled", form)
    result = watched_runner(words)
    expected = bare_runner(words)
    assert expected.list_printed("compile")[0]["graphs"] > 0, "nothing was compiled"
    assert result.list_printed("compile") == expected.list_printed("compile")
    assert_same_output(result, expected)
    assert_same_steps(result, norms="some")
    assert_no_finding(result)


@pytest.mark.parametrize("level", ["advanced", "extreme"])
@pytest.mark.parametrize("form", ["whole", "method"])
def test_nor_at_higher_levels(watched_runner: Runner, bare_runner: Runner, form: str, level: str) -> None:
    words = build_program_command("compiled", form)
    result = watched_runner(words, ["--level", level])
    assert_same_output(result, bare_runner(words))


def test_counts_do_not_change_with_a_code_generator(watched_runner: Runner, bare_runner: Runner) -> None:
    words = build_program_command("compiled", "whole", "aot_eager")
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    assert_no_finding(result)


@pytest.mark.parametrize("level", ["basic", "advanced", "extreme"])
@pytest.mark.parametrize("form", ["method", "function", "train"])
def test_a_compiled_update_under_a_grad_scaler(
    watched_runner: Runner, bare_runner: Runner, form: str, level: str
) -> None:
    """No hook of an optimizer sees it; only the update that the scaler left out is skipped."""
    words = build_program_command("compiled_update", form)
    result, expected = watched_runner(words, ["--level", level, *EVERY_STEP]), bare_runner(words)
    assert [line["step"] for line in expected.list_printed() if line["skipped"]] == [20]
    assert_same_output(result, expected)
    steps = result.list_steps()
    assert [step.step for step in steps] == list(range(1, 33))
    assert [step.step for step in steps if step.skipped] == [20]
    assert "TD-A001" not in result.codes and "TD-C005" not in result.codes, result.stderr
