"""Tracebacks as they are without tdbg: a function that stands in front of another leaves no frame in them."""

import os
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, TracebackType
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

OWN_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
disguised: set[CodeType] = set()  # code of ours that names another file as its own
# `warnings.warn` and `logging` pass over frames of Python's import system, which they know by these words in the file's name.
PASSED_OVER = os.path.join(OWN_FOLDER, "importlib._bootstrap", "")
_without_frame: dict[CodeType, CodeType] = {}


def is_own_code(code: CodeType) -> bool:
    """True for code of tdbg."""
    return code.co_filename.startswith(OWN_FOLDER) or code in disguised


def pass_over(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, which a warning's ``stacklevel`` does not count from now on: it stands in front of another one.

    Else a warning of that one would be told of a line of tdbg's, and the filters of the program would not fit it.
    """
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType) and code.co_filename.startswith(OWN_FOLDER) and PASSED_OVER not in code.co_filename:
        passed = _without_frame.get(code)
        if passed is None:
            name = PASSED_OVER + code.co_filename.removeprefix(OWN_FOLDER)
            passed = _without_frame[code] = code.replace(co_filename=name)
        function.__code__ = passed
    return function


def get_line(frame: FrameType) -> int:
    """The line that a frame is at, or the first line of its function if the current instruction has no line.

    The compiler adds instructions without a line, and generated code may have no lines at all.
    """
    return frame.f_lineno or frame.f_code.co_firstlineno


def drop_own_frames(error: BaseException, *, native: bool = False) -> None:
    """Take tdbg's frames off the outer end of an exception's traceback; one that tdbg raises itself keeps them.

    To be followed by a bare ``raise``, which adds no frame to the traceback that the exception has.
    native: a function without a frame of its own raised it, so no frame below tdbg's tells who did.
    """
    first = found = error.__traceback__
    while found is not None and is_own_code(found.tb_frame.f_code):
        found = found.tb_next
    if (found is not None or native) and found is not first:
        error.__traceback__ = found


class own_frames_dropped:
    """``with own_frames_dropped():`` `drop_own_frames` of whatever the block raises, which goes on."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            drop_own_frames(error)


WITHOUT_OWN_FRAMES = own_frames_dropped()  # it has no state: one serves every call of a busy place


def without_own_frames(function: Callable[Arguments, Result], *, native: bool = False) -> Callable[Arguments, Result]:
    """The function, of which an exception that passes through it shows nothing.

    native: it stands in front of a function that is not written in Python.
    """

    def call_function(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            drop_own_frames(error, native=native)
            raise

    return pass_over(call_function)


def walk_traceback(traceback: TracebackType | None) -> Iterator[TracebackType]:
    """Its links, the outermost first."""
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next
