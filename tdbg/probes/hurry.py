"""What is left of tdbg in steps that are too short for more: a comparison at the loss, a count at the update."""

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


class Hurry:
    """Passes over most steps of a stretch; every so often, and where anything is unusual, one is looked at as a whole.

    Each of tdbg's entries asks here first. True means that there is no more to do; anything that is not plainly usual
    ends the hurry, and the entry goes its usual way. So nothing here may call much, raise, or wait: a process whose
    steps take 0.3 ms feels every call of a function.

    left: so many steps are still passed over; 0 outside of stretches.
    """

    __slots__ = ("_attention", "_bound", "_calls", "_kept", "_last", "_main", "_rate", "_state", "_taken", "left")

    def __init__(self, state: State, attention: Attention, kept: KeptCalls, last: LastLoss) -> None:
        self._state = state
        self._attention = attention
        self._kept = kept
        self._last = last
        self._main: Callable[[], Optimizer | None] = lambda: None
        self._calls: list[tuple[nn.Module, Any, Any]] = []  # of the running step
        self._bound = -math.inf
        self._rate: Any = None
        self._taken = 0
        self.left = 0

    def begin(self, steps: int, optimizer: Optimizer, bound: float) -> None:
        """Pass over so many steps of this optimizer. bound: a loss up to it stands out from nothing."""
        self._main = weakref.ref(optimizer)
        self._rate = optimizer.param_groups[0].get("lr")
        self._bound = bound
        self.left = steps

    def stop(self) -> None:
        """From here on every entry goes its usual way, with the calls of the running step at hand."""
        self.left = 0
        calls, self._calls = self._calls, []
        for module, args, kwargs in calls:
            if not is_criterion(module, args, kwargs or {}):
                self._kept.used()
                self._kept.glance(module, args, kwargs, random_state=False)

    def take_passed(self) -> int:
        """Steps that were passed over since this was last asked."""
        passed, self._taken = self._taken, 0
        return passed

    @property
    def has_calls(self) -> bool:
        """True if the model was called in the step that is passed over now."""
        return bool(self._calls)

    @hide
    def keeps(self, module: nn.Module, args: Any, kwargs: Any) -> bool:
        """A root is called: it is held until the update, for a second run."""
        if not self.left:
            return False
        if len(self._calls) == KEPT_CALLS or not torch.is_grad_enabled():
            self.stop()
            return False
        self._calls.append((module, args, kwargs))
        return True

    @hide
    def passes_loss(self, losses: Any) -> bool:
        """A loss is sent backward."""
        state = self._state
        try:
            single = type(losses) is Tensor and losses.is_cpu and losses.numel() == 1
            if single and not state.scaling and state.in_update is None:
                value = losses.item()
                if -math.inf < value <= self._bound:
                    state.glances += 1
                    state.attended = state.step + 1  # up to here the weights were good
                    self._last.add_value(value)
                    return True
        except Exception:  # guard: a loss that shows no value, or one that has no order
            pass
        self.stop()
        return False

    @hide
    def passes_norm(self, total: Any) -> bool:
        """Gradients have been clipped. total: their norm before."""
        try:
            return type(total) is Tensor and total.is_cpu and math.isfinite(total.item())
        except Exception:  # guard: a tensor that shows no value
            return False

    @hide
    def begins_update(self, optimizer: Any) -> bool:
        """An optimizer is about to step."""
        state = self._state
        main = self._main()
        if optimizer is main and state.in_update is None:
            state.in_update, state.update_thread = optimizer, get_ident()
            return True
        if optimizer is not main and main is not None and state.in_update is main:
            return True  # inside the step of one that wraps it
        self.stop()
        return False

    @hide
    def ends_update(self, optimizer: Any) -> bool:
        """An optimizer has stepped."""
        state = self._state
        if state.in_update is None or optimizer is not state.in_update:
            if state.in_update is not None and state.in_update is self._main():
                state.updates += 1
                return True
            self.stop()
            return False
        try:
            rate = optimizer.param_groups[0].get("lr")
            if rate is not self._rate:
                if not self._attention.expects(rate):
                    self.stop()
                    return False
                self._rate = rate
        except Exception:  # guard: groups that the program has made into something else
            self.stop()
            return False
        state.in_update = None
        state.updates += 1
        state.step += 1
        state.glances = 0
        self._taken += 1
        self.left -= 1
        if self._calls:
            self._calls.clear()
        self._last.end_step(state.step)
        return True
