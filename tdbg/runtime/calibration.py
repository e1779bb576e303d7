"""What a hook costs besides the time tdbg sees inside it: torch's slower way of calling a module, and the way in and out.

Measured once a process, on a module of tdbg's own: nothing is registered, no random number is drawn, and nothing of the
program's is touched. After each call some of torch's operations run on a small tensor, as a program's own would, and
are timed with it: tdbg and the program evict each other from the nearest caches, so that an entry takes three times as
long as in a tight loop, and the code after it runs slower too.
"""

import math
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_registry

from tdbg.core.guard import Guard
from tdbg.runtime.alarm import Attention
from tdbg.runtime.budget import Budget
from tdbg.runtime.compiler import call_outside_compiler, hide_from_compiler
from tdbg.runtime.fast_path import FastPath
from tdbg.runtime.forward_calls import KeptCalls
from tdbg.runtime.last_loss import LastLoss
from tdbg.runtime.own_hooks import post_hooks_of, pre_hooks_of
from tdbg.runtime.root_modules import CallHook
from tdbg.runtime.state import State

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
SKIPPED_REPEATS = 5  # twice some 4 ms at the start of every rank
# The way there and back takes 35 to 40 us in a loop of half a millisecond, and 3 to 4 here: what is done once in 8 to 128 steps is
# in none of the caches, and costs what comes after it its place there. Measured as the two above.
REAL_TURN = 10.0
# Of one entry that is timed: a step that is only counted has four (two hooks, backward, clipping), which take 4 us
# together in such a loop. Here they would drown in the noise. A batch taken in one takes 2 us.
COUNTED_STEP, COUNTED_BATCH = 0.8, 0.4
NEVER = 1 << 40  # steps to count
PART = "calibration"


class Overhead(NamedTuple):
    """Seconds of one entry into tdbg that its own clock does not see."""

    call_s: float  # of a module with a hook before and one after it
    entry_s: float  # of a wrapper around one of torch's functions, or of an optimizer's hook
    skipped_s: float  # of a step on the fast path, where nothing is timed
    unchecked_s: float  # of one there that is only counted, without its batch
    turn_s: float  # of the way from a checked step to counted ones, and back


USUAL = Overhead(16e-6, 4.5e-6, 14e-6, 3.6e-6, 45e-6)


class _Idle(nn.Module):
    """A module that does nothing."""

    def forward(self, value: object) -> object:
        return value


Entry = tuple[Callable[[], object], Callable[[], object]]  # into tdbg: what is done without it, and with it


def _make_fast_path() -> FastPath:
    """One of a state of tdbg's own."""
    state = State()
    state.reset_state()
    path = FastPath(state, _do_nothing, _do_nothing, _do_nothing)
    path.reset_state(Attention(), KeptCalls(), LastLoss())
    return path


def _list_fast_entries(tensor: Tensor) -> list[Entry]:
    """The four entries of a step on the fast path, in order."""
    path = _make_fast_path()
    number = torch.ones((), device="cpu", dtype=torch.float32)

    def original(*args: object) -> Tensor:
        return number

    idle: Any = _IdleOptimizer()
    backward = path.around_backward(original, original)
    clip = path.around_clip(original, original, _do_nothing)
    path.start_skipping(sys.maxsize // 2, idle, math.inf, math.inf)
    return [
        (lambda: original(number), lambda: backward(number)),
        (lambda: original([tensor]), lambda: clip([tensor])),
        (lambda: None, lambda: path.counter.hook_before_update(idle, (), {})),
        (lambda: None, lambda: path.counter.hook_after_update(idle, (), {})),
    ]


def _list_turns() -> list[Entry]:
    """The way from a checked step to counted ones, and back."""
    counter = _make_fast_path().counter
    idle: Any = _IdleOptimizer()
    counter.start(idle, NEVER, math.inf)

    def turn() -> None:
        counter.stop()
        counter.start(idle, NEVER, math.inf)

    return [(lambda: None, turn)]


class _IdleOptimizer:
    """As much of an optimizer as the fast path reads."""

    def __init__(self) -> None:
        self.param_groups: list[dict[str, object]] = [{"lr": 0.1}]


def _do_nothing(*args: object) -> None:
    """Where the whole path would be."""


def measure_overhead() -> Overhead:
    """The overhead on this machine, measured once; a usual one where the program's own hooks would run meanwhile."""
    if any(getattr(module_registry, name, None) for name in CALL_HOOKS):
        return USUAL
    return Guard("calibration").call_guarded(_measure_once) or USUAL


@cache
def _measure_once() -> Overhead:
    """Takes about 11 ms."""
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

    took_s = partial(_took_s, tensor=tensor)

    def extra_s(plain: Callable[[], object], entered: Callable[[], object]) -> float:
        """Beyond what is booked."""
        took_s(entered)
        begun_s = budget.own_s
        extra = [_compare_times(took_s, plain, entered) for _ in range(REPEATS)]
        return max(median(extra) - (budget.own_s - begun_s) / REPEATS, 0.0)

    def list_extra_s(entries: list[Entry]) -> list[float]:
        """Of each entry, which books nothing."""
        extras = [[_compare_times(took_s, *pair) for pair in entries] for _ in range(SKIPPED_REPEATS)]
        return [max(median(extra), 0.0) for extra in zip(*extras, strict=True)]

    skipped_s = sum(list_extra_s(_list_fast_entries(tensor)))
    (turn_s,) = list_extra_s(_list_turns())
    entry_s = AFTER_BACKWARD * extra_s(lambda: None, hide_from_compiler(enter_hook))
    return Overhead(
        REAL_CALL * extra_s(lambda: idle(None), lambda: hooked(None)),
        entry_s,
        skipped_s,
        min(COUNTED_STEP * entry_s, skipped_s),
        REAL_TURN * turn_s,
    )


def _took_s(function: Callable[[], object], tensor: Tensor) -> float:
    begun = time.perf_counter()
    function()
    work_as_programs_do(tensor)
    return time.perf_counter() - begun


def _compare_times(
    took_s: Callable[[Callable[[], object]], float], plain: Callable[[], object], entered: Callable[[], object]
) -> float:
    """What entering takes. A core may change its speed at any time: compare with the times beside it."""
    before_s, entered_s = took_s(plain), took_s(entered)
    return entered_s - (before_s + took_s(plain)) / 2


def work_as_programs_do(tensor: Tensor) -> None:
    """Some 60 us of operations that draw nothing."""
    with torch.no_grad():
        (tensor @ tensor).tanh().softmax(-1).log().mean().add_(tensor.std())
        ordered = nn.functional.layer_norm(tensor, (32,)).cumsum(0).sort().values
        ordered.mul_(0.5).add_(tensor).addcmul_(tensor, tensor).sqrt_()
