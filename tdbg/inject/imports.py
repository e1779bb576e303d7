"""Being told of a module the program imports later on, through the finder that the boot file put in place."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tdbg.core.frames import disguised


def when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call ``then(module)`` now if the program has the module, else right after its import has finished."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        then(module)
        return
    waker = next((finder for finder in sys.meta_path if getattr(finder, "tdbg_boot", False)), None)
    if waker is not None:
        waker.wanted.setdefault(name, []).append(then)  # type: ignore[attr-defined]


def disguise_as(module: Any, function: Callable[..., object]) -> Any:
    """``function``, which from now on looks like a part of ``module`` to those who walk the stack.

    `logging` finds a record's caller by passing over the frames of its own file, and handlers of the program may do so
    too: a frame of ours in between would be taken for the caller.
    """
    function.__code__ = function.__code__.replace(co_filename=module.__file__)
    disguised.add(function.__code__)
    return function
