"""The guard: what tdbg raises ends a part of tdbg, what the program means to raise passes."""

import ctypes
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tdbg.core.frames import own_frames_dropped
from tdbg.core.guard import EndRun, Guard, describe_error, guarded, set_process_report, undo_on_error


class Stop(Exception):
    """What a program's own handler raises."""


class StopAll(BaseException):
    """What is sent to a thread, past every ``except Exception``."""


def raise_error(error: BaseException) -> Any:
    raise error


def never_ending() -> Any:
    return never_ending()


class Touchy:
    """An object of the program's that tdbg touches."""

    def __getattr__(self, name: str) -> Any:
        sys.exit(name)


class StandIn:
    """Stands in front of ``sys.exit``, as W&B does."""

    def __init__(self) -> None:
        self._original_exit: Callable[[object], Any] = sys.exit

    def exit(self, code: object) -> None:
        self._original_exit(code)


def make_guard() -> tuple[Guard, list[tuple[str, BaseException]]]:
    reports: list[tuple[str, BaseException]] = []
    return Guard("part", lambda part, error: reports.append((part, error))), reports


@pytest.mark.parametrize(
    "fault",
    [
        *(
            functools.partial(raise_error, kind("x"))
            for kind in (RuntimeError, KeyboardInterrupt, SystemExit, MemoryError)
        ),
        functools.partial(raise_error, GeneratorExit()),
        never_ending,
        lambda: Touchy().shape,
        functools.partial(StandIn().exit, 1),
        lambda: [][0],  # type: ignore[index]
    ],
)
def test_what_tdbg_raises_ends_the_part(fault: Callable[[], Any]) -> None:
    guard, reports = make_guard()
    ran: list[int] = []
    assert guard.call_guarded(fault) is None and not guard.on
    assert guard.call_guarded(ran.append, 1) is None and not ran
    with guard:
        fault()
    assert [part for part, _ in reports] == ["part"]


def test_a_report_that_fails_as_well() -> None:
    guard = Guard("part", lambda part, error: raise_error(SystemExit(1)))
    assert guard.call_guarded(raise_error, RuntimeError()) is None and not guard.on


def test_the_process_has_one_report() -> None:
    reports: list[str] = []
    set_process_report(lambda part, error: reports.append(part))
    try:
        Guard("part").call_guarded(raise_error, RuntimeError())
    finally:
        set_process_report(lambda part, error: None)
    assert reports == ["part"]


def test_what_means_to_end_the_run_passes() -> None:
    guard, reports = make_guard()
    with pytest.raises(EndRun):
        guard.call_guarded(raise_error, EndRun(1))
    assert guard.on and not reports


@pytest.fixture(params=["function", "partial", "method", "object", "once", "exits once", "any arguments"])
def signal_handler(request: pytest.FixtureRequest) -> Iterator[None]:
    """A signal handler of the program's, in each shape it may have; it raises."""

    class Handler:
        def handle_signal(self, number: int, frame: Any) -> None:
            self.raise_stop()

        def raise_stop(self) -> None:
            raise Stop

        __call__ = handle_signal

    def raise_stop(number: int, frame: Any) -> None:
        raise Stop

    def raise_stop_once(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)  # the second signal is to end the process
        raise Stop

    def exits_once(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        sys.exit(3)

    def any_arguments(*given: Any) -> None:
        signal.signal(given[0], signal.SIG_DFL)
        raise Stop

    shapes: dict[str, Any] = {"once": raise_stop_once, "exits once": exits_once, "any arguments": any_arguments}
    shapes |= {"function": raise_stop, "method": Handler().handle_signal, "object": Handler()}
    shapes["partial"] = functools.partial(Handler().handle_signal)
    before = signal.signal(signal.SIGUSR1, shapes[request.param])
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("signal_handler")
def test_what_a_signal_handler_raises_passes() -> None:
    """A time limit, a launcher's stop: it comes up in whatever code runs, here in tdbg's."""
    guard, reports = make_guard()
    handler = signal.getsignal(signal.SIGUSR1)
    with pytest.raises((Stop, SystemExit)):
        guard.call_guarded(signal.raise_signal, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, handler)  # it may have uninstalled itself
    with pytest.raises((Stop, SystemExit)), guard:
        signal.raise_signal(signal.SIGUSR1)
    assert guard.on and not reports


def test_ctrl_c_passes() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    guard, reports = make_guard()
    try:
        with pytest.raises(KeyboardInterrupt):
            guard.call_guarded(signal.raise_signal, signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert guard.on and not reports


def spin_forever(began: threading.Event) -> None:
    began.set()
    while True:
        pass


def spin_in_calls(began: threading.Event) -> None:
    began.set()
    while True:
        len("x")


def spin_until(began: threading.Event) -> None:
    began.set()
    done: list[int] = []
    while not done:
        list(map(str, range(30)))


@pytest.mark.parametrize("spinning", [spin_forever, spin_in_calls, spin_until])
@pytest.mark.parametrize("sent", [Stop, StopAll])
def test_what_another_thread_sends_passes(
    spinning: Callable[[threading.Event], None], sent: type[BaseException]
) -> None:
    """How some packages stop a function that takes too long."""
    guard, reports = make_guard()
    began, caught = threading.Event(), []

    def work() -> None:
        try:
            guard.call_guarded(spinning, began)
        except sent as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    began.wait(30)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(sent))
    thread.join(30)
    assert len(caught) == 1 and guard.on and not reports


def test_an_exception_without_words() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise SystemExit

    assert describe_error(Mute()) == "Mute" and describe_error(ValueError("x")) == "ValueError: x"


def test_a_guarded_block_ends_at_an_exception() -> None:
    reported: list[BaseException] = []
    fault = RuntimeError("x")
    for report in (None, reported.append):
        with guarded("a test", report):
            raise_error(fault)
    assert reported == [fault]


def test_a_guarded_block_gives_what_it_returns() -> None:
    def read_length(value: object) -> object:
        with guarded("a test"):
            return len(value)  # type: ignore[arg-type]
        return None

    assert read_length("abc") == 3
    assert read_length(3) is None


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, EndRun, StopAll])
def test_a_guarded_block_ends_at_an_exception_alone(kind: type[BaseException]) -> None:
    with pytest.raises(kind), guarded("a test"):
        raise_error(kind("x"))


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt, StopAll])
def test_code_of_the_program_may_raise_anything_in_a_guarded_block(kind: type[BaseException]) -> None:
    reported: list[BaseException] = []
    with guarded("a test", reported.append, program_code=True):
        raise_error(kind("x"))
    assert [type(error) for error in reported] == [kind]


def test_what_belongs_to_the_program_passes_a_guarded_block() -> None:
    with pytest.raises(EndRun), guarded("a test", program_code=True):
        raise EndRun(1)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: raise_error(Stop("alarm")))
    try:
        with pytest.raises(Stop), guarded("a test", program_code=True):
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_report_of_a_guarded_block_may_raise() -> None:
    with pytest.raises(KeyError), guarded("a test", lambda error: raise_error(KeyError("y"))):
        raise_error(RuntimeError("x"))


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_an_exception_is_undone_and_passes(kind: type[BaseException]) -> None:
    undone: list[str] = []
    with undo_on_error(lambda: undone.append("a")):
        pass
    assert undone == []
    with pytest.raises(kind), undo_on_error(lambda: undone.append("b")):
        raise_error(kind("x"))
    assert undone == ["b"]


def test_own_frames_are_dropped_on_the_way() -> None:
    fault = RuntimeError("x")
    with pytest.raises(RuntimeError) as caught, own_frames_dropped():
        raise_error(fault)
    assert caught.value is fault
