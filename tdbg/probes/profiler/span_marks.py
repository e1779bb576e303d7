"""Named spans in a profiler's window for what no operator shows: saves, and a loader that begins a pass."""

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.profiler import record_function

from tdbg.runtime.compiler import hide
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
        self._probe.at("save", lambda owner, name: self._mark(owner, name, f"{SAVE}torch.{name}"))
        self._probe.at("loader-iterated", lambda owner, name: self._mark(owner, name, LOADER))
        self._probe.at(
            "sharded-save", lambda owner, name: self._mark(owner, name, f"{SAVE}torch.distributed.checkpoint.{name}")
        )
        for module, names, shown in SAVES:
            self._probe.when_imported(module, functools.partial(self._meet, names, shown))

    def _meet(self, names: tuple[str, ...], shown: str, module: ModuleType) -> None:
        for name in names:
            if callable(getattr(module, name, None)):
                self._mark(module, name, f"{SAVE}{shown}.{name}")

    def _mark(self, owner: Any, name: str, text: str) -> None:
        guard, spans = self._probe.guard, self._open

        def make(original: Any) -> Callable[..., object]:
            def marked(*args: object, **kwargs: object) -> object:
                # A function that two modules hold is marked in both, and a call of it is one span.
                if torch.compiler.is_compiling() or text in spans.names or not guard.call(self._is_recording):
                    return original(*args, **kwargs)
                before = spans.names
                spans.names = (*before, text)
                try:
                    with record_function(text):
                        return original(*args, **kwargs)
                finally:
                    spans.names = before

            return hide(marked)

        self._patches.wrap(owner, name, make)
