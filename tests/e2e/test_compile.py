"""torch.compile: graphs, frames and breaks with tdbg are those without; so are the losses."""

import pytest

from tests.e2e.conftest import Runner, nothing_found, program, same_output, same_steps

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
