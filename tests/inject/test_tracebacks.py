"""Exceptions that a program logs or prints and swallows become events, once each."""

import textwrap
from typing import Any

import pytest

# The handler of the test: what the handler of torch does, without torch.
SETUP = """
from tdbg.inject import tracebacks
from tdbg.inject.agent import agent
me = agent(); me.step = 7
tracebacks.install(me); tracebacks.install(me)
import logging, sys, traceback, io
def fail(): raise ValueError("no luck")
def swallow(how):
    try: fail()
    except ValueError as error: how(error)
"""


def events(run: Any, text: str, stdout: str = "") -> list[dict[str, Any]]:
    path = run.path.parent / "s.py"
    path.write_text(SETUP + textwrap.dedent(text))
    done = run.python(str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == stdout
    assert run.events("probe_off") == []
    return [event for event in run.events() if event["type"] == "traceback"]


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("logging.exception('bad')", "logged"),
        ("logging.getLogger('train').error('bad', exc_info=True)", "logged"),
        ("logging.warning('bad', exc_info=error)", "logged"),
        ("traceback.print_exc()", "printed"),
        ("traceback.print_exception(error)", "printed"),
        ("traceback.print_exception(type(error), error, error.__traceback__)", "printed"),
        ("traceback.print_exception(*sys.exc_info(), None, sys.stderr)", "printed"),
        ("logging.error(traceback.format_exc())", "printed"),
    ],
)
def test_swallowed_exceptions(make_run: Any, how: str, kind: str) -> None:
    run = make_run()
    (event,) = events(run, f"swallow(lambda error: {how})")
    assert (event["exception"], event["message"], event["how"], event["step"]) == ("ValueError", "no luck", kind, 7)
    assert event["where"].endswith("s.py:7")
    assert event["lines"][0].startswith("Traceback") and event["lines"][-1] == "ValueError: no luck"


@pytest.mark.parametrize(
    "text",
    [
        "swallow(lambda error: logging.error('bad: %s', error))",
        "swallow(lambda error: logging.debug('filtered out', exc_info=True))",
        "swallow(lambda error: traceback.print_exc(file=io.StringIO()))",
        "swallow(lambda error: None)",
        "try: raise KeyboardInterrupt\nexcept BaseException: logging.exception('stopped by hand')",
        "logging.info('fine'); logging.error('no exception here', exc_info=True)",
        "import concurrent.futures, traceback as t; t.format_exception(ValueError('x'))",
    ],
)
def test_what_is_no_crash(make_run: Any, text: str) -> None:
    assert events(make_run(), text) == []


def test_each_exception_once(make_run: Any) -> None:
    text = "swallow(lambda error: (logging.exception('a'), traceback.print_exc(), logging.exception('b')))"
    assert [event["how"] for event in events(make_run(), text)] == ["logged"]


def test_the_same_failure_in_each_step_is_told_three_times(make_run: Any) -> None:
    run = make_run()
    found = events(run, "for me.step in range(1, 200): swallow(lambda error: traceback.print_exc())")
    assert [event["step"] for event in found] == [1, 2, 3]
    assert [note["code"] for note in run.events("note")] == ["tracebacks-capped"]


def test_beyond_the_cap_nothing_is_formatted_or_kept(make_run: Any) -> None:
    text = """
    real, calls = tracebacks.describe, []
    tracebacks.describe = lambda *args: (calls.append(1), real(*args))[1]
    for me.step in range(500): swallow(lambda error: logging.exception('bad'))
    print(len(calls), len(tracebacks._recorder._seen))
    """
    run = make_run()
    assert len(events(run, text, "50 50\n")) == 3
    assert [note["code"] for note in run.events("note")] == ["tracebacks-capped"]


def test_output_is_unchanged(make_run: Any) -> None:
    text = """
    def both(error):
        ours, theirs = io.StringIO(), io.StringIO()
        traceback.print_exception(error, file=ours, chain=False)
        traceback.print_exception.__wrapped__(error, file=theirs, chain=False)
        assert ours.getvalue() == theirs.getvalue() == traceback.format_exc() == traceback.format_exc.__wrapped__()
        print(len(ours.getvalue()) > 100)
    swallow(both)
    """
    assert len(events(make_run(), text, "True\n")) == 1


def test_long_tracebacks_are_cut(make_run: Any) -> None:
    (event,) = events(
        make_run(),
        """
        def odd(n): return even(n - 1) if n else fail()
        def even(n): return odd(n - 1) if n else fail()
        try: odd(200)
        except ValueError: traceback.print_exc()
        """,
    )
    assert len(event["lines"]) == tracebacks_lines()
    assert event["lines"][-1] == "ValueError: no luck"


def tracebacks_lines() -> int:
    from tdbg.inject.tracebacks import LINES

    return LINES


def test_uncaught_is_written_although_it_was_logged(make_run: Any) -> None:
    found = events(
        make_run(), "swallow(lambda error: (logging.exception('a'), tracebacks.record(me, error, 'uncaught')))"
    )
    assert [event.get("how", "uncaught") for event in found] == ["logged", "uncaught"]
