"""Staying invisible to torch.compile: no extra frame, graph or break comes from tdbg's hooks.

Two cases. A hook traced into a compiled region sees ``torch.compiler.is_compiling()`` and is a constant
nothing. A hook that runs in Python while the compiler watches for frames (a compiled root that carries
hooks, a half-compiled step function) would have its own frames compiled: its code is marked to be
skipped, and the watching is suspended while tdbg's code runs.
Both functions are private API of torch; tests pin the counts, and without them the guard remains.
"""

from collections.abc import Callable
from types import CodeType
from typing import Any

from tdbg.core.frames import is_own


def _skipper(eval_frame: Any) -> Callable[[CodeType], None] | None:
    """What newer versions of torch have instead of ``skip_code``: no frame of this code, those it calls as ever."""
    set_strategy = getattr(eval_frame, "set_code_exec_strategy", None)
    if set_strategy is None:
        return None
    action = eval_frame._FrameAction
    strategy = eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
    return lambda code: set_strategy(code, strategy)


set_eval_frame: Any
skip_code: Any
try:
    from torch._C._dynamo import eval_frame
except ImportError:  # another torch: frames may be counted, nothing breaks
    set_eval_frame = skip_code = None
else:
    set_eval_frame = getattr(eval_frame, "set_eval_frame", None)
    skip_code = getattr(eval_frame, "skip_code", None) or _skipper(eval_frame)


def hide(function: Any) -> Any:
    """Mark a function of ours so that the compiler never makes a frame of it (a decorator).

    Also what it wraps, if that is ours: the code of the program and of its packages is compiled as ever.
    """
    if skip_code is not None:
        for one in (function, getattr(function, "__wrapped__", None)):
            code = getattr(one, "__code__", None)
            if code is not None and is_own(code):
                skip_code(code)
    return function


@hide
def unseen(function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function`` while the compiler does not watch for frames."""
    if set_eval_frame is None:
        return function(*args)
    before = set_eval_frame(None)
    try:
        return function(*args)
    finally:
        set_eval_frame(before)
