"""Taps: where values are heard that a program logs elsewhere. One library a file, loaded when the program has it.

Such a file holds ``MODULES``, whose import it waits for, and ``arrive(module, tap)``.
"""

import importlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tdbg.inject.imports import when_imported

if TYPE_CHECKING:
    from tdbg.inject.metrics import RowFeed

# Watched module -> the file here that taps it. Named here, so that no file is loaded before its library is.
TAPS = {
    "wandb": "wandb_log",
    "torch.utils.tensorboard.writer": "summary_writer",
    "tensorboardX.writer": "summary_writer",
    "transformers.trainer_callback": "hugging_face",
    "lightning.pytorch.trainer.connectors.logger_connector.logger_connector": "lightning_",
    "pytorch_lightning.trainer.connectors.logger_connector.logger_connector": "lightning_",
    "lightning.pytorch.trainer.trainer": "lightning_",
    "pytorch_lightning.trainer.trainer": "lightning_",
    "torchmetrics.metric": "torchmetrics_",
    "torchmetrics.collections": "torchmetrics_",
}

Before = Callable[[tuple[Any, ...], dict[str, Any]], None]
After = Callable[[tuple[Any, ...], dict[str, Any], Any], None]


class Tap:
    """Stands in front of functions of a library, which keep their arguments, results and exceptions."""

    def __init__(self, feed: "RowFeed") -> None:
        from tdbg.runtime.patches import Patches

        self.feed = feed
        self.patches = Patches()

    def install_when_imported(self) -> None:
        """Have each library tapped as soon as the program has it."""
        for name, file in TAPS.items():
            self._install_when_imported(name, file)

    def _install_when_imported(self, name: str, file: str) -> None:
        guard = self.feed.me.get_guard(f"metrics of {name}")
        when_imported(name, lambda module: guard.call_guarded(self._install_tap, module, file))

    def _install_tap(self, module: object, file: str) -> None:
        if self.feed.is_off:
            return
        importlib.import_module(f"{__name__}.{file}").arrive(module, self)

    def add_listeners(
        self, owner: object, name: str, *, before: Before | None = None, after: After | None = None
    ) -> None:
        """Have ``owner.name`` heard: ``before`` with its arguments, ``after`` with its result as well.

        Nothing is called while tdbg is switched off or inside a compiled region. What they do is timed and booked; one
        that raises switches the feed off.
        """

        def build_wrapper(original: Callable[..., object]) -> Callable[..., object]:
            return self.wrap_function(original, before=before, after=after)

        self.patches.wrap_attribute(owner, name, build_wrapper)

    def wrap_function(
        self, original: Callable[..., object], *, before: Before | None = None, after: After | None = None
    ) -> Callable[..., object]:
        """The same for a function that nobody holds yet."""
        import torch

        from tdbg.runtime.compiler import call_outside_compiler, hide_from_compiler

        guard, is_compiling = self.feed.guard, torch.compiler.is_compiling

        def call_with_listeners(*args: object, **kwargs: object) -> object:
            if is_compiling():
                return original(*args, **kwargs)
            if before is not None:
                call_outside_compiler(guard.call_guarded, self._call_listener, before, args, kwargs)
            result = original(*args, **kwargs)
            if after is not None:
                call_outside_compiler(guard.call_guarded, self._call_listener, after, args, kwargs, result)
            return result

        return hide_from_compiler(call_with_listeners)

    def _call_listener(self, listener: Callable[..., None], *args: object) -> None:
        """Call a listener while the feed hears, and book its time. Below the feed's guard."""
        feed = self.feed
        if not feed.is_listening:
            return
        begun = time.perf_counter()
        try:
            listener(*args)
        finally:
            feed.record_cost(time.perf_counter() - begun)


def get_argument(args: tuple[object, ...], kwargs: dict[str, object], place: int, name: str) -> object:
    """An argument of a call, by its place or its name; None where it was left out."""
    return args[place] if len(args) > place else kwargs.get(name)
