"""Objects of the program's that raise when they are looked at: what tdbg meets there never ends a training."""

import pytest

from tests.chance import choose_seed
from tests.e2e.conftest import Runner, build_program_command

EVERYTHING = ("--level", "extreme", "--max-overhead", "100", "--capture", "**:input,output,grad")


def test_an_output_that_raises_is_named_and_no_more(watched_runner: Runner, bare_runner: Runner) -> None:
    """The case of issue 17: capturing gradients of an output object whose attributes raise."""
    words = build_program_command("touchy", "7", "output")
    result = watched_runner(words, ("--capture", "**:output,grad"))
    assert (result.code, result.stdout) == (0, bare_runner(words).stdout), result.stderr
    assert result.codes == ["TD-C020"] and "when it was read" in str(result.find_finding("TD-C020"))


@pytest.mark.parametrize("options", [(), EVERYTHING], ids=["basic", "everything"])
def test_objects_that_raise(watched_runner: Runner, bare_runner: Runner, options: tuple[str, ...]) -> None:
    """In an order that TDBG_TEST_RANDOM=1 draws anew, since a part that one of them switched off does not meet the others."""
    seed = choose_seed("TOUCHY_SEED")
    print(f"seed {seed}")
    words = build_program_command("touchy", str(seed))
    plain = bare_runner(words)
    assert plain.code == 0, plain.stderr
    result = watched_runner(words, options)
    assert (result.code, result.stdout) == (0, plain.stdout), result.stderr
    assert "Traceback" not in result.stderr
