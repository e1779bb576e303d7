"""A program with its own start-up file, excepthook, signal handlers and logger class keeps all of them."""

import pytest

from tdbg.core.events import Traceback
from tests.e2e.conftest import PROGRAMS, Result, Runner, assert_same_output, build_program_command

OWN_SITE = {"PYTHONPATH": str(PROGRAMS / "own_site")}


def run_both(watched: Runner, bare: Runner, how: str) -> Result:
    words = build_program_command("own_hooks", how)
    expected = bare(words, env=OWN_SITE)
    assert expected.list_printed("still-mine")[0]["start_up"] == "own_site/sitecustomize", (
        "the program itself is broken"
    )
    result = watched(words, env=OWN_SITE)
    assert_same_output(result, expected)
    return result


def test_everything_stays_the_programs_own(watched_runner: Runner, bare_runner: Runner) -> None:
    result = run_both(watched_runner, bare_runner, "quiet")
    (mine,) = result.list_printed("still-mine")
    assert mine["start_up"] == "own_site/sitecustomize"
    assert mine["logger"] == mine["logger_class"] == "OwnLogger"
    assert mine["handlers"] == [True, True] and mine["interrupt"]
    assert mine["modules"] == [], "nothing but tdbg may come from tdbg's folder"
    assert [step.step for step in result.list_steps()] == [1, 2, 3, 4, 5]


def test_the_excepthook_runs_and_the_exception_is_on_record(watched_runner: Runner, bare_runner: Runner) -> None:
    result = run_both(watched_runner, bare_runner, "raise")
    assert result.code == 1
    assert result.list_printed("excepthook") == [{"event": "excepthook", "exception": "ValueError", "text": "planted"}]
    traces = result.list_events(Traceback)
    assert [(trace.exception, trace.message, trace.step) for trace in traces] == [("ValueError", "planted", 5)]
    assert result.find_finding("TD-R003")["rank"] == 0


def test_the_signal_handler_runs_and_decides_the_exit_code(watched_runner: Runner, bare_runner: Runner) -> None:
    result = run_both(watched_runner, bare_runner, "signal")
    assert result.code == 42
    assert result.list_printed("handler") == [{"event": "handler", "signal": "SIGTERM"}]
    assert len(result.list_printed("atexit")) == 1


@pytest.mark.parametrize("options", [(), ("--exec",)])
def test_a_swallowed_crash_is_not_a_success(
    watched_runner: Runner, bare_runner: Runner, options: tuple[str, ...]
) -> None:
    words = build_program_command("swallows")
    result = watched_runner(words, options)
    assert_same_output(result, bare_runner(words))
    assert result.code == 0
    finding = result.find_finding("TD-R003")
    assert "RuntimeError" in finding["title"] + " ".join(finding["evidence"])
    (trace,) = result.list_events(Traceback)
    assert (trace.how, trace.step) == ("logged", 4)
