"""What a debugger is: something that looks at one datapoint, and one that takes a layer's output as it runs."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import nn

from tdbg.core.errors import TdbgError
from tdbg.core.frames import is_own_code
from tdbg.core.guard import undo_on_error
from tdbg.debuggers.copies import snapshot
from tdbg.debuggers.hooks import BARE, Hook, HookGuard, Hooks, is_program_forward, require_hookable, seen_through
from tdbg.debuggers.layers import get_layer_by_name, unwrap_all
from tdbg.runtime.own_hooks import add_post_hook, add_pre_hook, post_hooks_of

MAX_CALLS = 256  # calls of a layer that are kept until they are read; of more, the last ones


class BaseDebugger(ABC):
    """Looks at one datapoint after the model has worked on it.

    A subclass writes ``__call__``. One that needs hooks writes `attach` too; what it puts in place is removed by
    whoever called it. ``name`` is its word in the registry, needed only there.
    """

    name: ClassVar[str] = ""
    runs_again: ClassVar[bool] = False  # it calls the model a second time
    after_backward: ClassVar[bool] = False  # in training it has to be called once gradients have arrived

    @abstractmethod
    def __call__(self, datapoint: Mapping[str, Any], model: nn.Module) -> Any:
        """What is to be kept of this datapoint: a mapping of tensors, numbers, text, or of more mappings.

        datapoint: ``inputs``, ``outputs``, ``labels`` and ``meta_info`` of one datapoint, or of a batch.
        Returns None or {} where there is nothing to keep; `missing` tells why.
        """

    def attach(self, model: nn.Module) -> Hooks:
        """Put in place what must be there while the model runs: nothing, unless a subclass says otherwise."""
        return Hooks()

    def missing(self, model: nn.Module) -> str:
        """Why the last call gave None, in words."""
        return "not executed"


class _Calls(threading.local):
    """What a layer's calls gave since they were last read, in one thread."""

    def __init__(self) -> None:
        self.kept: deque[Any] = deque(maxlen=MAX_CALLS)
        self.dropped = 0

    def clear(self) -> None:
        self.kept.clear()
        self.dropped = 0

    def __reduce__(self) -> tuple[object, ...]:  # a debugger may be copied; what it holds of a thread is not
        return type(self), ()


class ForwardDebugger(BaseDebugger):
    """Takes something out of one layer's output whenever it runs.

    A subclass writes `process_forward`. What that returns is copied at once (`snapshot`), so nothing that happens
    to the output later can change it. Each thread has captures of its own.
    layer_name: a path, as `get_layer_by_name` takes it.

    Captures are those of the last pass of the model that was given to `attach`: its next pass lets them go, and so
    does reading them. A layer that ran several times in a pass keeps all calls (256, the last ones).
    """

    _hook_guard: HookGuard

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        self = super().__new__(cls)
        self._hook_guard = HookGuard(cls.__name__)  # here, as a subclass may not call __init__
        return self

    def __init__(self, layer_name: str) -> None:
        self.layer_name = layer_name
        self._name_guard()

    def _name_guard(self) -> None:
        self._hook_guard.part = f"debugger {type(self).__name__} at {self.layer_name!r}"

    @abstractmethod
    def process_forward(self, module: nn.Module, input: Any, output: Any) -> Any:
        """Return what to keep of one call of the layer. input: its positional arguments; both are live: do not change them.

        Runs inside the forward pass. An exception does not reach the program: it switches the debugger off, with a warning.
        """

    @property
    def _thread_calls(self) -> _Calls:
        calls: _Calls = self.__dict__.setdefault("_calls_by_thread", _Calls())  # a subclass may not call __init__
        return calls

    @property
    def switched_off(self) -> str:
        """The exception of a hook that switched the debugger off, as text; empty while it works."""
        return self._hook_guard.why

    @property
    def last_capture(self) -> Any:
        """What the layer's last call in this thread gave; None if there was none since it was last read."""
        kept = self._thread_calls.kept
        return kept[-1] if kept else None

    @last_capture.setter
    def last_capture(self, value: Any) -> None:
        self._thread_calls.clear()
        if value is not None:
            self._thread_calls.kept.append(value)

    @property
    def captures(self) -> tuple[Any, ...]:
        """What each call of the layer gave in this thread's last pass, first to last."""
        return tuple(self._thread_calls.kept)

    def take_calls(self) -> tuple[list[Any], int]:
        """What the layer's calls gave in this thread so far, and how many more there were; they are let go."""
        calls = self._thread_calls
        kept, dropped = list(calls.kept), calls.dropped
        calls.clear()
        return kept, dropped

    def give_calls(self, calls: tuple[list[Any], int]) -> None:
        """Put back what `take_calls` took, in the place of what there is."""
        mine = self._thread_calls
        mine.clear()
        mine.kept.extend(calls[0])
        mine.dropped = calls[1]

    def forward_hook_fn(self, module: nn.Module, input: Any, output: Any) -> None:
        """The layer's forward hook; for ``register_forward_hook`` too, where `attach` is not wanted."""
        if torch.compiler.is_compiling():
            return
        guard = self._hook_guard
        code = getattr(type(self).process_forward, "__code__", None)
        if code is not None and is_own_code(code):
            guard.call_guarded(self._capture_output, module, input, output)
        elif guard.on:
            with guard:  # somebody else's: with the modes and tensor subclasses in force
                self._capture_output(module, input, output)

    def _capture_output(self, module: nn.Module, input: Any, output: Any) -> None:
        if is_program_forward():
            self._keep_capture(snapshot(self.process_forward(module, input, output)))

    def _keep_capture(self, capture: object) -> None:
        calls = self._thread_calls
        calls.dropped += len(calls.kept) == MAX_CALLS
        calls.kept.append(capture)

    def __call__(self, datapoint: Mapping[str, Any], model: nn.Module) -> Any:
        """What the layer gave in the last pass, which is then forgotten; None if it did not run.

        Of several calls it is what the last one gave, with those before it, in order, under ``earlier_calls`` (and
        ``calls_dropped``, if there were more than are kept); a list of all where they are no mappings.
        """
        kept, dropped = self.take_calls()
        return join_calls(kept, dropped) if self._hook_guard.on else None

    def attach(self, model: nn.Module) -> Hooks:
        """Hook the layer, until ``remove()`` or the end of a ``with``. Raises TdbgError if there is no such layer.

        A compiled model runs uncompiled meanwhile. A copy of the model does not carry the hooks.
        """
        layer = get_layer_by_name(model, self.layer_name)
        return self._attach_hooks(model, layer)

    def _attach_hooks(self, model: nn.Module, layer: nn.Module) -> Hooks:
        self._refuse_twice(layer)
        self._name_guard()
        hooks = Hooks()
        with undo_on_error(hooks.remove):
            hooks.enter_context(seen_through(model))
            self._watch_passes(model, hooks)
            self._add_layer_hooks(layer, hooks)
        return hooks

    def _watch_passes(self, model: nn.Module, hooks: Hooks) -> None:
        """Have every pass of the model begin without captures."""
        root = unwrap_all(model)
        if not isinstance(root, BARE):
            hooks.add(add_pre_hook(root, self._build_hook(self._begin_pass), first=True))

    def _build_hook(self, target: Callable[..., object], *, undoes: bool = False) -> Hook:
        return Hook(self, target, self._hook_guard, undoes=undoes)

    def _begin_pass(self, module: nn.Module, args: object) -> None:
        self._thread_calls.clear()

    def _add_layer_hooks(self, layer: nn.Module, hooks: Hooks) -> None:
        """Put the hooks of the layer itself in place."""
        hooks.add(add_post_hook(require_hookable(self.layer_name, layer), self._build_hook(self.forward_hook_fn)))

    def _has_own_hook(self, layer: nn.Module) -> bool:
        return any(isinstance(hook, Hook) and hook.owner is self for hook in post_hooks_of(layer).values())

    def _refuse_twice(self, layer: nn.Module) -> None:
        if self._has_own_hook(layer):
            text = f"this {type(self).__name__} is already attached to {self.layer_name!r}"
            raise TdbgError(text, "first call remove() on what attach() returned")

    def missing(self, model: nn.Module) -> str:
        """Return why the last call gave None: the layer did not run, the debugger was not attached, or it failed."""
        if self.switched_off:
            return f"switched off: {self.switched_off}"
        if self._has_own_hook(get_layer_by_name(model, self.layer_name)):
            return (
                f"not executed: {self.layer_name!r} did not run in the last pass of the model that attach() was given"
            )
        return f"not executed: this {type(self).__name__} is not attached to {self.layer_name!r}; call attach()"


def join_calls(kept: list[Any], dropped: int = 0) -> Any:
    """Several calls as one result, as `ForwardDebugger.__call__` says."""
    if len(kept) < 2:
        return kept[0] if kept else None
    *earlier, last = kept
    if not all(isinstance(capture, Mapping) for capture in kept):
        return kept
    more = {"calls_dropped": dropped} if dropped else {}
    return {**last, "earlier_calls": earlier, **more}
