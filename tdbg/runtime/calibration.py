"""What a hook costs besides the time tdbg sees inside it: torch's slower way of calling a module, and the way in and out.

Measured once a process, on a module of tdbg's own: nothing is registered, no random number is drawn, and nothing of the
program's is touched. Between two calls some of torch's operations run on a small tensor, as a program's own would: the
code and data of both drive each other out of the nearest caches. In a tight loop an entry takes a third of the time.
"""

import time
from collections.abc import Callable
from functools import cache
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_registry

from tdbg.core.guard import Guard
from tdbg.runtime.budget import Budget
from tdbg.runtime.compiler import hide, unseen
from tdbg.runtime.root_modules import CallHook

# Hooks of torch's for the calls of all modules: those of the program would run on tdbg's module too.
CALL_HOOKS = (
    *("_global_forward_pre_hooks", "_global_forward_hooks"),
    *("_global_backward_pre_hooks", "_global_backward_hooks"),
)
REPEATS = 15
# Backward drives out twice as much (4.5 us an entry against 2.2), but would start autograd's engine, which no process that
# forks later is to have.
AFTER_BACKWARD = 2.0
PART = "calibration"


class Overhead(NamedTuple):
    """Seconds of one entry into tdbg that its own clock does not see."""

    call_s: float  # of a module with a hook before and one after it
    entry_s: float  # of a wrapper around one of torch's functions, or of an optimizer's hook


USUAL = Overhead(7e-6, 2e-6)


class _Idle(nn.Module):
    """A module that does nothing."""

    def forward(self, value: Any) -> Any:
        return value


def measure_overhead() -> Overhead:
    """The overhead on this machine, measured once; a usual one where the program's own hooks would run meanwhile."""
    if any(getattr(module_registry, name, None) for name in CALL_HOOKS):
        return USUAL
    return Guard("calibration").call(_measure) or USUAL


@cache
def _measure() -> Overhead:
    """Takes about 3 ms."""
    budget, guard = Budget(0.0, 0.0), Guard("calibration")

    def book(*args: Any) -> None:
        begun = time.perf_counter()
        budget.spend(PART, time.perf_counter() - begun)

    def enter() -> None:
        unseen(guard.call, book)

    idle = _Idle()
    bare_s = _median_s(lambda: idle(None))
    hook = CallHook(guard)
    hook.target = book
    # Into the tables themselves: torch counts the hooks that are registered.
    idle._forward_pre_hooks[0] = hook
    idle._forward_pre_hooks_with_kwargs[0] = True
    idle._forward_hooks[0] = hook
    hooked_s = _median_s(lambda: idle(None))
    booked_s = budget.own_s / REPEATS
    budget.own_s = 0.0
    entered_s = _median_s(hide(enter)) - budget.own_s / REPEATS
    return Overhead(max(hooked_s - bare_s - booked_s, 0.0), AFTER_BACKWARD * max(entered_s, 0.0))


def _median_s(function: Callable[[], Any]) -> float:
    tensor = torch.ones(32, 32, device="cpu", dtype=torch.float32)
    took = []
    for _ in range(REPEATS):
        work_as_programs_do(tensor)
        begun = time.perf_counter()
        function()
        took.append(time.perf_counter() - begun)
    return median(took)


def work_as_programs_do(tensor: Tensor) -> None:
    """Some 60 us of operations that draw nothing."""
    with torch.no_grad():
        (tensor @ tensor).tanh().softmax(-1).log().mean().add_(tensor.std())
        ordered = nn.functional.layer_norm(tensor, (32,)).cumsum(0).sort().values
        ordered.mul_(0.5).add_(tensor).addcmul_(tensor, tensor).sqrt_()
