"""Calls of root modules: those that are watched, those kept for a second run, and those that are evaluation."""

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn

from tdbg.core.events import Event, Step
from tdbg.runtime.budget import ALWAYS_STEPS, Budget
from tdbg.runtime.compiler import is_capturing
from tdbg.runtime.cost_reports import CostReports
from tdbg.runtime.criteria import is_criterion
from tdbg.runtime.device_losses import DeviceLosses
from tdbg.runtime.dispatcher import ProbeDispatcher
from tdbg.runtime.duty_cycle import DutyCycle
from tdbg.runtime.event_buffer import EventBuffer
from tdbg.runtime.module_sampler import ModuleSampler
from tdbg.runtime.plan import Plan
from tdbg.runtime.rerun import Call
from tdbg.runtime.root_search import RootSearch
from tdbg.runtime.state import State
from tdbg.runtime.step_record import Recorder
from tdbg.runtime.torch_compat import is_tracing

KEPT_CALLS = 8
MAX_UNUSED_CALLS = 4  # calls no backward has followed: inference with gradients on keeps no more


class KeptCalls:
    """The calls of the running step, held until the step is known to be good."""

    def __init__(self) -> None:
        self.late: list[Call] = []  # of the step whose values are on their way from a device
        self._calls: deque[Call] = deque(maxlen=KEPT_CALLS)
        self.unused = 0  # calls with gradients on since the last backward

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def add_call(self, call: Call) -> None:
        """Hold on to a call, but not to memory the program has let go of: of calls that would, to the last alone."""
        self.unused += 1
        if self.unused > MAX_UNUSED_CALLS:
            self._calls.clear()
        if self._calls and call.holds_memory():  # as the head of a model that is called in parts: the encoder's stays
            light = [one for one in self._calls if not one.holds_memory()]
            self._calls.clear()
            self._calls.extend(light)
        self._calls.append(call)

    def add_unwatched_call(
        self,
        module: nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, object] | None,
        *,
        random_state: bool = True,
    ) -> None:
        """Hold on to a call that nobody watches."""
        self.unused += 1
        if self.unused > MAX_UNUSED_CALLS:
            self._calls.clear()
        self._calls.append(Call.capture_lightweight(module, args, kwargs or {}, random_state=random_state))

    def glance_ended(self, module: nn.Module, output: object) -> None:
        """Of a call that nobody watches the outputs tell forward from loss, and their gradients repeat its backward."""
        if self._calls and torch.is_grad_enabled():
            call = self._calls[-1]
            if call.module() is module and not call.outputs and not call.output_grads:
                call.watch_outputs(output, on_device=False)

    def mark_used(self) -> None:
        """A backward follows the calls so far."""
        self.unused = 0

    def clear(self) -> None:
        """The step has ended, and nothing of it is pending."""
        self._calls.clear()
        self.unused = 0

    def retire_calls(self, *, pending: bool) -> None:
        """The step has ended; if values of it are pending, small calls stay until those have arrived."""
        self.late = [call for call in self._calls if call.is_small()] if pending else []
        for call in self.late:  # what it returned served a look before the update
            call.outputs.clear()
            call.output_grads.clear()
        self._calls.clear()

    @contextlib.contextmanager
    def restrict_to(self, calls: Iterable[Call]) -> Iterator[None]:
        """As if these were the calls of the step."""
        before, self._calls = self._calls, deque(calls, maxlen=KEPT_CALLS)
        try:
            yield
        finally:
            self._calls = before


class Evaluations:
    """Calls without gradients: each is a step of evaluation.

    due: brings changes into force that were asked for. first: called before the first one of a process that has not
    trained. first_after_training: of one that has.
    """

    def __init__(
        self,
        state: State,
        budget: Budget,
        costs: CostReports,
        event_buffer: EventBuffer,
        emit: Callable[[Event], None],
        due: Callable[[], None],
        first: Callable[[], None],
        first_after_training: Callable[[], None],
    ) -> None:
        self._state = state
        self._first = first
        self._first_after_training = first_after_training
        self._is_after_training = False
        self._budget = budget
        self._costs = costs
        self._event_buffer = event_buffer
        self._emit = emit
        self._due = due

    def on_call_start(self) -> None:
        """A call begins, watched or not."""
        state = self._state
        is_over = self._is_after_training and not state.wants_pass
        if (state.eval_calls and (is_over or not state.updates)) or _is_loader_worker():
            return
        if state.updates:  # a pass before the first step, as a check or a baseline, tells little of those to come
            self._is_after_training, state.wants_pass = True, False
            self._first_after_training()
        else:
            self._first()

    def record_watched_call(self, call: Call, seconds: float) -> None:
        """A call that was watched has returned: its record, if that can be afforded."""
        state = self._state
        state.eval_calls += 1
        if not self._event_buffer.is_rank:
            if _is_loader_worker():
                return
            self._event_buffer.become_rank()
        if not state.step:
            self._due()  # a program that only evaluates can be controlled as well
        if not self._budget.allows(("record",), time.perf_counter()) and state.eval_calls > ALWAYS_STEPS:
            return
        begun = time.perf_counter()
        self._emit(
            Step(
                t=time.time(),
                step=state.step or state.eval_calls,
                phase="eval",
                call=state.eval_calls,
                forward_ms=round(seconds * 1e3, 4),
                samples=call.samples,
            )
        )
        self._costs.report_if_due(begun)
        self._budget.record_cost("record", time.perf_counter() - begun)

    def count_unwatched_call(self, now: float) -> None:
        """A call that is only counted begins."""
        self._state.eval_calls += 1
        if self._event_buffer.is_rank:
            if not self._state.step:
                self._due()  # however long the budget pays for no look, a request is taken up
            self._costs.report_if_due(now)


class RootCalls:
    """Stands before and after every call of a hooked root: watches the outer one, where that is affordable.

    on_device: keep the gradients at a root's outputs on an accelerator as well, however large.
    """

    def __init__(
        self,
        state: State,
        plan: Plan,
        budget: Budget,
        recorder: Recorder,
        dispatcher: ProbeDispatcher,
        modules: ModuleSampler,
        search: RootSearch,
        kept: KeptCalls,
        evaluations: Evaluations,
        duty: DutyCycle,
        device_losses: DeviceLosses,
        *,
        on_device: bool,
    ) -> None:
        self._state = state
        self._plan = plan
        self._budget = budget
        self._recorder = recorder
        self._dispatcher = dispatcher
        self._modules = modules
        self._search = search
        self._kept = kept
        self._evaluations = evaluations
        self._duty = duty
        self._device_losses = device_losses
        self._on_device = on_device
        self._threads = _Threads()
        self._asked = False  # the call that runs is watched for a probe alone, which asked for it
        self._spent_s = 0.0  # on calls, before the step that is watched

    def on_call_start(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """A root is called: the hook before it."""
        state = self._state
        if state.rerunning or not state.active or is_tracing() or is_capturing():
            return
        trains = state.quiet and state.updates  # a window over an evaluation is ended by the first call that trains
        if torch.is_grad_enabled() and (trains or (self._plan.deaf and not self._dispatcher.subscribers["must_watch"])):
            return
        begun = time.perf_counter()
        try:
            if not self._threads.calls and is_criterion(module, args, kwargs or {}):
                return  # called beside the model, and no root
            self._device_losses.begin_forward(state.step + 1)
            if self._may_watch(module, begun):
                call = Call.capture_call(module, args, kwargs or {})
                if call is not None:
                    self._dispatcher.dispatch("call_begins", module, call)
                    if call.graded:
                        self._modules.begin_pass(module)
                    self._threads.calls.append((call, time.perf_counter()))
                    self._threads.raised = False
            elif torch.is_grad_enabled() and not self._threads.calls:
                self._kept.add_unwatched_call(module, args, kwargs)
        finally:
            self._budget.charge("call_begins", time.perf_counter() - begun, asked=self._asked)

    def keep_call(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """A root is called in a stretch in which calls are only kept: the hook before it."""
        state = self._state
        if state.rerunning or not state.active or is_tracing() or is_capturing():
            return
        begun = time.perf_counter()
        if not torch.is_grad_enabled():  # an evaluation pass begins, of which nothing is to be missed
            self._duty.evaluation_begins(begun)
            self.on_call_start(module, args, kwargs)
            return
        if not is_criterion(module, args, kwargs or {}):
            self._kept.add_unwatched_call(module, args, kwargs, random_state=False)
        self._budget.charge_fast("call_begins", time.perf_counter() - begun)

    def _may_watch(self, module: nn.Module, now: float) -> bool:
        """True if this call of a root is to be watched: an outer one, and affordable."""
        running = self._threads.calls
        if running:
            if running[-1][0].module() is not module:
                return False  # a root inside a root: the outer call counts
            running.clear()  # the same root again: its last call raised
        self._search.over = True
        if self._recorder.began_at == 0.0:
            self._recorder.began_at = now
        asked, affordable = self._dispatcher.must_watch(), self._may_afford(now)
        if torch.is_grad_enabled():
            self._duty.training_continues()
            if asked:
                self._asked = self._asked or not affordable  # by an earlier call of this step
                self._plan.watch, self._plan.deaf = True, 0
            return self._plan.watch
        self._evaluations.on_call_start()
        self._asked = asked and not affordable
        if not asked and not affordable:
            self._evaluations.count_unwatched_call(now)
            self._duty.call_glanced(now)
        return asked or affordable

    def _may_afford(self, now: float) -> bool:
        if torch.is_grad_enabled():
            return self._plan.watch
        state = self._state
        return not state.quiet and (state.eval_calls < ALWAYS_STEPS or self._budget.allows(("eval",), now))

    def on_call_end(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        """A root has returned: the hook after it."""
        begun = time.perf_counter()
        try:
            running = self._threads.calls
            if self._state.rerunning or not running or running[-1][0].module() is not module:
                if self._state.world_size > 1 and not running and not self._state.rerunning:
                    self._kept.glance_ended(module, output)
                return
            call, at = running.pop()
            if call.graded:
                self._modules.end_pass()
                self._recorder.samples += call.samples or 0
                self._recorder.forward_s += begun - at
                call.watch_outputs(output, on_device=self._on_device)
                self._kept.add_call(call)
            self._dispatcher.dispatch("call_ended", module, call, output)
            if not call.graded:
                self._evaluations.record_watched_call(call, begun - at)
                self._budget.record_cost("eval", 2 * (time.perf_counter() - begun))  # its beginning costs about as much
        finally:
            self._budget.charge("call_ended", time.perf_counter() - begun, asked=self._asked)
            self._asked = self._asked and torch.is_grad_enabled()

    def on_call_raised(self, module: nn.Module) -> None:
        """A root has raised: what was kept of its call must not stay in memory, where a smaller batch may be tried next."""
        running = self._threads.calls
        if self._state.rerunning or not running or running[-1][0].module() is not module:
            return
        call, _ = running.pop()
        self._threads.raised = True
        if call.graded:
            self._modules.give_up_pass(module)

    @property
    def running(self) -> bool:
        """True while a watched call runs in this thread, and after one that raised until the program goes on."""
        return bool(self._threads.calls) or self._threads.raised

    def drop_running(self) -> None:
        """A backward begins: a root that raised never returned; it must not hide the calls after it."""
        self._threads.calls.clear()
        self._threads.raised = False

    def watch_from_here(self) -> None:
        """The running step is watched although it was not to be: what its calls cost counts from now on."""
        self._spent_s = self._spent_on_calls_s()

    def end_step(self) -> None:
        """The step has ended: learn what watching its calls has cost."""
        if self._plan.watch:
            spent_s = self._spent_on_calls_s()
            self._budget.record_cost("watch", spent_s - self._spent_s)
            self._spent_s = spent_s
        self._asked = False
        self.drop_running()

    def _spent_on_calls_s(self) -> float:
        return self._budget.by_part["call_begins"] + self._budget.by_part["call_ended"]


class _Threads(threading.local):
    """The root calls that run now, by thread: inference may go on beside training."""

    def __init__(self) -> None:
        self.calls: list[tuple[Call, float]] = []
        self.raised = False  # the last watched call has


def _is_loader_worker() -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
