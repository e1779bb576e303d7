"""What a hook costs besides the time tdbg sees inside it: torch's slower way of calling a module, and the way in and out.

Measured once a process, on a module of tdbg's own: nothing is registered, no random number is drawn, and nothing of the
program's is touched. After each call some of torch's operations run on a small tensor, as a program's own would, and
are timed with it: tdbg and the program evict each other from the nearest caches, so that an entry takes three times as
long as in a tight loop, and the code after it runs slower too.
"""

import time
from collections.abc import Callable
from functools import cache
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_registry

from tdbg.core.guard import Guard
from tdbg.runtime.budget import Budget
from tdbg.runtime.compiler import call_outside_compiler, hide_from_compiler
from tdbg.runtime.own_hooks import post_hooks_of, pre_hooks_of
from tdbg.runtime.root_modules import CallHook

# Hooks of torch's for the calls of all modules: those of the program would run on tdbg's module too.
CALL_HOOKS = (
    *("_global_forward_pre_hooks", "_global_forward_hooks"),
    *("_global_backward_pre_hooks", "_global_backward_hooks"),
)
REPEATS = 21
# A watched call runs more of tdbg's code than the hook that is measured here (16 us against 10), and backward drives out
# more than the operations here (4.5 us an entry against 3.4), but would start autograd's engine, which no process that
# forks later is to have. Both were measured in blocks with and without tdbg's hooks, in turn.
REAL_CALL, AFTER_BACKWARD = 1.6, 1.3
# A step on the fast path is four entries that read two numbers from tensors and find the caches cold: 12 us where an
# entry takes 1.3 us. Measured over whole programs of 19,200 steps of 0.3 ms with and without tdbg, in turn; blocks of
# 40 steps inside one program give 10 us.
SKIPPED_STEP = 9.0
PART = "calibration"


class Overhead(NamedTuple):
    """Seconds of one entry into tdbg that its own clock does not see."""

    call_s: float  # of a module with a hook before and one after it
    entry_s: float  # of a wrapper around one of torch's functions, or of an optimizer's hook

    @property
    def skipped_s(self) -> float:
        """Seconds that a step on the fast path costs; nothing there is timed."""
        return SKIPPED_STEP * self.entry_s


USUAL = Overhead(16e-6, 4.5e-6)


class _Idle(nn.Module):
    """A module that does nothing."""

    def forward(self, value: object) -> object:
        return value


def measure_overhead() -> Overhead:
    """The overhead on this machine, measured once; a usual one where the program's own hooks would run meanwhile."""
    if any(getattr(module_registry, name, None) for name in CALL_HOOKS):
        return USUAL
    return Guard("calibration").call_guarded(_measure_once) or USUAL


@cache
def _measure_once() -> Overhead:
    """Takes about 5 ms."""
    budget, guard = Budget(0.0, 0.0), Guard("calibration")

    def charge_empty_call(*args: object) -> None:
        begun = time.perf_counter()
        budget.charge(PART, time.perf_counter() - begun)

    def enter_hook() -> None:
        call_outside_compiler(guard.call_guarded, charge_empty_call)

    idle, hooked = _Idle(), _Idle()
    hook = CallHook(guard)
    hook.target = charge_empty_call
    # Into the tables themselves: torch counts the hooks that are registered.
    before, with_kwargs = pre_hooks_of(hooked)
    before[0], with_kwargs[0], post_hooks_of(hooked)[0] = hook, True, hook
    tensor = torch.ones(32, 32, device="cpu", dtype=torch.float32)

    def took_s(function: Callable[[], object]) -> float:
        begun = time.perf_counter()
        function()
        work_as_programs_do(tensor)
        return time.perf_counter() - begun

    def extra_s(plain: Callable[[], object], entered: Callable[[], object]) -> float:
        """Beyond what is booked. A core may change its speed at any time: compare with the times beside it."""
        took_s(entered)
        extra, begun_s = [], budget.own_s
        for _ in range(REPEATS):
            before_s, entered_s = took_s(plain), took_s(entered)
            extra.append(entered_s - (before_s + took_s(plain)) / 2)
        return max(median(extra) - (budget.own_s - begun_s) / REPEATS, 0.0)

    return Overhead(
        REAL_CALL * extra_s(lambda: idle(None), lambda: hooked(None)),
        AFTER_BACKWARD * extra_s(lambda: None, hide_from_compiler(enter_hook)),
    )


def work_as_programs_do(tensor: Tensor) -> None:
    """Some 60 us of operations that draw nothing."""
    with torch.no_grad():
        (tensor @ tensor).tanh().softmax(-1).log().mean().add_(tensor.std())
        ordered = nn.functional.layer_norm(tensor, (32,)).cumsum(0).sort().values
        ordered.mul_(0.5).add_(tensor).addcmul_(tensor, tensor).sqrt_()
