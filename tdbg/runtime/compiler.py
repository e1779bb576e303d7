"""Staying invisible to torch.compile: no extra frame, graph or break comes from tdbg's hooks.

Two cases. A hook traced into a compiled region sees ``torch.compiler.is_compiling()`` and is a constant
nothing. A hook that runs in Python while the compiler watches for frames (a compiled root that carries
hooks, a half-compiled step function) would have its own frames compiled: its code is marked to be
skipped, and the watching is suspended while tdbg's code runs.
Tests pin the counts; where torch has no such functions the guard remains.
"""

from collections.abc import Callable
from typing import TypeVar

import torch

from tdbg.core.frames import is_own_code
from tdbg.runtime.torch_compat import set_eval_frame, skip_code

Hidden = TypeVar("Hidden")  # a function: any callable, of any kind
Result = TypeVar("Result")


def hide_from_compiler(function: Hidden) -> Hidden:
    """Mark a function of ours so that the compiler never makes a frame of it (a decorator).

    Also what it wraps, if that is ours: the code of the program and of its packages is compiled as ever.
    """
    if skip_code is not None:
        for one in (function, getattr(function, "__wrapped__", None)):
            code = getattr(one, "__code__", None)
            if code is not None and is_own_code(code):
                skip_code(code)
    return function


@hide_from_compiler
def call_outside_compiler(function: Callable[..., Result], *args: object) -> Result:
    """Call ``function`` while the compiler does not watch for frames."""
    if set_eval_frame is None:
        return function(*args)
    before = set_eval_frame(None)
    try:
        return function(*args)
    finally:
        set_eval_frame(before)


@hide_from_compiler
def is_capturing() -> bool:
    """True while a CUDA graph is captured: Python runs only then, and nothing may be launched, read or waited for."""
    try:
        return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    except RuntimeError:  # a device that has failed: the program is told by its own calls, and not by this one
        return False
