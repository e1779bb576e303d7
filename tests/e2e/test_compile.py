"""torch.compile: graphs, frames and breaks with tdbg are those without; so are the losses."""

import pytest

from tests.e2e.conftest import EVERY_STEP, Runner, nothing_found, program, same_output, same_steps

FORMS = ("whole", "block", "fullgraph", "loss", "method")


@pytest.mark.parametrize("form", FORMS)
def test_counts_do_not_change(watched: Runner, bare: Runner, form: str) -> None:
    words = program("compiled", form)
    result = watched(words)
    expected = bare(words)
    assert expected.printed("compile")[0]["graphs"] > 0, "nothing was compiled"
    assert result.printed("compile") == expected.printed("compile")
    same_output(result, expected)
    same_steps(result, norms="some")
    nothing_found(result)


@pytest.mark.parametrize("level", ["advanced", "extreme"])
@pytest.mark.parametrize("form", ["whole", "method"])
def test_nor_at_higher_levels(watched: Runner, bare: Runner, form: str, level: str) -> None:
    words = program("compiled", form)
    result = watched(words, ["--level", level])
    same_output(result, bare(words))


def test_counts_do_not_change_with_a_code_generator(watched: Runner, bare: Runner) -> None:
    words = program("compiled", "whole", "aot_eager")
    result = watched(words)
    same_output(result, bare(words))
    nothing_found(result)


@pytest.mark.parametrize("level", ["basic", "advanced", "extreme"])
@pytest.mark.parametrize("form", ["method", "function", "train"])
def test_a_compiled_update_under_a_grad_scaler(watched: Runner, bare: Runner, form: str, level: str) -> None:
    """No hook of an optimizer sees it; only the update that the scaler left out is skipped."""
    words = program("compiled_update", form)
    result, expected = watched(words, ["--level", level, *EVERY_STEP]), bare(words)
    assert [line["step"] for line in expected.printed() if line["skipped"]] == [20]
    same_output(result, expected)
    steps = result.steps()
    assert [step.step for step in steps] == list(range(1, 33))
    assert [step.step for step in steps if step.skipped] == [20]
    assert "TD-A001" not in result.codes and "TD-C005" not in result.codes, result.stderr
