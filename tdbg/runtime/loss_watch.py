"""The loss on its way into backward: looked at while the weights are still those of the forward pass."""

import cmath
import math
import time
from collections.abc import Callable
from typing import Any, cast

from torch import Tensor

from tdbg.core.events import Step, number
from tdbg.runtime import tensors
from tdbg.runtime.alarm import Alarm
from tdbg.runtime.budget import Budget
from tdbg.runtime.device_losses import DeviceLosses, can_copy
from tdbg.runtime.dispatcher import ProbeDispatcher
from tdbg.runtime.duty_cycle import DutyCycle
from tdbg.runtime.forward_calls import KeptCalls, RootCalls
from tdbg.runtime.last_loss import LastLoss
from tdbg.runtime.plan import Plan
from tdbg.runtime.root_search import RootSearch
from tdbg.runtime.state import State
from tdbg.runtime.step_record import Recorder


class LossWatch:
    """Stands around every backward. A loss on the host is read at once; one on a CUDA device before the update.

    Where the device is too far behind for that, and on other accelerators, it is read a step late.

    at_once: read every loss before its backward, whatever it waits for (``--stop-before-update``).
    finish_pending: has what waits of the step before read and judged.
    """

    def __init__(
        self,
        state: State,
        plan: Plan,
        budget: Budget,
        recorder: Recorder,
        dispatcher: ProbeDispatcher,
        search: RootSearch,
        kept: KeptCalls,
        calls: RootCalls,
        alarm: Alarm,
        duty: DutyCycle,
        device_losses: DeviceLosses,
        finish_pending: Callable[[], None],
        *,
        at_once: bool,
    ) -> None:
        self._state = state
        self._plan = plan
        self._budget = budget
        self._recorder = recorder
        self._dispatcher = dispatcher
        self._search = search
        self._kept = kept
        self._calls = calls
        self._alarm = alarm
        self._duty = duty
        self._device_losses = device_losses
        self._finish_pending = finish_pending
        self._at_once = at_once
        self.last = LastLoss()
        self._in_closure: int | None = None  # the number of the update whose closure has sent its first loss backward
        self._evaluated = False  # a closure has computed its loss once
        self._begun_at = 0.0

    def check_loss_cheaply(self, losses: Any) -> bool:
        """Between samples only one thing is done: a host loss is checked. True if there is no more to do.

        That is never left out, but while a profiler records: a rank that sees its own loss turn bad knows the step,
        and that it is the one.
        """
        state = self._state
        if self._duty.is_away:
            if not self._duty.for_calls:
                return self.check_loss_finite(losses)
            self._duty.training_continues()
        self._keep_last(losses)
        if state.quiet:
            return True
        begun = time.perf_counter()
        self._kept.mark_used()
        fine = True
        try:
            single = isinstance(losses, Tensor) and losses.numel() == 1 and not tensors.has_no_data(losses)
            if single and tensors.on_host(losses):
                value = losses.item()
                fine = cmath.isfinite(value) and (self._plan.deaf > 0 or not self._is_suspicious(value))
                if fine:
                    state.attended = state.step + 1
            elif single and not self._plan.deaf:
                self._send_from_device(self._loss_of(losses))
        finally:
            self._state.glances += 1
            self._budget.charge("backward_begins", time.perf_counter() - begun)
        return fine

    def check_loss_finite(self, losses: object) -> bool:
        """Between samples, in a stretch that is hardly watched: as `check_loss_cheaply`, with the loss's finite check alone."""
        begun = time.perf_counter()
        self._kept.mark_used()
        fine = True
        try:
            if type(losses) is Tensor and losses.is_cpu and losses.numel() == 1:  # a subclass may have no data
                value = losses.item()
                fine = value - value == 0.0 and not self._is_suspicious(value)  # NaN and Inf less themselves are NaN
                if fine:
                    self._state.attended = self._state.step + 1
                if self._state.in_update is None and not self._state.scaling and not isinstance(value, complex):
                    self.last.add_value(value)
                else:
                    self._keep_last(losses)
            else:
                self._keep_last(losses)
        finally:
            self._state.glances += 1
            self._budget.charge_fast("backward_begins", time.perf_counter() - begun)
        return fine

    def _keep_last(self, losses: Any) -> None:
        """In every step, whatever is looked at. A closure's further evaluations are not added."""
        updating = self._state.in_update is not None
        if self._state.quiet or (updating and self._in_closure == self._state.updates):
            return
        if not isinstance(losses, Tensor) and len(losses) == 1:
            (losses,) = losses
        if self._state.scaling:
            scaler = self._dispatcher.find_probe("loss-scaler")
            losses = scaler.find_unscaled_loss(losses) if scaler is not None else losses
        self.last.add_loss(losses)
        self._in_closure = self._state.updates if updating else None

    def _is_suspicious(self, loss: float) -> bool:
        """True if this loss is worth a record of its step, which then is watched from here on.

        The first of a step only: the others would make a record of a part of its losses.
        """
        suspects = self._state.suspects
        if suspects is None or self._state.glances or self._state.scaling or isinstance(loss, complex):
            return False
        triggers = self._dispatcher.find_probe("triggers")
        if not (triggers.guard.call_guarded(suspects, loss) if triggers is not None else suspects(loss)):
            return False
        self._plan.watch = self._plan.record = True
        self._recorder.began_at = 0.0  # nobody timed this step's beginning
        self._calls.watch_from_here()
        return True

    def on_backward_start(self, losses: object) -> None:
        """Backward is about to run in a step that is watched."""
        if self._plan.watch:  # else `check_loss_cheaply` has kept it
            self._keep_last(losses)
        begun = time.perf_counter()
        self._calls.drop_running()
        self._kept.mark_used()
        try:
            loss = self._loss_of(losses)
            if not self._search.over:
                self._search.search_roots()
            self._state.sent_backward = losses
            self._dispatcher.dispatch("backward_begins", loss)
            if loss is not None:
                self._record_loss(loss)
        finally:
            self._state.sent_backward = None
            self._begun_at = time.perf_counter()
            self._budget.charge("backward_begins", self._begun_at - begun)

    def on_backward_end(self) -> None:
        """Backward returned."""
        begun = time.perf_counter()
        self._recorder.backward_s += begun - self._begun_at
        if self._state.active:
            self._dispatcher.dispatch("backward_ended")
        self._budget.charge("backward_ended", time.perf_counter() - begun)

    def _loss_of(self, losses: Any) -> Tensor | None:
        found = losses
        if not isinstance(found, Tensor):
            items = list(found)
            found = items[0] if len(items) == 1 else None
        if not isinstance(found, Tensor) or found.numel() != 1 or found.is_complex() or tensors.has_no_data(found):
            return None
        if self._state.scaling:
            scaler = self._dispatcher.find_probe("loss-scaler")
            found = scaler.find_unscaled_loss(found) if scaler is not None else found
        return cast(Tensor, found).detach()

    def _record_loss(self, loss: Tensor) -> None:
        counted = not self._evaluated  # a closure's further evaluations are checked, not added
        self._evaluated = self._state.in_update is not None
        if not tensors.on_host(loss) and not self._at_once:
            self._recorder.add_loss(loss, counted=counted)
            self._send_from_device(loss)
            return
        value = float(loss)
        self._recorder.add_loss(value, counted=counted)
        if not math.isfinite(value):
            self._alarm.bad_loss(value)

    def _send_from_device(self, loss: Tensor | None) -> None:
        if loss is None or not can_copy(loss) or self._state.in_update is not None:
            return
        here = tensors.to_local_part(loss)
        if here.numel() == 1:
            self._device_losses.send_loss(here)

    def check_device_losses(self) -> None:
        """Clipping or an update begins, or the update is left out: the losses that have come from a device by now.

        Waiting for one is no cost of tdbg's: meanwhile the device works.
        """
        values = self._device_losses.receive_losses(self._state.step + 1)
        self._budget.exclude(self._device_losses.waited_s)
        for value in values:
            if not math.isfinite(value):
                self._finish_pending()  # gradients of the step before may have been bad already
                self._alarm.bad_loss(value)
                break
            self._state.attended = self._state.step + 1

    def on_late_losses(self, values: list[float], record: Step | None) -> None:
        """The losses of the step before, read from a device."""
        total = sum(values)
        if record is not None:
            record.loss = number(total)
        if not math.isfinite(total):
            if record is not None:
                record.finite = False
            self._alarm.bad_late([], record)

    def reset_closure(self) -> None:
        """An update begins or has ended: the next loss is the first of its closure, or of no closure."""
        self._evaluated = False

    def reset_glances(self) -> None:
        """The step has ended."""
        self._state.glances = 0
        self._device_losses.end_step()
