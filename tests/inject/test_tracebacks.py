"""Exceptions that a program logs or prints and swallows become events, once each."""

import textwrap
from typing import Any

import pytest

# The handler of the test: what the handler of torch does, without torch.
SETUP = """
from tdbg.inject import tracebacks
from tdbg.inject.agent import get_agent
me = get_agent(); me.monitor = __import__("types").SimpleNamespace(step=7)
tracebacks.install_recorder(me); tracebacks.install_recorder(me)
import logging, sys, traceback, io
def fail(): raise ValueError("no luck")
def swallow(how):
    try: fail()
    except ValueError as error: how(error)
"""


def list_tracebacks(run: Any, text: str, stdout: str = "") -> list[dict[str, Any]]:
    path = run.path.parent / "s.py"
    path.write_text(SETUP + textwrap.dedent(text))
    done = run.run_python(str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == stdout
    assert run.list_events("probe_off") == []
    return [event for event in run.list_events() if event["type"] == "traceback"]


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
    (event,) = list_tracebacks(run, f"swallow(lambda error: {how})")
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
    assert list_tracebacks(make_run(), text) == []


TRACKER = """
def tear_down(): raise ValueError("handle abandoned")
def end(log):
    try: tear_down()
    except ValueError: log("uncaught")
"""


@pytest.mark.parametrize(("begin", "seen"), [("atexit.register(end, log)", 0), ("end(log)", 1)])
def test_what_a_package_raises_once_the_program_has_ended_is_its_own_affair(
    make_run: Any, begin: str, seen: int
) -> None:
    """A tracker that tears its threads down at exit says nothing of the program."""
    text = f"""
    from tdbg.inject.console_level import SITE
    exec(compile({TRACKER!r}, SITE[0] + "tracker/loop.py", "exec"))
    import atexit
    log = logging.getLogger("tracker").exception
    {begin}
    """
    assert len(list_tracebacks(make_run(), text)) == seen


def test_each_exception_once(make_run: Any) -> None:
    text = "swallow(lambda error: (logging.exception('a'), traceback.print_exc(), logging.exception('b')))"
    assert [event["how"] for event in list_tracebacks(make_run(), text)] == ["logged"]


def test_the_same_failure_in_each_step_is_told_three_times(make_run: Any) -> None:
    run = make_run()
    found = list_tracebacks(run, "for me.monitor.step in range(1, 200): swallow(lambda error: traceback.print_exc())")
    assert [event["step"] for event in found] == [1, 2, 3]
    capped, counted = run.list_events("note")
    assert capped["code"] == "tracebacks-capped"
    assert (
        counted["text"].startswith("ValueError was raised 199 times, the first 3 are recorded (")
        and "s.py:7)" in counted["text"]
    )


def test_repeats_of_one_failure_leave_room_for_others(make_run: Any) -> None:
    text = """
    for me.monitor.step in range(200): swallow(lambda error: (logging.exception('a'), traceback.print_exc()))
    try: {}[1]
    except KeyError: logging.exception("another")
    """
    run = make_run()
    assert [event["exception"] for event in list_tracebacks(run, text)] == ["ValueError"] * 3 + ["KeyError"]
    assert "ValueError was raised 200 times" in run.list_events("note")[-1]["text"], (
        "once each, though logged and printed"
    )


def test_the_number_of_different_failures_is_bounded(make_run: Any) -> None:
    text = """
    for me.monitor.step in range(200):
        try: exec("\\n" * me.monitor.step + "1 / 0")
        except ZeroDivisionError: logging.exception("bad")
    """
    assert len(list_tracebacks(make_run(), text)) == 50


def test_beyond_the_cap_nothing_is_formatted_or_kept(make_run: Any) -> None:
    text = """
    real, calls = tracebacks.describe_exception, []
    tracebacks.describe_exception = lambda *args: (calls.append(1), real(*args))[1]
    for me.monitor.step in range(500): swallow(lambda error: logging.exception('bad'))
    print(len(calls), len(tracebacks._recorder._kept))
    """
    run = make_run()
    assert len(list_tracebacks(run, text, "3 3\n")) == 3
    assert run.list_events("note")[0]["code"] == "tracebacks-capped"


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
    assert len(list_tracebacks(make_run(), text, "True\n")) == 1


def test_long_tracebacks_are_cut(make_run: Any) -> None:
    (event,) = list_tracebacks(
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
    found = list_tracebacks(
        make_run(),
        "swallow(lambda error: (logging.exception('a'), tracebacks.record_exception(me, error, 'uncaught')))",
    )
    assert [event.get("how", "uncaught") for event in found] == ["logged", "uncaught"]


THREAD = """
import threading
def work():
    try: fail()
    except ValueError: how(); raise
"""


@pytest.mark.parametrize(("how", "kinds"), [("pass", ["thread"]), ("logging.exception('x')", ["logged", "thread"])])
def test_an_exception_that_ends_a_thread(make_run: Any, how: str, kinds: list[str]) -> None:
    text = (
        THREAD
        + f"""
def how(): {how}
thread = threading.Thread(target=work); thread.start(); thread.join(); print("went on")
"""
    )
    found = list_tracebacks(make_run(), text, "went on\n")
    assert [(event["how"], event["exception"], event["step"]) for event in found] == [
        (kind, "ValueError", 7) for kind in kinds
    ]


def test_the_programs_own_thread_hook_is_called_and_threads_that_leave_are_no_crash(make_run: Any) -> None:
    path_text = SETUP.replace(
        "from tdbg", "import threading\nthreading.excepthook = lambda args: print('mine')\nfrom tdbg", 1
    )
    run = make_run()
    path = run.path.parent / "s.py"
    path.write_text(
        path_text + "for target in (fail, sys.exit):\n    t = threading.Thread(target=target); t.start(); t.join()\n"
    )
    assert run.run_python(str(path)).stdout == "mine\n" * 2
    assert [event["how"] for event in run.list_events("traceback")] == ["thread"]


def test_the_wrappers_of_tdbg_are_not_in_the_programs_traceback(make_run: Any) -> None:
    text = """
    import tdbg
    wrapper = compile("def wrapped(f):\\n    f()\\n", tdbg.__path__[0] + "/probes/hooks.py", "exec")
    exec(wrapper, globals())
    def inner(): fail()
    def outer(): wrapped(inner)
    try:
        try: outer()
        except ValueError as first: raise RuntimeError("second") from first
    except RuntimeError: logging.exception("x")
    def raises(): wrapped(None)
    try: raises()
    except TypeError: logging.exception("raised by a line of the wrapper itself")
    """
    found = list_tracebacks(make_run(), text)
    names = [[line.rpartition(" in ")[2] for line in event["lines"] if line.startswith("  File")] for event in found]
    assert names == [["<module>", "outer", "inner", "fail", "<module>"], ["<module>", "raises"]]
    assert "hooks.py" not in found[1]["where"]


def test_what_a_loader_worker_raised_has_its_own_line(make_run: Any) -> None:
    """torch raises it again in the main process, where no frame of the worker is."""
    text = """
    from torch.utils.data import DataLoader, Dataset
    class Data(Dataset):
        def __len__(self): return 4
        def __getitem__(self, i): raise ValueError("cannot decode")
    try:
        for _ in DataLoader(Data(), num_workers=1): pass
    except ValueError: traceback.print_exc()
    """
    (event,) = list_tracebacks(make_run(), text)
    line = (
        (SETUP + textwrap.dedent(text))
        .splitlines()
        .index('    def __getitem__(self, i): raise ValueError("cannot decode")')
    )
    assert event["where"].endswith(f"s.py:{line + 1}")
