"""The fast path of steps too short for more: compare the loss with a bound, count the update, and skip the rest."""

import math
import sys
import time
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tdbg.core.frames import drop_own_frames
from tdbg.core.guard import Guard, belongs_to_program
from tdbg.runtime.alarm import Attention
from tdbg.runtime.compiler import call_outside_compiler, hide_from_compiler, trace_as_nothing
from tdbg.runtime.criteria import is_criterion
from tdbg.runtime.forward_calls import KEPT_CALLS, KeptCalls
from tdbg.runtime.last_loss import MAX_PARTS, LastLoss, is_small_loss
from tdbg.runtime.state import State
from tdbg.runtime.torch_compat import active_modes, count_dispatch_modes, count_function_modes, unseen_by_subclasses

is_compiling = torch.compiler.is_compiling
HIGHEST = sys.float_info.max  # neither NaN nor an infinity is within
LOWEST = -HIGHEST
CLOCK_STEPS = 8  # so many steps are skipped from one look at the clock to the next; a power of two


class FastPath:
    """Decides at each entry into tdbg whether the rest of it can be skipped; every 33rd step
    takes the whole path, or one every 0.1 s where that is rarer.

    Every hook and wrapper asks here first. Anything unusual (a loss that is not finite or above the bound, a jump of the
    learning rate, another optimizer) leaves the fast path. At 0.3 ms a step every call of a function shows, so nothing
    here may raise, wait or call much, and the optimizers' hooks are methods of this class. For the same reason its
    blocks stand in ``try``, which costs nothing, and not in `guarded`, which costs two calls.

    before_update, after_update: the whole path at an optimizer's step.
    steps_left: steps that may still be skipped; 0 outside of stretches. thread: the one whose steps they are.
    """

    __slots__ = (
        "_after_update",
        "_attention",
        "_before_update",
        "_calls",
        "_failed",
        "_guard",
        "_kept",
        "_last",
        "_loss_bound",
        "_losses",
        "_main_id",
        "_rate",
        "_skipped",
        "_state",
        "_unchecked",
        "_unchecked_bits",
        "_until",
        "steps_left",
        "thread",
    )

    def __init__(
        self,
        state: State,
        before_update: Callable[[Optimizer], None],
        after_update: Callable[[Optimizer], None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._state = state
        self._failed = failed
        self._guard = Guard("fast-path", self._give_up)
        self._before_update, self._after_update = before_update, after_update
        self._main_id = 0
        self._loss_bound = -math.inf
        self._rate: Any = None
        self._until = 0.0
        self._unchecked_bits = 0  # steps_left has one of them in a step whose losses are not checked
        self.thread = 0

    def reset_state(self, attention: Attention, kept: KeptCalls, last: LastLoss) -> None:
        """Start anew, in a process in which nothing was seen yet."""
        self._attention = attention
        self._kept = kept
        self._last = last
        # of the running step
        self._calls: list[tuple[weakref.ref[nn.Module], tuple[object, ...], dict[str, object]]] = []
        self._losses: list[Tensor | float] = []  # of the running step
        self._skipped = 0
        self._unchecked = 0  # losses that were sent backward
        self.steps_left = 0

    def start_skipping(
        self, steps: int, optimizer: Optimizer, loss_bound: float, until: float, check_every: int = 1
    ) -> None:
        """Skip this many steps of the main optimizer, rounded up to a multiple of ``check_every``.

        loss_bound: no trigger fires for a loss up to it. until: a time. check_every: a power of two; losses and norms of
        clipped gradients are checked in the first of so many steps.
        """
        if not self._guard.on:
            return
        self._main_id = id(optimizer)
        self._rate = optimizer.param_groups[0].get("lr")
        self._loss_bound = min(loss_bound, HIGHEST)
        self._until = until
        self.thread = get_ident()
        self._unchecked_bits = check_every - 1
        self.steps_left = -(-steps // check_every) * check_every

    @unseen_by_subclasses
    def stop_skipping(self) -> None:
        """Take the whole path from here on, with the calls and losses of the running step at hand."""
        self.steps_left = 0
        losses, self._losses = self._losses, []
        if losses:
            self._state.glances += len(losses)
            if type(losses[-1]) is float:
                self._state.attended = self._state.step + 1  # up to here the weights were good
            self._last.running += losses
        calls, self._calls = self._calls, []
        for held, args, kwargs in calls:
            module = held()
            if module is not None and not is_criterion(module, args, kwargs or {}):
                self._kept.mark_used()
                self._kept.add_unwatched_call(module, args, kwargs, random_state=False)

    def _give_up(self, part: str, error: BaseException) -> None:
        """Report what `stop_skipping` raised, and skip nothing any longer."""
        self.steps_left, self._losses, self._calls = 0, [], []
        self._failed(part, error)

    @property
    def is_taken_elsewhere(self) -> bool:
        """True while another thread skips its steps."""
        return self.steps_left > 0 and get_ident() != self.thread and time.perf_counter() < self._until

    def take_skipped(self) -> tuple[int, int]:
        """Return how many steps were skipped since the last call, and how many losses were not checked."""
        taken = self._skipped, self._unchecked
        self._skipped = self._unchecked = 0
        return taken

    @property
    def has_calls(self) -> bool:
        """True if a root module was called in the running step, which may still be skipped."""
        return bool(self._calls)

    @hide_from_compiler
    def hold_call_for_rerun(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Before a call of a root module: hold its arguments until the update, to re-run it if the loss is bad."""
        if self.steps_left <= 0 or self._state.rerunning or get_ident() != self.thread:
            return False
        if len(self._calls) >= KEPT_CALLS or not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            self.stop_skipping()  # how autocast stands is known now, and no longer at the loss
            return False
        self._calls.append((weakref.ref(module), args, kwargs))
        return True

    def around_backward(
        self, original: Callable[..., object], whole_path: Callable[..., object]
    ) -> Callable[..., object]:
        """Return `torch.autograd.backward` that checks the loss here while steps are skipped, else by ``whole_path``."""
        state = self._state

        def backward(tensors: Any, *args: object, **kwargs: object) -> object:
            try:
                if self.steps_left & self._unchecked_bits and get_ident() == self.thread:
                    self._unchecked += 1
                    return original(tensors, *args, **kwargs)
                if not is_compiling() and self.steps_left > 0 and get_ident() == self.thread:
                    try:
                        loss: Tensor | float
                        if (not (count_dispatch_modes() or count_function_modes()) or active_modes() is None) and (
                            type(tensors) is Tensor
                            and not state.scaling
                            and state.in_update is None
                            and len(self._losses) < MAX_PARTS
                        ):
                            if tensors.is_cpu:
                                loss = tensors.item()
                                is_usual = LOWEST <= loss <= self._loss_bound
                            else:  # whose value nobody waits for; held for the end of the run
                                loss = tensors.detach()
                                is_usual = tensors.is_cuda and self._loss_bound == HIGHEST and is_small_loss(loss)
                        else:
                            is_usual = False
                    except BaseException as error:  # a loss that shows no value, or one that has no order
                        if belongs_to_program(error):
                            raise
                        is_usual = False
                    if is_usual:
                        self._losses.append(loss)
                        return original(tensors, *args, **kwargs)
                    call_outside_compiler(self._guard.call_guarded, self.stop_skipping)
                return whole_path(tensors, *args, **kwargs)
            except BaseException as error:
                drop_own_frames(error)
                raise

        return hide_from_compiler(backward)

    def around_clip(
        self,
        original: Callable[..., object],
        whole_path: Callable[..., object],
        glance: Callable[[list[Tensor], object], None],
    ) -> Callable[..., object]:
        """Return `clip_grad_norm_` that checks the norm here while steps are skipped, else by ``whole_path``.

        glance: called with the parameters and a norm that is not finite, or cannot be read.
        """

        def clip_grad_norm_(parameters: Any, *args: object, **kwargs: object) -> object:
            try:
                if self.steps_left & self._unchecked_bits and get_ident() == self.thread:
                    return original(parameters, *args, **kwargs)
                if is_compiling() or self.steps_left <= 0 or get_ident() != self.thread:
                    return whole_path(parameters, *args, **kwargs)
                if type(parameters) is not list and not isinstance(parameters, Tensor):
                    parameters = list(parameters)
                total = original(parameters, *args, **kwargs)
                try:
                    is_usual = (
                        (not (count_dispatch_modes() or count_function_modes()) or active_modes() is None)
                        and type(total) is Tensor
                        and total.is_cpu
                        and LOWEST <= total.item() <= HIGHEST
                    )
                except BaseException as error:  # a tensor that shows no value
                    if belongs_to_program(error):
                        raise
                    is_usual = False
                if not is_usual:
                    call_outside_compiler(
                        self._guard.call_guarded, self.stop_skipping
                    )  # the report of bad gradients runs the step's calls again
                    glance(parameters if type(parameters) is list else [parameters], total)
                return total
            except BaseException as error:
                drop_own_frames(error)
                raise

        return hide_from_compiler(clip_grad_norm_)

    @trace_as_nothing
    def hook_before_update(self, optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """The hook before each step of any optimizer."""
        if self.steps_left & self._unchecked_bits and get_ident() == self.thread:
            state = self._state
            if state.in_update is None and id(optimizer) == self._main_id:
                state.in_update = optimizer
                return
        if not is_compiling() and self.steps_left > 0 and get_ident() == self.thread:
            state = self._state
            if state.in_update is None and id(optimizer) == self._main_id:
                state.in_update = optimizer
                return
            if id(state.in_update) == self._main_id:
                return  # inside the step of one that wraps it
            call_outside_compiler(self._guard.call_guarded, self.stop_skipping)
        self._before_update(optimizer)

    @trace_as_nothing
    def hook_after_update(self, optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """The hook after each step of any optimizer."""
        if self.steps_left & self._unchecked_bits and get_ident() == self.thread:
            state = self._state
            if optimizer is state.in_update:  # its learning rate is checked with the next loss
                state.in_update = None
                state.updates += 1
                state.step += 1
                self._skipped += 1
                self.steps_left -= 1
                return
        if not is_compiling() and self.steps_left > 0 and get_ident() == self.thread:
            state = self._state
            if state.in_update is None or optimizer is not state.in_update:
                if id(state.in_update) == self._main_id:
                    state.updates += 1
                    return
                call_outside_compiler(self._guard.call_guarded, self.stop_skipping)
            else:
                try:
                    rate = optimizer.param_groups[0].get("lr")
                    usual = rate is self._rate or self._attention.is_expected_rate(rate)
                    usual = usual and (self.steps_left % CLOCK_STEPS > 0 or time.perf_counter() < self._until)
                except BaseException as error:  # groups that the program has made into something else
                    if belongs_to_program(error):
                        raise
                    usual = False
                if usual:
                    self._rate = rate
                    state.in_update = None
                    state.updates += 1
                    state.step = step = state.step + 1
                    self._skipped += 1
                    self.steps_left -= 1
                    if self._losses:
                        last = self._last
                        last.step, last.done, self._losses = step, self._losses, []
                        if type(last.done[-1]) is float:
                            state.attended = step
                            last.recent.append(last.done)
                    if self._calls:
                        self._calls.clear()
                    return
                call_outside_compiler(self._guard.call_guarded, self.stop_skipping)
        self._after_update(optimizer)
