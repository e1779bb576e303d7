"""A program with its own start-up file, excepthook, signal handlers and logger class keeps all of them."""

import pytest

from tdbg.core.events import Traceback
from tests.e2e.conftest import PROGRAMS, Result, Runner, program, same_output

OWN_SITE = {"PYTHONPATH": str(PROGRAMS / "own_site")}


def run_both(watched: Runner, bare: Runner, how: str) -> Result:
    words = program("own_hooks", how)
    expected = bare(words, env=OWN_SITE)
    assert expected.printed("still-mine")[0]["start_up"] == "own_site/sitecustomize", "the program itself is broken"
    result = watched(words, env=OWN_SITE)
    same_output(result, expected)
    return result


def test_everything_stays_the_programs_own(watched: Runner, bare: Runner) -> None:
    result = run_both(watched, bare, "quiet")
    (mine,) = result.printed("still-mine")
    assert mine["start_up"] == "own_site/sitecustomize"
    assert mine["logger"] == mine["logger_class"] == "OwnLogger"
    assert mine["handlers"] == [True, True] and mine["interrupt"]
    assert mine["modules"] == [], "nothing but tdbg may come from tdbg's folder"
    assert [step.step for step in result.steps()] == [1, 2, 3, 4, 5]


def test_the_excepthook_runs_and_the_exception_is_on_record(watched: Runner, bare: Runner) -> None:
    result = run_both(watched, bare, "raise")
    assert result.code == 1
    assert result.printed("excepthook") == [{"event": "excepthook", "exception": "ValueError", "text": "planted"}]
    traces = result.events(Traceback)
    assert [(trace.exception, trace.message, trace.step) for trace in traces] == [("ValueError", "planted", 5)]
    assert result.finding("TD-R003")["rank"] == 0


def test_the_signal_handler_runs_and_decides_the_exit_code(watched: Runner, bare: Runner) -> None:
    result = run_both(watched, bare, "signal")
    assert result.code == 42
    assert result.printed("handler") == [{"event": "handler", "signal": "SIGTERM"}]
    assert len(result.printed("atexit")) == 1


@pytest.mark.parametrize("options", [(), ("--exec",)])
def test_a_swallowed_crash_is_not_a_success(watched: Runner, bare: Runner, options: tuple[str, ...]) -> None:
    words = program("swallows")
    result = watched(words, options)
    same_output(result, bare(words))
    assert result.code == 0
    finding = result.finding("TD-R003")
    assert "RuntimeError" in finding["title"] + " ".join(finding["evidence"])
    (trace,) = result.events(Traceback)
    assert (trace.how, trace.step) == ("logged", 4)
