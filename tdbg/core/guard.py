"""The one guard around tdbg's own code inside a program: what tdbg raises is reported, and the program goes on.

Whatever torch or Python calls in tdbg (a hook, a wrapper, a callback) does its work below a `Guard`. An exception
there ends that part of tdbg. Only four things pass: what tdbg means to end the run with (`EndRun`), what a signal
handler of the program raised meanwhile, what another thread sent, and Ctrl-C. The other way round, nothing of the
program observes tdbg's work: once torch is loaded, its modes and its tensor subclasses are set aside meanwhile, and its
compiler makes no frame of it (`set_guard_contexts`).
Every process of a run may load this file, so it imports nothing but what Python has loaded anyway.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import CodeType, FrameType, TracebackType
    from typing import ParamSpec, TypeVar

    Report = Callable[[str, BaseException], None]
    Arguments = ParamSpec("Arguments")
    Result = TypeVar("Result")

MAX_FRAMES = 2_000  # of a traceback that are looked at: one of endless recursion has no more that are news
MAX_UNWRAPPED = 20
MAX_TEXT = 500
RAISES = ("RAISE_VARARGS", "RERAISE")
VARARGS = 4  # inspect.CO_VARARGS
CHECKPOINTS = ("RESUME", "JUMP_BACKWARD")  # where Python stops for signals; they raise nothing by themselves


class EndRun(SystemExit):
    """Passes every guard: the user asked tdbg to end the run at this."""


class Guard:
    """Runs one part of tdbg. The first exception switches the part off and is reported; none reaches the program.

    part: its name, as the report says it. report: called once, with the name and the exception; left out, it is the
    process's (`set_process_report`). Use `call`, or ``with guard:`` for what must run even when the part is off.
    """

    __slots__ = ("_report", "on", "part")

    def __init__(self, part: str, report: "Report | None" = None) -> None:
        self.part = part
        self.on = True
        self._report = report

    def call_guarded(
        self, function: "Callable[Arguments, Result]", *args: "Arguments.args", **kwargs: "Arguments.kwargs"
    ) -> "Result | None":
        """Return what ``function`` returns; None once the part is off."""
        if not self.on:
            return None
        modes, watching = None, _set_eval_frame(None)
        try:
            modes = _active_modes()
            if modes is None:
                with _subclasses_aside():
                    return function(*args, **kwargs)
            with modes:
                return function(*args, **kwargs)
        except BaseException as error:
            if modes is not None:  # in case leaving them is what failed: the compiler needs the mode it traces in
                modes.__exit__(None, None, None)
            if belongs_to_program(error):
                raise
            self.handle_failure(error)
        finally:
            _set_eval_frame(watching)
        return None

    def handle_failure(self, error: BaseException) -> None:
        """Switch the part off and report why, without ever raising another exception."""
        if not self.on:
            return
        self.on = False
        with guarded("nobody is left to report to", program_code=True):
            (self._report or _process_report)(self.part, error)

    def __enter__(self) -> "Guard":
        return self

    def __exit__(
        self, kind: "type[BaseException] | None", error: "BaseException | None", trace: "TracebackType | None"
    ) -> bool:
        if error is None or belongs_to_program(error):
            return False
        self.handle_failure(error)
        return True


class guarded:
    """``with guarded(reason):`` an exception ends the block, and the code goes on after it.

    For a block that may raise anything, where `contextlib.suppress` cannot name the exceptions; what ends a whole part
    of tdbg is a `Guard`. An instance has no state: one made at import serves every call of a busy place.

    reason: why the block may raise anything, for the reader of the code. report: called with the exception.
    program_code: the block runs code of the program's in a rank. Then SystemExit and the like end it too, and only
    what belongs to the program passes. Left out, the block is as with ``except Exception``.
    """

    __slots__ = ("_program_code", "_report", "reason")

    def __init__(
        self, reason: str, report: "Callable[[BaseException], object] | None" = None, *, program_code: bool = False
    ) -> None:
        self.reason = reason
        self._report = report
        self._program_code = program_code

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: "type[BaseException] | None", error: "BaseException | None", trace: "TracebackType | None"
    ) -> bool:
        if error is None:
            return False
        if belongs_to_program(error) if self._program_code else not isinstance(error, Exception):
            return False
        if self._report is not None:
            self._report(error)
        return True


class undo_on_error:
    """``with undo_on_error(undo):`` calls ``undo`` if the block raises, and the exception goes on."""

    __slots__ = ("_undo",)

    def __init__(self, undo: "Callable[[], object]") -> None:
        self._undo = undo

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: "type[BaseException] | None", error: "BaseException | None", trace: "TracebackType | None"
    ) -> None:
        if error is not None:
            self._undo()


def describe_error(error: BaseException) -> str:
    """Class and message of an exception; of one whose message cannot be made, the class alone."""
    with guarded("the program's own class: its __str__ may raise anything", program_code=True):
        return f"{type(error).__name__}: {error}"[:MAX_TEXT]
    return type(error).__name__


def ignore_failure(part: str, error: BaseException) -> None:
    """The report of a guard whose part has nobody left to tell."""


_process_report: "Report" = ignore_failure


class _NothingAside:
    """Without torch there are no tensors."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


def _no_modes() -> None:
    """Without torch there are none."""


def _no_compiler(callback: object) -> object:
    """Without torch no compiler watches for frames."""


_active_modes: "Callable[[], AbstractContextManager[object] | None]" = _no_modes
_subclasses_aside: "Callable[[], AbstractContextManager[object]]" = _NothingAside
_set_eval_frame: "Callable[[object], object]" = _no_compiler


def set_guard_contexts(
    active_modes: "Callable[[], AbstractContextManager[object] | None]",
    subclasses_aside: "Callable[[], AbstractContextManager[object]]",
    set_eval_frame: "Callable[[object], object] | None" = None,
) -> None:
    """From now on, guarded work runs inside what ``active_modes`` returns, else inside ``subclasses_aside()``.

    set_eval_frame: sets what watches for frames to compile, and returns what did.
    """
    global _active_modes, _subclasses_aside, _set_eval_frame
    _active_modes, _subclasses_aside = active_modes, subclasses_aside
    _set_eval_frame = set_eval_frame or _no_compiler


def set_process_report(report: "Report") -> None:
    """From now on, guards without a report of their own tell this one."""
    global _process_report
    _process_report = report


def report_failure(part: str, error: BaseException, unheard: "Report") -> None:
    """Tell the process's report of a failure; ``unheard`` where there is none, outside of a run."""
    (unheard if _process_report is ignore_failure else _process_report)(part, error)


def belongs_to_program(error: BaseException) -> bool:
    """True for an exception that came up in tdbg's code and still has to reach the program.

    An object of the program's that tdbg touches may raise anything, also SystemExit or KeyboardInterrupt: that is
    tdbg's affair, since without tdbg nobody had touched it. What a signal handler or another thread raises is not.
    """
    if isinstance(error, EndRun):
        return True
    if sys.is_finalizing():  # Python shuts down: its modules go, no signal comes, and nothing can be imported
        return False
    frames = list(_iter_frames(error.__traceback__))
    if not frames:
        return not isinstance(error, Exception)
    handlers = _signal_handlers()
    if any(frame.f_code in handlers or _is_running_handler(frame) for frame, _ in frames):
        return True
    if isinstance(error, RecursionError | MemoryError):
        return False
    frame, offset = frames[-1]
    operation = _get_operation_name(frame.f_code, offset)
    if operation in RAISES:
        return False
    if operation in CHECKPOINTS:
        return True
    if isinstance(error, SystemExit):  # by sys.exit, or by what stands in front of it (W&B)
        return not any("exit" in name for name in frame.f_code.co_names)
    return not isinstance(error, Exception) or _may_be_sent(error)


def _iter_frames(trace: "TracebackType | None") -> "Iterator[tuple[FrameType, int]]":
    """Each frame with its instruction, the innermost last."""
    count, last = 0, None
    while trace is not None:
        last = trace.tb_frame, trace.tb_lasti
        trace, count = trace.tb_next, count + 1
        if count < MAX_FRAMES or trace is None:
            yield last


def _is_running_handler(frame: "FrameType") -> bool:
    """True for a call that was given a signal's number and the frame that it interrupted, whatever is installed by now."""
    above, code = frame.f_back, frame.f_code
    if above is None or code.co_argcount + bool(code.co_flags & VARARGS) < 1:
        return False
    local = frame.f_locals
    given: list[object] = []
    for name in code.co_varnames[: code.co_argcount]:
        given.append(local.get(name))
    if code.co_flags & VARARGS:
        given += local.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount]) or ()
    return any(value is above and isinstance(before, int) for before, value in zip(given, given[1:], strict=False))  # noqa: RUF007 (no import)


def _may_be_sent(error: BaseException) -> bool:
    """True for what another thread sends: made of a class alone, which is written in Python. C code says what is wrong."""
    module = sys.modules.get(type(error).__module__)
    file = getattr(module, "__file__", None) or ""
    return not error.args and (type(error).__module__ == "__main__" or str(file).endswith((".py", ".pyc")))


def _get_operation_name(code: "CodeType", offset: int) -> str:
    import opcode

    held = code.co_code
    return opcode.opname[held[offset]] if 0 <= offset < len(held) else ""


def _signal_handlers() -> "set[CodeType]":
    """The code of every signal handler that is installed now, as far as it is written in Python."""
    signal = sys.modules.get("signal")
    if signal is None:
        return set()
    found: set[CodeType] = set()
    for number in signal.valid_signals():
        with guarded("an object of the program's that shows nothing of itself"):
            found.update(_iter_handler_codes(signal.getsignal(number)))
    return found


def _iter_handler_codes(handler: object) -> "Iterator[CodeType]":
    """The code that runs when a handler is called: a function, a method, a partial or an object."""
    for _ in range(MAX_UNWRAPPED):
        code = getattr(handler, "__code__", None)
        if code is not None:
            yield code
            return
        handler = getattr(handler, "__func__", None) or getattr(handler, "func", None) or type(handler).__call__
