"""`tdbg.region`: a named span of the program, timed in every step and shown in traces."""

import functools
import inspect
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar, cast

from tdbg.api.compiling import is_compiling
from tdbg.probes.regions import TOTALS

F = TypeVar("F", bound=Callable[..., Any])
MAX_DEPTH = 16


class _Frame:
    """One entry of a region that is still open."""

    __slots__ = ("begun", "depth", "inner", "mark", "open", "owner", "parent", "path")

    def __init__(self, owner: "region", parent: "_Frame | None") -> None:
        self.owner = owner
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.path: str = owner.name
        around = _same_name(owner.name, parent)
        self.inner = around is not None  # recursion: its time is in the outer one's already
        if around is not None:
            self.path = around.path
        elif parent is not None and self.depth < MAX_DEPTH:
            self.path = f"{parent.path}/{owner.name}"
        self.mark: Any = None
        self.open = True
        self.begun = 0.0


_now: ContextVar[_Frame | None] = ContextVar("tdbg_region", default=None)  # by thread, and by asyncio task


class region:
    """A span of the program under a name: ``with tdbg.region("augment"): ...`` or ``@tdbg.region("augment")``.

    The time in each region, a step, stands beside the step's record (probe ``regions``, in ms) and in the
    debug log; in a trace of torch.profiler the span has the same name. A region inside another is told as
    ``outer/inner``; recursion counts once. Threads and asyncio tasks have spans of their own; one object may be
    entered again, by several threads too. A decorated coroutine function is timed from its start to its end,
    waiting included.
    name: text without a slash. Raises TypeError for a decorated generator function (its body runs while others
    use what it yields: enter the region inside it). Inside torch.compile it does nothing.
    Cost: about 3 us an entry; host time only, nothing waits for a device.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = str(name).replace("/", "_")[:100]

    def __enter__(self) -> "region":
        if is_compiling():
            return self
        frame = _Frame(self, _now.get())
        _now.set(frame)
        frame.mark = _enter_profiler_span(frame.path)
        frame.begun = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if is_compiling():
            return
        ended = time.perf_counter()
        frame = _find_open_entry(self, _now.get())
        if frame is None:
            return
        frame.open = False
        _now.set(_first_open(_now.get()))
        if frame.mark is not None:
            frame.mark.__exit__(kind, error, traceback)
        TOTALS.add_call(frame.path, 0.0 if frame.inner else ended - frame.begun)

    def __call__(self, function: F) -> F:
        """Time every call of ``function``."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"tdbg.region({self.name!r}) cannot time a generator function: use `with` inside it")
        name = self.name

        @functools.wraps(function)
        async def call_async(*args: object, **kwargs: object) -> object:
            with region(name):
                return await function(*args, **kwargs)

        @functools.wraps(function)
        def call_timed(*args: object, **kwargs: object) -> object:
            with region(name):
                return function(*args, **kwargs)

        return cast("F", call_async if inspect.iscoroutinefunction(function) else call_timed)


def _same_name(name: str, frame: _Frame | None) -> _Frame | None:
    while frame is not None and not (frame.open and frame.owner.name == name):
        frame = frame.parent
    return frame


def _find_open_entry(owner: region, frame: _Frame | None) -> _Frame | None:
    """The innermost open entry of this region: a generator may have left another one open above it."""
    while frame is not None and not (frame.open and frame.owner is owner):
        frame = frame.parent
    return frame


def _first_open(frame: _Frame | None) -> _Frame | None:
    while frame is not None and not frame.open:
        frame = frame.parent
    return frame


def _enter_profiler_span(path: str) -> object:
    """The span in a trace, entered; None while nobody profiles."""
    profiler = sys.modules.get("torch.autograd.profiler")
    if profiler is None or not getattr(profiler, "_is_profiler_enabled", True):
        return None
    mark = profiler.record_function(path)
    mark.__enter__()
    return mark
