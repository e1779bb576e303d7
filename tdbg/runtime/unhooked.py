"""The traceback of a forward pass that fails, as it is where no module carries a hook.

torch calls a module with hooks on another line than one without, and through one more function.
"""

import sys
from functools import cache
from types import TracebackType

from torch import nn
from torch.nn.modules import module as module_registry

from tdbg.core.frames import walk_traceback
from tdbg.runtime.own_hooks import has_foreign_hooks
from tdbg.runtime.torch_compat import MODULE_CALL, call_module

_CONSTANTS = MODULE_CALL.co_consts if MODULE_CALL is not None else ()
THROUGH_HOOKS = next((code for code in _CONSTANTS if getattr(code, "co_name", "") == "inner"), None)
FOR_ALL_MODULES = [
    getattr(module_registry, f"_global_{kind}_hooks", {})
    for kind in ("forward_pre", "forward", "backward_pre", "backward")
]


def repair_traceback(module: nn.Module) -> bool:
    """True if the module's call is just failing, and its hooks run for that; the traceback is then the unhooked one's."""
    if MODULE_CALL is None:  # this torch has another one
        return False
    error = sys.exception()
    found = error.__traceback__ if error is not None else None
    if error is None or found is None or found.tb_frame.f_code is not MODULE_CALL:
        return False
    if found.tb_frame.f_locals.get("self") is not module:
        return False
    if not any(FOR_ALL_MODULES):
        error.__traceback__ = _without_detours(found)
    return True


def _without_detours(found: TracebackType) -> TracebackType | None:
    """The same, with each call through hooks of ours alone as a direct one."""
    links = list(walk_traceback(found))
    built: TracebackType | None = None
    for link, caller in zip(reversed(links), [*reversed(links[:-1]), None], strict=True):
        if link.tb_frame.f_code is THROUGH_HOOKS and caller is not None and _is_ours(caller):
            continue
        lasti, line = link.tb_lasti, link.tb_lineno
        inner = link.tb_next
        if inner is not None and inner.tb_frame.f_code is THROUGH_HOOKS and _is_ours(link):
            lasti, line = _direct_call()
        built = TracebackType(built, link.tb_frame, lasti, line)
    return built


def _is_ours(link: TracebackType) -> bool:
    """True for the call of a module that has no hook of the program's."""
    if link.tb_frame.f_code is not MODULE_CALL:
        return False
    module = link.tb_frame.f_locals.get("self")
    return isinstance(module, nn.Module) and not has_foreign_hooks(module)


class _Raised(Exception):
    """Raised to see where."""


class _Raises(nn.Module):
    def forward(self) -> None:
        raise _Raised


@cache
def _direct_call() -> tuple[int, int]:
    """The instruction and the line at which torch calls the forward of a module without hooks."""
    try:
        call_module(_Raises())
    except _Raised as error:
        found = next(link for link in walk_traceback(error.__traceback__) if link.tb_frame.f_code is MODULE_CALL)
        return found.tb_lasti, found.tb_lineno
    raise AssertionError("it raises")
