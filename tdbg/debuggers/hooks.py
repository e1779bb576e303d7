"""Hooks on a model that can all be taken away, and what they must not look at."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import nn

from tdbg.core.errors import TdbgError
from tdbg.core.guard import Guard, describe_error, report_failure, set_guard_contexts
from tdbg.runtime.torch_compat import (
    active_modes,
    compiled_call_of,
    in_backward,
    in_transform,
    is_tracing,
    set_eval_frame,
    subclasses_aside,
)

LOG = logging.getLogger("tdbg")

# No hook that can be done without: a scripted module takes none, torch's encoder layer leaves its fused path with one.
BARE = (torch.jit.ScriptModule, nn.TransformerEncoderLayer)
_unwatched: ContextVar[bool] = ContextVar("tdbg_unwatched", default=False)
# What else is to be told of a pass of our own; each gives a context (a run's monitor does not count it as a step).
AROUND_OWN_PASSES: list[Callable[[], contextlib.AbstractContextManager[object]]] = []


class Removable(Protocol):
    """A hook's handle."""

    def remove(self) -> None: ...


class Hooks:
    """All that was put in place to watch a model. ``remove()`` takes it away, and so does the end of a ``with``."""

    def __init__(self) -> None:
        self._undo = contextlib.ExitStack()

    def add(self, handle: Removable) -> None:
        """One more to be removed."""
        self._undo.callback(handle.remove)

    def enter_context(self, context: contextlib.AbstractContextManager[object]) -> None:
        """A state that lasts until the hooks are removed."""
        self._undo.enter_context(context)

    def remove(self) -> None:
        """Take everything away; a second time there is nothing left to do."""
        self._undo.close()

    def __enter__(self) -> "Hooks":
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class HookGuard(Guard):
    """The guard around all hooks of one debugger: the first exception switches the debugger off.

    It is an event of the run, outside of a run one warning of the logger ``tdbg``. why: what was raised.
    """

    __slots__ = ("why",)

    def __init__(self, debugger: str) -> None:
        super().__init__(f"debugger {debugger}", _report_failure)
        self.why = ""
        set_guard_contexts(active_modes, subclasses_aside, set_eval_frame)

    def handle_failure(self, error: BaseException) -> None:
        """Switch the debugger off, and report why."""
        self.why = self.why or describe_error(error)
        super().handle_failure(error)


def _report_failure(part: str, error: BaseException) -> None:
    report_failure(part, error, _warn_failure)


def _warn_failure(part: str, error: BaseException) -> None:
    LOG.warning("tdbg switched off its %s: %s", part, describe_error(error))


class Hook:
    """A module hook that looks only when it should, and leaves no trace in a copy of the model.

    A deep copy of the module has a hook that does nothing, and so has a pickled one, which loads where there is no
    tdbg. An exception of ``target`` switches the owner off.
    guard: the owner's. undoes: takes back what another hook did, so it runs when the owner is off, too.
    """

    def __init__(self, owner: object, target: Callable[..., object], guard: HookGuard, *, undoes: bool = False) -> None:
        self.owner = owner
        self.target: Callable[..., object] | None = target
        self.guard = guard
        self._undoes = undoes

    def __call__(self, module: nn.Module, *args: object) -> None:
        if torch.compiler.is_compiling() or self.target is None:  # a constant nothing in what is compiled
            return
        if self.guard.on or self._undoes:
            with self.guard:  # not `call`: a hook may enter a mode, or run code of the program's own
                if is_program_forward():
                    self.target(module, *args)

    def __deepcopy__(self, memo: dict[int, object]) -> "Hook":
        copied = Hook(None, print, self.guard)
        copied.target = None
        return copied

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def is_program_forward() -> bool:
    """True if what runs now is the program's own forward pass, in Python.

    Not so: what torch.compile or torch.jit traces, what a CUDA graph records, what runs inside a transform of torch.func
    (its tensors have no values of their own), a checkpointed layer that runs again in backward, a pass of tdbg's own.
    """
    if torch.compiler.is_compiling() or is_tracing() or _unwatched.get():
        return False
    if in_backward() or in_transform():
        return False
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


@contextlib.contextmanager
def suspend_debuggers() -> Iterator[None]:
    """A pass of tdbg's own: no debugger's hook looks at it, in this thread."""
    token = _unwatched.set(True)
    try:
        with contextlib.ExitStack() as stack:
            for context in AROUND_OWN_PASSES:
                stack.enter_context(context())
            yield
    finally:
        _unwatched.reset(token)


def require_hookable(path: str, layer: nn.Module) -> nn.Module:
    """The layer itself; TdbgError if it takes no hooks."""
    if isinstance(layer, torch.jit.ScriptModule):
        raise TdbgError(f"{path or 'the model'} is a scripted module, which takes no hooks", "attach before scripting")
    return layer


class _Eager:
    """Compiled models run as plain Python while anybody needs to see inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._stance: Any = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._stance = torch.compiler.set_stance("force_eager")
                self._stance.__enter__()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._stance.__exit__(None, None, None)


_eager = _Eager()


def seen_through(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """A context in which a compiled model, or one with compiled parts, runs uncompiled; else one that does nothing.

    Hooks inside a compiled region are not run, or change what is compiled (pytorch#96722). Compiled code is kept
    and used again afterwards. It holds for the whole process.
    """
    return _eager() if any(is_compiled(module) for module in model.modules()) else contextlib.nullcontext()


def is_compiled(module: nn.Module) -> bool:
    """True for a compiled model, and for a part that compiled itself in place."""
    return type(module).__name__ == "OptimizedModule" or compiled_call_of(module) is not None
