"""A program's tracebacks are those that it prints without tdbg: none of tdbg's frames, and torch's as without its hooks."""

import pytest

from tests.e2e.conftest import Result, Runner, build_program_command

MUCH = ("GRADIENTS", "FORWARD", "MODEL_BUILD", "DATALOADER", "OPTIMIZER", "TRAINING_LOOP", "CHECKPOINT", "AMP", "LOSS")
EXTREME = ("--level", "extreme", "--capture", "**:output,input,grad", *(word for flag in MUCH for word in ("-f", flag)))
KINDS = 16


def list_own_lines(result: Result) -> list[str]:
    """What the program itself wrote to stderr."""
    return [line for line in result.stderr.splitlines() if not line.startswith("tdbg:")]


@pytest.mark.parametrize("options", [(), EXTREME], ids=["default", "extreme"])
def test_caught_exceptions_look_as_without_tdbg(
    watched_runner: Runner, bare_runner: Runner, options: tuple[str, ...]
) -> None:
    """logging.exception, print_exc, format_exc, walk_tb and raise ... from, of what fails in each place tdbg stands at."""
    words = build_program_command("raises", "all")
    expected, result = bare_runner(words), watched_runner(words, options)
    assert expected.stderr.count("\nlogged ") + expected.stderr.startswith("logged ") == KINDS, expected.stderr
    assert list_own_lines(result) == expected.stderr.splitlines()
    assert result.code == expected.code == 0 and result.list_steps()


@pytest.mark.cold  # in a warm Python frames are below what Python itself writes
@pytest.mark.parametrize("place", ["inner", "backward"])
def test_the_exception_that_ends_a_program_looks_as_without_tdbg(
    watched_runner: Runner, bare_runner: Runner, place: str
) -> None:
    words = build_program_command("raises", place)
    expected, result = bare_runner(words), watched_runner(words)
    assert "planted" in expected.stderr and list_own_lines(result) == expected.stderr.splitlines()
    assert result.code == expected.code == 1


@pytest.mark.cold
@pytest.mark.parametrize("options", [(), EXTREME], ids=["default", "extreme"])
def test_what_python_itself_writes_late_in_a_run(
    watched_runner: Runner, bare_runner: Runner, options: tuple[str, ...]
) -> None:
    words = build_program_command("fails_late")
    expected, result = bare_runner(words), watched_runner(words, options)
    assert expected.stderr.startswith("Traceback") and "written at exit" in expected.stderr
    assert "held by builtins" in expected.stderr
    assert list_own_lines(result) == expected.stderr.splitlines()
    assert (result.stdout, result.code) == (expected.stdout, expected.code) == ("accuracy 0.5\n", 1)
    assert "ValueError: planted, uncaught, after step 60" in result.verdict["findings"][0]["title"]


@pytest.mark.parametrize(("start_method", "step"), [("fork", 1), ("spawn", 4)])
def test_what_ends_a_rank_of_torch_multiprocessing_is_named(
    watched_runner: Runner, start_method: str, step: int
) -> None:
    """torch catches it in the rank, and the process that started the ranks raises another that is no rank's."""
    result = watched_runner(build_program_command("spawned", start_method, str(step)))
    assert result.code == 1
    first = result.verdict["findings"][0]
    assert (first["code"], first["rank"], first["first_step"]) == ("TD-R003", 1, step - 1), result.stderr
    assert "ValueError: planted in the second rank, uncaught" in first["title"]
    assert first["title"].endswith("spawned.py:21)")
