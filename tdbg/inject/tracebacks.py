"""Exceptions a program logs or prints and then swallows, or that end a thread: it may exit 0, but the run remembers.

Those that nobody catches in the main thread are not seen here: they are read from ``sys.last_value`` at exit.
"""

import atexit
import functools
import os
import re
import sys
import threading
import traceback
from collections import Counter
from types import FrameType
from typing import TYPE_CHECKING, Any

from tdbg.core.events import Note, Traceback
from tdbg.core.frames import OWN_FOLDER, WITHOUT_OWN_FRAMES, get_line, walk_traceback
from tdbg.core.guard import Guard, guarded
from tdbg.core.tables import format_count
from tdbg.inject import log_recorder
from tdbg.inject.agent import Agent
from tdbg.inject.console_level import PACKAGES, SITE
from tdbg.inject.identity import is_ray_process, rank_of_process
from tdbg.inject.imports import disguise_as
from tdbg.runtime.patches import Patches

if TYPE_CHECKING:
    from logging import Logger, LogRecord

MESSAGE_CHARS = 2_000
WORKER_CHARS = 20_000
LINES = 60
PER_PLACE = 3  # the same failure in every step is written three times, and counted
PLACES = 50
MAX_PLACES = 5
RAISED_AGAIN = "\nOriginal Traceback (most recent call last):\n"  # torch, of a loader's worker or a replica
# What ends a rank of `torch.multiprocessing` is caught there, and written down for the process that started it.
RANK_STARTER = os.path.join("torch", "multiprocessing", "spawn.py")
FRAME = re.compile(r'^ *File "(.+)", line (\d+),', re.MULTILINE)
NO_CRASH = (KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration)


class Recorder:
    """Writes a Traceback event for each exception it has not met before; those of one place are counted."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.guard = agent.get_guard("tracebacks")
        self._kept: set[tuple[int, str, int]] = set()
        self._last = (0, "", 0)  # the key of the last one, kept or not
        self._places: Counter[tuple[str, str]] = Counter()

    def record_exception(self, error: BaseException | None, how: str) -> None:
        """Write the event, unless the exception is known or there were enough like it."""
        if error is None or isinstance(error, NO_CRASH) or _ends_library(error):
            return
        if self.is_recorded(error):
            if (
                how == "thread" and self._build_key(error) in self._kept
            ):  # it was logged on its way, and now ends a thread
                emit_exception(self.agent, error, how)
            return
        place = type(error).__name__, find_location(error)
        if place not in self._places and len(self._places) >= PLACES:
            self._note_cap()
            return
        self._places[place] += 1
        self._last = self._build_key(error)
        if self._places[place] > PER_PLACE:  # a failure in every step of a long run costs neither time nor memory
            self._note_cap()
            return
        self._kept.add(self._last)
        emit_exception(self.agent, error, how)

    def _note_cap(self) -> None:
        self.agent.note_once("tracebacks-capped", "too many exceptions: only the first ones at each place are recorded")

    def is_recorded(self, error: BaseException) -> bool:
        """True if this exception was recorded; an id alone may be used again by a later one."""
        key = self._build_key(error)
        return key == self._last or key in self._kept

    def _build_key(self, error: BaseException) -> tuple[int, str, int]:
        return id(error), type(error).__name__, self.agent.step

    def report_counts_at_exit(self) -> None:
        """The process leaves in good order: tell how often the most frequent ones came.

        What is logged or printed later, in a ``__del__``, would meet modules that are gone: nothing listens any longer.
        """
        self.guard.call_guarded(self._report_counts)
        Guard("tracebacks at exit").call_guarded(_patches.restore)

    def _report_counts(self) -> None:
        places = self._places.copy()  # a thread of the program's may fail meanwhile
        for number, ((name, place), count) in enumerate(places.most_common(MAX_PLACES)):
            if count > PER_PLACE:
                text = f"{name} was raised {format_count(count, 'time')}, the first {PER_PLACE} are recorded ({place})"
                self.agent.emit(Note(code=f"tracebacks-counted-{number}", text=text, step=self.agent.step))

    def reset_after_fork(self) -> None:
        """In a forked child: what was counted is the parent's."""
        self._kept.clear()
        self._places.clear()


def emit_exception(agent: Agent, error: BaseException, how: str) -> None:
    """Write the event; where no logger was told of it, it stands among the records as well."""
    event = describe_exception(error, how, agent.step)
    agent.emit(event)
    if how != "logged":
        log_recorder.record_traceback(event)


def describe_exception(error: BaseException, how: str, step: int) -> Traceback:
    """The event of one exception, cut to what a reader needs."""
    lines = "".join(_without_ours(traceback.TracebackException.from_exception(error)).format()).splitlines()
    if len(lines) > LINES:
        lines = [*lines[: LINES // 3], "  ...", *lines[1 + LINES // 3 - LINES :]]
    return Traceback(
        step=step,
        exception=type(error).__name__,
        message=_format_message(error),
        lines=lines,
        how=how,
        where=find_location(error),
        pid=os.getpid(),
        rank=None if is_ray_process() else rank_of_process(),
    )


def _format_message(error: BaseException, chars: int = MESSAGE_CHARS) -> str:
    raised: list[str] = []
    with guarded(
        "the program's own class: its __str__ may raise anything",
        lambda second: raised.append(type(second).__name__),
        program_code=True,
    ):
        return str(error)[:chars]
    return f"(its __str__ raised {raised[0]})"


def find_location(error: BaseException) -> str:
    """``file:line`` of the innermost frame of the program; empty if the exception was never raised.

    What is installed beside Python is not the program's own, unless there is nothing else; then torch's frames, which say
    only that a module was called, give way to its caller's. What a loader's worker raised has its line there.
    """
    frames = [
        (tb.tb_frame.f_code.co_filename, tb.tb_lineno or get_line(tb.tb_frame))
        for tb in walk_traceback(error.__traceback__)
    ]
    frames += [frame for frame in _frames_of_worker(error) if _is_programs(frame[0])]
    theirs = [frame for frame in frames if not _is_ours(frame[0])] or frames
    own = [frame for frame in theirs if _is_programs(frame[0])] or [frame for frame in theirs if _is_beside(frame[0])]
    return "{}:{}".format(*(own or theirs)[-1]) if theirs else ""


def _frames_of_worker(error: BaseException) -> list[tuple[str, int]]:
    """Frames of the traceback that torch writes into the text of what a loader's worker or a replica raised."""
    _, again, text = _format_message(error, WORKER_CHARS).partition(RAISED_AGAIN)
    return [(file, int(line)) for file, line in FRAME.findall(text)] if again else []


def _ends_library(error: BaseException) -> bool:
    """True for what a package raises by itself once the program has run to its end: its threads are torn down there."""
    if threading.main_thread().is_alive():
        return False
    return not any(_is_programs(tb.tb_frame.f_code.co_filename) for tb in walk_traceback(error.__traceback__))


def _is_ours(file: str) -> bool:
    """True for tdbg's wrappers around the program's calls; `tdbg demo` is a program like any other."""
    return file.startswith(OWN_FOLDER) and file != getattr(sys.modules.get("__main__"), "__file__", None)


def _is_programs(file: str) -> bool:
    """True for the program's files, and for what it compiles itself."""
    return not file.startswith((*PACKAGES, "<frozen ", _torch_folder()))


def _is_beside(file: str) -> bool:
    """True for a package that is neither torch nor Python's own."""
    return file.startswith(SITE) and not file.startswith(_torch_folder())


def _torch_folder() -> str:
    """Where torch is, which need not be where packages are; never empty."""
    found = getattr(sys.modules.get("torch"), "__file__", None)
    return os.path.join(os.path.dirname(found), "") if found else os.path.join("torch", "")


def _without_ours(shown: traceback.TracebackException) -> traceback.TracebackException:
    """Take tdbg's own frames out of an exception and of those it is chained to."""
    waiting: list[Any] = [shown]
    while waiting:
        part = waiting.pop()
        if part.stack:
            theirs = [frame for frame in part.stack if not _is_ours(frame.filename)]
            part.stack[:] = theirs or part.stack
        linked = (part.__cause__, part.__context__, *(part.exceptions or ()))
        waiting += [other for other in linked if other is not None]
    return shown


_patches = Patches()
_recorder: Recorder | None = None
_uncaught: BaseException | None = None  # what ended the process, once it is written


def install_recorder(agent: Agent) -> Recorder:
    """Chain the logging, traceback and threading modules; once per process."""
    global _recorder
    if _recorder is None:
        _recorder = Recorder(agent)
        _watch_logging(_recorder)
        _watch_print(_recorder)
        _watch_format(_recorder)
        _watch_threads(_recorder)
        agent.at_fork(_recorder.reset_after_fork)
        atexit.register(_recorder.report_counts_at_exit)
    return _recorder


def record_exception(agent: Agent, error: BaseException, how: str) -> None:
    """Write an exception's event; one that ends the process is written even if it was logged on its way, and once."""
    global _uncaught
    if how == "uncaught":
        if error is not _uncaught:
            _uncaught = error
            emit_exception(agent, error, how)
    else:
        install_recorder(agent).record_exception(error, how)


def _watch_logging(recorder: Recorder) -> None:
    """Records that reach a logger's handlers; a record the program filtered out is its own affair."""
    import logging

    real, guard = logging.Logger.callHandlers, recorder.guard

    def record_logged(record: "LogRecord") -> None:
        info = record.exc_info
        if info:
            recorder.record_exception(info[1] if isinstance(info, tuple) else None, "logged")

    @functools.wraps(real)
    def callHandlers(self: "Logger", record: "LogRecord") -> object:
        guard.call_guarded(record_logged, record)
        with WITHOUT_OWN_FRAMES:  # of what a handler of the program's raises
            return real(self, record)

    logging.Logger.callHandlers = disguise_as(logging, callHandlers)  # type: ignore[method-assign]
    _patches.remember(logging.Logger, "callHandlers", real)


def _watch_print(recorder: Recorder) -> None:
    """``traceback.print_exception``, which ``print_exc`` and most hand-written handlers end in."""
    real, guard = traceback.print_exception, recorder.guard

    def record_printed(
        caller: FrameType | None, exc: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        file = kwargs.get("file", args[3] if len(args) > 3 else None)
        # uncaught, from Python 3.13 on
        by_python = caller is not None and caller.f_code.co_name == "_print_exception_bltin"
        if _has_readers(file) and not by_python:
            value = exc if isinstance(exc, BaseException) else kwargs.get("value", args[0] if args else None)
            recorder.record_exception(value if isinstance(value, BaseException) else None, "printed")

    @functools.wraps(real)
    def print_exception(exc: Any, /, *args: object, **kwargs: Any) -> Any:
        guard.call_guarded(record_printed, sys._getframe().f_back, exc, args, kwargs)
        return real(exc, *args, **kwargs)

    traceback.print_exception = print_exception
    _patches.remember(traceback, "print_exception", real)


def _watch_format(recorder: Recorder) -> None:
    """``traceback.format_exc`` called by the program itself, or by what starts its ranks; packages have their own purposes."""
    real, guard = traceback.format_exc, recorder.guard

    @functools.wraps(real)
    def format_exc(*args: Any, **kwargs: Any) -> str:
        caller, error = sys._getframe().f_back, sys.exc_info()[1]
        file = caller.f_code.co_filename if caller is not None else ""  # called from C, as functions are at exit
        if file.endswith(RANK_STARTER) and isinstance(error, Exception):
            guard.call_guarded(emit_exception, recorder.agent, error, "uncaught")
        elif not file.startswith(PACKAGES):
            guard.call_guarded(recorder.record_exception, error, "printed")
        return real(*args, **kwargs)

    traceback.format_exc = format_exc
    _patches.remember(traceback, "format_exc", real)


def _watch_threads(recorder: Recorder) -> None:
    """Exceptions nobody caught in a thread of the program: the thread ends, and the process goes on without it."""
    real, guard = threading.excepthook, recorder.guard

    @functools.wraps(real)
    def excepthook(args: Any, /) -> object:
        guard.call_guarded(recorder.record_exception, args.exc_value, "thread")
        return real(args)

    threading.excepthook = excepthook
    _patches.remember(threading, "excepthook", real)


def _has_readers(file: Any) -> bool:
    """True for a console or a real file, false for text that is being put together in memory."""
    if file is None or file in (sys.stderr, sys.stdout):
        return True
    try:
        return bool(file.fileno() >= 0)
    except (AttributeError, OSError, ValueError):
        return False
