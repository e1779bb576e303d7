"""Exceptions a program logs or prints and then swallows: it may exit 0, but the run remembers them.

Uncaught exceptions are not seen here: they are read from ``sys.last_value`` at exit.
"""

import functools
import os
import sys
import sysconfig
import traceback
from typing import Any

from tdbg.events import Traceback
from tdbg.inject.agent import Agent

MESSAGE_CHARS = 2_000
LINES = 60
PER_PLACE = 3  # the same failure in every step is told three times
PER_PROCESS = 50
NO_CRASH = (KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration)
# Code that formats an exception for purposes of its own: installed packages and Python itself.
FOREIGN = tuple({os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")})


class Recorder:
    """Writes a Traceback event for each exception it has not met before."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._seen: set[tuple[int, str, int]] = set()
        self._places: dict[tuple[str, str], int] = {}

    def record(self, error: BaseException | None, how: str) -> None:
        """Write the event, unless the exception is known or there are too many like it."""
        if error is None or isinstance(error, NO_CRASH) or self.seen(error):
            return
        if len(self._seen) >= PER_PROCESS:  # a failure in every step of a long run costs neither time nor memory
            self._cap()
            return
        self._seen.add(self._key(error))
        event = describe(error, how, self.agent.step)
        place = (event.exception, event.where)
        self._places[place] = self._places.get(place, 0) + 1
        if self._places[place] <= PER_PLACE:
            self.agent.emit(event)
        else:
            self._cap()

    def _cap(self) -> None:
        self.agent.note_once("tracebacks-capped", "more exceptions were logged than are kept")

    def seen(self, error: BaseException) -> bool:
        """True if this exception was recorded; an id alone may be used again by a later one."""
        return self._key(error) in self._seen

    def _key(self, error: BaseException) -> tuple[int, str, int]:
        return id(error), type(error).__name__, self.agent.step


def describe(error: BaseException, how: str, step: int) -> Traceback:
    """The event of one exception, cut to what a reader needs."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    if len(lines) > LINES:
        lines = [*lines[: LINES // 3], "  ...", *lines[1 + LINES // 3 - LINES :]]
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return Traceback(
        step=step,
        exception=type(error).__name__,
        message=str(error)[:MESSAGE_CHARS],
        lines=lines,
        how=how,
        where=f"{last.tb_frame.f_code.co_filename}:{last.tb_lineno}" if last else "",
        pid=os.getpid(),
    )


_recorder: Recorder | None = None


def install(agent: Agent) -> Recorder:
    """Chain the logging and traceback modules; once per process."""
    global _recorder
    if _recorder is None:
        _recorder = Recorder(agent)
        _watch_logging(_recorder)
        _watch_print(_recorder)
        _watch_format(_recorder)
    return _recorder


def record(agent: Agent, error: BaseException, how: str) -> None:
    """Write an exception's event; one that ends the process is written even if it was logged on its way."""
    if how == "uncaught":
        agent.emit(describe(error, how, agent.step))
    else:
        install(agent).record(error, how)


def _watch_logging(recorder: Recorder) -> None:
    """Records that reach a logger's handlers; a record the program filtered out is its own affair."""
    import logging

    real = logging.Logger.callHandlers

    @functools.wraps(real)
    def callHandlers(self: Any, record: Any) -> Any:
        if record.exc_info:
            with recorder.agent.guard("tracebacks"):
                info = record.exc_info
                recorder.record(info[1] if isinstance(info, tuple) else None, "logged")
        return real(self, record)

    logging.Logger.callHandlers = callHandlers  # type: ignore[method-assign]


def _watch_print(recorder: Recorder) -> None:
    """``traceback.print_exception``, which ``print_exc`` and most hand-written handlers end in."""
    real = traceback.print_exception

    @functools.wraps(real)
    def print_exception(exc: Any, /, *args: Any, **kwargs: Any) -> Any:
        with recorder.agent.guard("tracebacks"):
            file = kwargs.get("file", args[3] if len(args) > 3 else None)
            by_python = sys._getframe(1).f_code.co_name == "_print_exception_bltin"  # uncaught, from Python 3.13 on
            if _has_readers(file) and not by_python:
                value = exc if isinstance(exc, BaseException) else kwargs.get("value", args[0] if args else None)
                recorder.record(value if isinstance(value, BaseException) else None, "printed")
        return real(exc, *args, **kwargs)

    traceback.print_exception = print_exception


def _watch_format(recorder: Recorder) -> None:
    """``traceback.format_exc`` called by the program itself: ``logger.error(traceback.format_exc())``."""
    real = traceback.format_exc

    @functools.wraps(real)
    def format_exc(*args: Any, **kwargs: Any) -> str:
        with recorder.agent.guard("tracebacks"):
            if not sys._getframe(1).f_code.co_filename.startswith(FOREIGN):
                recorder.record(sys.exc_info()[1], "printed")
        return real(*args, **kwargs)

    traceback.format_exc = format_exc


def _has_readers(file: Any) -> bool:
    """True for a console or a real file, false for text that is being put together in memory."""
    if file is None or file in (sys.stderr, sys.stdout):
        return True
    try:
        return bool(file.fileno() >= 0)
    except (AttributeError, OSError, ValueError):
        return False
