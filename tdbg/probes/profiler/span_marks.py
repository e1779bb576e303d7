"""Named spans in a profiler's window for what no operator shows: saves, and a loader that begins a pass."""

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.profiler import record_function

from tdbg.runtime.compiler import hide_from_compiler
from tdbg.runtime.patches import Patches

if TYPE_CHECKING:
    from tdbg.probes import Probe

SAVE = "tdbg.save: "  # `tdbg trace` knows both beginnings
LOADER = "enumerate(DataLoader)#DataLoader.__iter__"
# The module, once the program has it, its functions, and what they are called in a trace.
SAVES = (
    ("safetensors.torch", ("save_file", "save_model"), "safetensors"),
    ("torch_xla.core.xla_model", ("save",), "xm"),
)


class _Open(threading.local):
    """The spans that a thread is in."""

    names: tuple[str, ...] = ()


class SpanMarks:
    """Marks saves and beginnings of passes while ``is_recording`` says so; else its wrappers do nothing."""

    def __init__(self, probe: "Probe", is_recording: Callable[[], bool]) -> None:
        self._probe = probe
        self._patches: Patches = probe.patches
        self._is_recording = is_recording
        self._open = _Open()

    def attach(self) -> None:
        """Stand in front of these functions; the probe's own `detach` takes them away."""
        self._probe.for_each_function(
            "save", lambda owner, name: self._mark_function(owner, name, f"{SAVE}torch.{name}")
        )
        self._probe.for_each_function("loader-iterated", lambda owner, name: self._mark_function(owner, name, LOADER))
        self._probe.for_each_function(
            "sharded-save",
            lambda owner, name: self._mark_function(owner, name, f"{SAVE}torch.distributed.checkpoint.{name}"),
        )
        for module, names, shown in SAVES:
            self._probe.when_imported(module, functools.partial(self._mark_module, names, shown))

    def _mark_module(self, names: tuple[str, ...], shown: str, module: ModuleType) -> None:
        for name in names:
            if callable(getattr(module, name, None)):
                self._mark_function(module, name, f"{SAVE}{shown}.{name}")

    def _mark_function(self, owner: Any, name: str, text: str) -> None:
        guard, spans = self._probe.guard, self._open

        def build_wrapper(original: Any) -> Callable[..., object]:
            def call_in_span(*args: object, **kwargs: object) -> object:
                # A function that two modules hold is marked in both, and a call of it is one span.
                if torch.compiler.is_compiling() or text in spans.names or not guard.call_guarded(self._is_recording):
                    return original(*args, **kwargs)
                before = spans.names
                spans.names = (*before, text)
                try:
                    with record_function(text):
                        return original(*args, **kwargs)
                finally:
                    spans.names = before

            return hide_from_compiler(call_in_span)

        self._patches.wrap_attribute(owner, name, build_wrapper)
