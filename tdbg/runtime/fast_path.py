"""The fast path of steps too short for more: compare the loss with a bound, count the update, and skip the rest."""

import inspect
import math
import sys
import time
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tdbg.core.frames import drop_own_frames
from tdbg.core.guard import Guard, belongs_to_program, guarded
from tdbg.runtime.alarm import Attention
from tdbg.runtime.code_places import TORCH
from tdbg.runtime.compiler import call_outside_compiler, hide_from_compiler, trace_as_nothing
from tdbg.runtime.criteria import is_criterion
from tdbg.runtime.forward_calls import KEPT_CALLS, KeptCalls
from tdbg.runtime.last_loss import MAX_PARTS, LastLoss, is_small_loss
from tdbg.runtime.state import State
from tdbg.runtime.torch_compat import (
    active_modes,
    count_dispatch_modes,
    count_function_modes,
    is_update_nested,
    unseen_by_subclasses,
)
from tdbg.runtime.update_counter import UpdateCounter

is_compiling = torch.compiler.is_compiling
HIGHEST = sys.float_info.max  # neither NaN nor an infinity is within
LOWEST = -HIGHEST
SPARE_PASSES = 4  # times the backward passes that are expected: then updates do not come
CLOCK_STEPS = 8  # so many steps are skipped from one look at the clock to the next; a power of two


class Skipped(NamedTuple):
    """Steps since the last time it was asked."""

    steps: int
    losses: int  # that were not checked: as many a step as the last checked one had
    counted: int  # how many of the steps were only counted
    stretches: int  # of counted steps


def has_same_arguments(original: Callable[..., object], wrapper: Callable[..., object]) -> bool:
    """True for a function of torch's own whose arguments and defaults are these.

    Handing them on by name takes a fraction of what ``*args`` and ``**kwargs`` take.
    """
    code = getattr(original, "__code__", None)
    if code is None or not code.co_filename.startswith(TORCH):
        return False
    theirs, ours = (inspect.signature(one).parameters.values() for one in (original, wrapper))
    return [(one.name, one.kind, one.default) for one in theirs] == [(one.name, one.kind, one.default) for one in ours]


@hide_from_compiler
def is_norm_error(error: BaseException) -> bool:
    """True for what `clip_grad_norm_` raises with ``error_if_nonfinite``; other errors (a device's) say nothing of the norm."""
    return type(error) is RuntimeError and "non-finite" in str(error)


class FastPath:
    """Decides at each entry into tdbg whether the rest of it can be skipped; as the `DutyCycle` plans it, a step takes the
    whole path now and then. Between two steps whose losses are checked the updates can be counted by `UpdateCounter`, and
    nothing else is seen of those steps.

    Every hook and wrapper asks here first; those of the optimizers ask the counter before. What is unusual in a step that
    is not just counted (a loss that is not finite or above the bound, a jump of the learning rate, another optimizer)
    leaves the fast path. At 0.3 ms a step every call of a function shows, so nothing here may raise, wait or call much.
    For the same reason its blocks stand in ``try``, which costs nothing, and not in `guarded`, which costs two calls.

    before_update, after_update: the whole path at an optimizer's step. counter: has the hooks of each step.
    steps_left: steps that may still be skipped; those that are counted come off it when the counting ends. 0 outside of
    stretches. thread: the one whose steps they are.
    is_counting: steps up to the next that is checked are only counted.
    """

    __slots__ = (
        "_after_update",
        "_attention",
        "_before_update",
        "_calls",
        "_counted",
        "_failed",
        "_guard",
        "_kept",
        "_last",
        "_loss_bound",
        "_losses",
        "_losses_per_step",
        "_main_id",
        "_passes_left",
        "_rate",
        "_rate_moves",
        "_skipped",
        "_state",
        "_stretches",
        "_unchecked",
        "_unchecked_bits",
        "_until",
        "counter",
        "is_counting",
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
        self.counter = UpdateCounter(
            state, self.hook_before_update, self.hook_after_update, self._end_counting, self._update_strangely
        )
        self.is_counting = False
        self.thread = 0

    def reset_state(self, attention: Attention, kept: KeptCalls, last: LastLoss) -> None:
        """Start anew, in a process in which nothing was seen yet."""
        self._passes_left = 0  # backward passes that are not looked at, while updates are counted
        if self.is_counting:  # in the process that this one was forked from
            self.counter.stop()
            self.is_counting = False
        self._attention = attention
        self._kept = kept
        self._last = last
        # of the running step
        self._calls: list[tuple[weakref.ref[nn.Module], tuple[object, ...], dict[str, object]]] = []
        self._losses: list[Tensor | float] = []  # of the running step
        self._losses_per_step, self._rate_moves = 0, False  # where steps are only counted
        self._skipped = 0
        self._unchecked = 0  # losses; of steps that were only counted, as many as the checked one had
        self._counted = self._stretches = 0
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

    @hide_from_compiler
    def _start_counting(self, optimizer: Optimizer, losses: int, rate_moves: bool) -> None:
        """The steps up to the next that is checked are only counted. losses: of a step."""
        if not self._guard.on:
            return
        try:
            self.is_counting, self._losses_per_step, self._rate_moves = True, losses, rate_moves
            steps = self.steps_left & self._unchecked_bits
            self._passes_left = SPARE_PASSES * (steps + 1) * (losses + 1)
            self.counter.start(optimizer, steps, self._until)
            if not self.is_counting:  # a signal's handler has ended it meanwhile
                self.counter.stop()
        except BaseException as error:
            self._stop_counting()
            if belongs_to_program(error):
                raise
            self._guard.handle_failure(error)

    @hide_from_compiler
    def _stop_counting(self) -> None:
        """End the counting, and book what was counted."""
        try:
            self._passes_left = 0
            steps = self.counter.stop()
            self.is_counting = False
            self._skipped += steps
            self._counted += steps
            self._stretches += steps > 0
            self._unchecked += steps * self._losses_per_step
            self.steps_left -= steps
            if steps and self._rate_moves:
                self._attention.forget_rate()
        except BaseException as error:
            if belongs_to_program(error):
                raise
            self._guard.handle_failure(error)

    @hide_from_compiler
    def _end_counting(self) -> None:
        """The last update was counted, or the time of the stretch is over: then the rest of it is not skipped."""
        self._stop_counting()
        if self.steps_left & self._unchecked_bits:
            call_outside_compiler(self._guard.call_guarded, self.stop_skipping)

    @hide_from_compiler
    def _update_strangely(self, optimizer: Optimizer) -> None:
        """While steps are counted another optimizer, or another thread, has made an update."""
        if get_ident() == self.thread:
            call_outside_compiler(self._guard.call_guarded, self.stop_skipping)
            self._before_update(optimizer)
        self._after_update(optimizer)

    @unseen_by_subclasses
    def stop_skipping(self) -> None:
        """Take the whole path from here on, with the calls and losses of the running step at hand."""
        if self.is_counting:
            self._stop_counting()
        self.steps_left = 0
        losses, self._losses = self._losses, []
        if losses:
            self._state.glances += len(losses)
            if type(losses[-1]) is float:
                self._state.attended = self._state.step + 1
            self._last.running += losses
        calls, self._calls = self._calls, []
        for held, args, kwargs in calls:
            module = held()
            if module is not None and not is_criterion(module, args, kwargs or {}):
                self._kept.mark_used()
                self._kept.add_unwatched_call(module, args, kwargs, random_state=False)

    def _give_up(self, part: str, error: BaseException) -> None:
        """Report what was raised here, and skip nothing any longer."""
        self.steps_left, self._losses, self._calls = 0, [], []
        self.is_counting, self._passes_left = False, 0
        with guarded("what failed may be this"):
            self.counter.stop()
        self._failed(part, error)

    @property
    def is_taken_elsewhere(self) -> bool:
        """True while another thread skips its steps."""
        return self.steps_left > 0 and get_ident() != self.thread and time.perf_counter() < self._until

    def take_skipped(self) -> Skipped:
        """Return what was skipped since the last call."""
        if self.is_counting:
            self._stop_counting()
        taken = Skipped(self._skipped, self._unchecked, self._counted, self._stretches)
        self._skipped = self._unchecked = self._counted = self._stretches = 0
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

        def is_usual_loss(tensors: Any) -> bool:
            """Check a loss, and keep its value for the step."""
            loss: Tensor | float
            try:
                if (
                    ((count_dispatch_modes() or count_function_modes()) and active_modes() is not None)
                    or type(tensors) is not Tensor
                    or state.scaling
                    or state.in_update is not None
                    or len(self._losses) >= MAX_PARTS
                ):
                    return False
                if tensors.is_cpu:
                    loss = tensors.item()
                    is_usual = LOWEST <= loss <= self._loss_bound
                else:  # whose value nobody waits for; held for the end of the run
                    loss = tensors.detach()
                    is_usual = tensors.is_cuda and self._loss_bound == HIGHEST and is_small_loss(loss)
            except BaseException as error:  # a loss that shows no value, or one that has no order
                if belongs_to_program(error):
                    raise
                return False
            if is_usual:
                self._losses.append(loss)
            return is_usual

        def is_skipped(tensors: Any) -> bool:
            """True where nothing more than the check of the loss is to be done."""
            if is_compiling() or self.steps_left <= 0 or get_ident() != self.thread:
                return False
            if self.is_counting:  # and updates do not come
                call_outside_compiler(self._guard.call_guarded, self.stop_skipping)
                return False
            if is_usual_loss(tensors):
                return True
            call_outside_compiler(self._guard.call_guarded, self.stop_skipping)
            return False

        hide_from_compiler(is_usual_loss)
        hide_from_compiler(is_skipped)

        def backward(
            tensors: Any,
            grad_tensors: Any = None,
            retain_graph: Any = None,
            create_graph: Any = False,
            grad_variables: Any = None,
            inputs: Any = None,
        ) -> object:
            try:
                if not is_compiling() and self._passes_left > 0:  # in this order: see compiler.py
                    self._passes_left -= 1
                    return original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
                if is_skipped(tensors):
                    return original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
                return whole_path(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
            except BaseException as error:
                drop_own_frames(error)
                raise

        def backward_of_any_kind(tensors: Any, *args: object, **kwargs: object) -> object:
            try:
                if not is_compiling() and self._passes_left > 0:  # in this order: see compiler.py
                    self._passes_left -= 1
                    return original(tensors, *args, **kwargs)
                if is_skipped(tensors):
                    return original(tensors, *args, **kwargs)
                return whole_path(tensors, *args, **kwargs)
            except BaseException as error:
                drop_own_frames(error)
                raise

        return hide_from_compiler(backward if has_same_arguments(original, backward) else backward_of_any_kind)

    def around_clip(
        self,
        original: Callable[..., object],
        whole_path: Callable[..., object],
        glance: Callable[[list[Tensor], object], None],
    ) -> Callable[..., object]:
        """Return `clip_grad_norm_` that checks the norm here while steps are skipped, else by ``whole_path``.

        glance: called with the parameters and a norm that is not finite, or cannot be read; where clipping raised because
        of the norm it is None, and in a counted step the parameters are not known.
        """

        def check_norm(parameters: list[Tensor], total: Any) -> None:
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
                glance(parameters, total)

        def clip_anyhow(parameters: Any, *args: object, **kwargs: object) -> object:
            if is_compiling() or self.steps_left <= 0 or get_ident() != self.thread:
                return whole_path(parameters, *args, **kwargs)
            if type(parameters) is not list and not isinstance(parameters, Tensor):
                parameters = list(parameters) or parameters  # torch warns of a generator that is used up
            listed = parameters if type(parameters) is list else [parameters]
            try:
                total = original(parameters, *args, **kwargs)
            except RuntimeError as error:
                if is_norm_error(error):
                    check_norm(listed, None)
                raise
            check_norm(listed, total)
            return total

        def report_counted(error: BaseException) -> None:
            if not is_compiling() and self.is_counting and is_norm_error(error):
                check_norm([], None)

        hide_from_compiler(check_norm)
        hide_from_compiler(clip_anyhow)
        hide_from_compiler(report_counted)

        def clip_grad_norm_(
            parameters: Any,
            max_norm: Any,
            norm_type: Any = 2.0,
            error_if_nonfinite: Any = False,
            foreach: Any = None,
        ) -> object:
            try:
                if not is_compiling() and self.is_counting:
                    return original(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
                return clip_anyhow(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
            except BaseException as error:
                report_counted(error)
                drop_own_frames(error)
                raise

        def clip_of_any_kind(parameters: Any, *args: object, **kwargs: object) -> object:
            try:
                if not is_compiling() and self.is_counting:
                    return original(parameters, *args, **kwargs)
                return clip_anyhow(parameters, *args, **kwargs)
            except BaseException as error:
                report_counted(error)
                drop_own_frames(error)
                raise

        return hide_from_compiler(
            clip_grad_norm_ if has_same_arguments(original, clip_grad_norm_) else clip_of_any_kind
        )

    @trace_as_nothing
    def hook_before_update(self, optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """The hook before each step of any optimizer that is not counted."""
        if not is_compiling() and self.steps_left > 0 and get_ident() == self.thread:
            state = self._state
            if state.in_update is None and id(optimizer) == self._main_id:
                state.in_update = optimizer
                return
            if id(state.in_update) == self._main_id and call_outside_compiler(is_update_nested):
                self._unchecked_bits = 0  # updates inside others cannot be counted after them
                return  # inside the step of one that wraps it
            call_outside_compiler(self._guard.call_guarded, self.stop_skipping)
        self._before_update(optimizer)

    @trace_as_nothing
    def hook_after_update(self, optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """The hook after each step of any optimizer that is not counted."""
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
                    is_same = rate is self._rate or (type(rate) is float and rate == self._rate)
                    usual = is_same or self._attention.is_expected_rate(rate)
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
                    losses = len(self._losses)
                    if losses:
                        last = self._last
                        last.step, last.done, self._losses = step, self._losses, []
                        if type(last.done[-1]) is float:
                            state.attended = step
                            last.recent.append((step, last.done))
                    if self._calls:
                        self._calls.clear()
                    if losses and self.steps_left & self._unchecked_bits:  # else only norms show a bad value
                        self._start_counting(optimizer, losses, not is_same)
                    return
                call_outside_compiler(self._guard.call_guarded, self.stop_skipping)
        self._after_update(optimizer)
