"""The fast path of steps too short for more: compare the loss with a bound, count the update, and skip the rest."""

import math
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tdbg.probes.alarm import Attention
from tdbg.probes.calls import KEPT_CALLS, KeptCalls
from tdbg.probes.compiler import hide
from tdbg.probes.criteria import is_criterion
from tdbg.probes.last_loss import LastLoss
from tdbg.probes.state import State


class FastPath:
    """Decides at each entry into tdbg whether the rest of it can be skipped; one step in 32 takes the whole path.

    Every hook and wrapper asks here first, and returns at once on True. Anything unusual (a loss that is not finite or
    above the bound, a jump of the learning rate, another optimizer) leaves the fast path and returns False. Nothing here
    may raise, wait or call much: at 0.3 ms a step every call of a function shows.

    steps_left: steps that may still be skipped; 0 outside of stretches.
    """

    __slots__ = (
        "_attention",
        "_calls",
        "_kept",
        "_last",
        "_loss_bound",
        "_main",
        "_rate",
        "_skipped",
        "_state",
        "steps_left",
    )

    def __init__(self, state: State, attention: Attention, kept: KeptCalls, last: LastLoss) -> None:
        self._state = state
        self._attention = attention
        self._kept = kept
        self._last = last
        self._main: Callable[[], Optimizer | None] = lambda: None
        self._calls: list[tuple[nn.Module, Any, Any]] = []  # of the running step
        self._loss_bound = -math.inf
        self._rate: Any = None
        self._skipped = 0
        self.steps_left = 0

    def enter(self, steps: int, optimizer: Optimizer, loss_bound: float) -> None:
        """Skip this many steps of the main optimizer. loss_bound: no trigger fires for a loss up to it."""
        self._main = weakref.ref(optimizer)
        self._rate = optimizer.param_groups[0].get("lr")
        self._loss_bound = loss_bound
        self.steps_left = steps

    def leave(self) -> None:
        """Take the whole path from here on, with the calls of the running step at hand."""
        self.steps_left = 0
        calls, self._calls = self._calls, []
        for module, args, kwargs in calls:
            if not is_criterion(module, args, kwargs or {}):
                self._kept.used()
                self._kept.glance(module, args, kwargs, random_state=False)

    def take_skipped(self) -> int:
        """Return the number of steps skipped since the last call."""
        skipped, self._skipped = self._skipped, 0
        return skipped

    @property
    def has_calls(self) -> bool:
        """True if a root module was called in the running step, which may still be skipped."""
        return bool(self._calls)

    @hide
    def skip_call(self, module: nn.Module, args: Any, kwargs: Any) -> bool:
        """Before a call of a root module: hold its arguments until the update, to re-run it if the loss is bad."""
        if not self.steps_left:
            return False
        if len(self._calls) == KEPT_CALLS or not torch.is_grad_enabled():
            self.leave()
            return False
        self._calls.append((module, args, kwargs))
        return True

    @hide
    def skip_loss(self, losses: Any) -> bool:
        """Before backward."""
        state = self._state
        try:
            single = type(losses) is Tensor and losses.is_cpu and losses.numel() == 1
            if single and not state.scaling and state.in_update is None:
                value = losses.item()
                if -math.inf < value <= self._loss_bound:
                    state.glances += 1
                    state.attended = state.step + 1  # up to here the weights were good
                    self._last.add_value(value)
                    return True
        except Exception:  # guard: a loss that shows no value, or one that has no order
            pass
        self.leave()
        return False

    @hide
    def skip_clipping(self, total: Any) -> bool:
        """After clipping. total: the gradients' norm before it."""
        try:
            return type(total) is Tensor and total.is_cpu and math.isfinite(total.item())
        except Exception:  # guard: a tensor that shows no value
            return False

    @hide
    def skip_update_begin(self, optimizer: Any) -> bool:
        """Before an optimizer's step."""
        state = self._state
        main = self._main()
        if optimizer is main and state.in_update is None:
            state.in_update, state.update_thread = optimizer, get_ident()
            return True
        if optimizer is not main and main is not None and state.in_update is main:
            return True  # inside the step of one that wraps it
        self.leave()
        return False

    @hide
    def skip_update_end(self, optimizer: Any) -> bool:
        """After an optimizer's step."""
        state = self._state
        if state.in_update is None or optimizer is not state.in_update:
            if state.in_update is not None and state.in_update is self._main():
                state.updates += 1
                return True
            self.leave()
            return False
        try:
            rate = optimizer.param_groups[0].get("lr")
            if rate is not self._rate:
                if not self._attention.expects(rate):
                    self.leave()
                    return False
                self._rate = rate
        except Exception:  # guard: groups that the program has made into something else
            self.leave()
            return False
        state.in_update = None
        state.updates += 1
        state.step += 1
        state.glances = 0
        self._skipped += 1
        self.steps_left -= 1
        if self._calls:
            self._calls.clear()
        self._last.end_step(state.step)
        return True
