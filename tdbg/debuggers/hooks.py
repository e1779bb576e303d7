"""Hooks on a model that can all be taken away, and what they must not look at."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import nn

from tdbg.core.errors import TdbgError
from tdbg.runtime.torch_compat import in_backward, in_transform, is_tracing

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

    def enter(self, context: contextlib.AbstractContextManager[object]) -> None:
        """A state that lasts until the hooks are removed."""
        self._undo.enter_context(context)

    def remove(self) -> None:
        """Take everything away; a second time there is nothing left to do."""
        self._undo.close()

    def __enter__(self) -> "Hooks":
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class Hook:
    """A module hook that looks only when it should, and leaves no trace in a copy of the model.

    A deep copy of the module has a hook that does nothing, and so has a pickled one, which loads where there is no
    tdbg. Exceptions of ``target`` reach whoever called the model.
    """

    def __init__(self, owner: object, target: Callable[..., object]) -> None:
        self.owner = owner
        self.target: Callable[..., object] | None = target

    def __call__(self, module: nn.Module, *args: object) -> None:
        if self.target is not None and watching():
            self.target(module, *args)

    def __deepcopy__(self, memo: dict[int, object]) -> "Hook":
        copied = Hook(None, print)
        copied.target = None
        return copied

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def watching() -> bool:
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
def unwatched() -> Iterator[None]:
    """A pass of tdbg's own: no debugger's hook looks at it, in this thread."""
    token = _unwatched.set(True)
    try:
        with contextlib.ExitStack() as stack:
            for context in AROUND_OWN_PASSES:
                stack.enter_context(context())
            yield
    finally:
        _unwatched.reset(token)


def hookable(path: str, layer: nn.Module) -> nn.Module:
    """The layer itself; TdbgError if it takes no hooks."""
    if isinstance(layer, torch.jit.ScriptModule):
        raise TdbgError(f"{path or 'the model'} is a scripted module, which takes no hooks", "use it before scripting")
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
    return _eager() if any(_is_compiled(module) for module in model.modules()) else contextlib.nullcontext()


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
