"""Staying invisible to torch.compile: no extra frame, graph or break comes from tdbg's hooks.

Two cases. A hook traced into a compiled region sees ``torch.compiler.is_compiling()`` and is a constant
nothing; it asks that first, as whatever it reads of ours before becomes a guard, and a recompile once it changes. A
hook that runs in Python while the compiler watches for frames (a compiled root that carries hooks, a half-compiled step
function) would have its own frames compiled: its code is marked to be skipped, and the watching is suspended while tdbg's
code runs. A wrapper must not carry an attribute that the compiler reads: `functools.wraps` of a program would copy it.
Tests pin the counts; where torch has no such functions the guard remains.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

import torch

from tdbg.core.frames import get_line, is_own_code, own_frames_dropped
from tdbg.core.guard import Guard, belongs_to_program
from tdbg.runtime.torch_compat import TRACED_INSTEAD, active_modes, set_eval_frame, skip_code

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


def hide_hook(hook: Callable[..., object]) -> None:
    """Mark what runs when a hook of ours is called: a function, a method, a partial or an object."""
    hide_from_compiler(hook if hasattr(hook, "__code__") else getattr(hook, "func", type(hook).__call__))


def trace_as_nothing(hook: Hidden) -> Hidden:
    """Have the compiler trace a function without content in the place of a hook of ours (a decorator).

    A region that asks ``is_compiling()`` is kept even if nothing in it is computed, such as the end of a compiled
    ``optimizer.step``; without the question it is left out, as without tdbg, and calls the hook itself.
    """
    setattr(hook, TRACED_INSTEAD, _do_nothing)
    return hide_from_compiler(hook)


def _do_nothing(*args: object) -> None:
    """What is traced in the place of a hook."""


@hide_from_compiler
def call_outside_compiler(function: Callable[..., Result], *args: object) -> Result:
    """Call ``function`` while the compiler does not watch for frames."""
    if set_eval_frame is None:
        return function(*args)
    before = set_eval_frame(None)
    if before:
        return _call_inside_region(function, args, before)
    try:
        return function(*args)
    finally:
        set_eval_frame(before)


_thread = threading.local()


@hide_from_compiler
def _call_inside_region(function: Callable[..., Result], args: tuple[object, ...], watching: object) -> Result:
    """The same where the compiler watches: what called us runs in Python inside a compiled region."""
    _thread.is_inside_region = True
    try:
        return function(*args)
    finally:
        _thread.is_inside_region = False
        if set_eval_frame is not None:
            set_eval_frame(watching)


def is_inside_region() -> bool:
    """True if the hook of ours that runs was called from code that the compiler watches, between two graphs."""
    return getattr(_thread, "is_inside_region", False)


@hide_from_compiler
def is_capturing() -> bool:
    """True while a CUDA graph is captured: Python runs only then, and nothing may be launched, read or waited for."""
    try:
        return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    except RuntimeError:  # a device that has failed: the program is told by its own calls, and not by this one
        return False


# What every hook calls before its own work has begun, or after it has ended.
_SHARED: tuple[Callable[..., object], ...] = (
    *(Guard.call_guarded, Guard.__enter__, Guard.__exit__, active_modes, belongs_to_program, get_line),
    *(own_frames_dropped.__enter__, own_frames_dropped.__exit__),
)
for _function in _SHARED:
    hide_from_compiler(_function)
