"""Values that are not finite: the first-bad report, and closer attention to the steps that follow."""

import time
from collections.abc import Callable

from torch.optim import Optimizer

from tdbg.core.events import STOPPED, Step
from tdbg.core.guard import EndRun
from tdbg.core.observations.optimizer import NO_RATE
from tdbg.runtime.budget import Budget
from tdbg.runtime.compiler import hide_from_compiler
from tdbg.runtime.dispatcher import ProbeDispatcher
from tdbg.runtime.state import State
from tdbg.runtime.tensors import Bad

FOCUS_STEPS = 25
RATE_JUMP = 3.0
JUMP_REST_STEPS = 8 * FOCUS_STEPS


class StopBeforeUpdate(EndRun):
    """The user asked to end the run before a bad update."""

    def __init__(self) -> None:
        super().__init__(1)


class Attention:
    """After something that is worth it, every step is put on record for a while."""

    def __init__(self) -> None:
        self._steps = 0  # so many more steps are recorded in any case
        self._rate = 0.0  # the learning rate of the step before
        self._highest_rate = 0.0
        self._fell_to_nothing = False  # which is told once: some schedules come to 0 again and again
        self._jump_seen = 0  # no jump is told before this step

    def escalate(self) -> None:
        """Something is going on."""
        self._steps = FOCUS_STEPS

    @property
    def is_drawn(self) -> bool:
        """True if the steps that follow are to be recorded."""
        return self._steps > 0

    def next_step(self) -> bool:
        """True if the step that begins now is to be recorded in any case."""
        drawn, self._steps = self._steps > 0, max(self._steps - 1, 0)
        return drawn

    def rate_jumped(self, optimizer: Optimizer, step: int) -> bool:
        """True if the learning rate jumped, or fell to nothing: worth a record of this step and of each that follows."""
        rate = optimizer.param_groups[0].get("lr")
        if not isinstance(rate, float) or self.is_expected_rate(rate):
            return False
        self._rate = rate
        if step < self._jump_seen:
            return False
        self.escalate()
        self._jump_seen = step + JUMP_REST_STEPS  # a rate that swings all the time is no news
        return True

    @hide_from_compiler
    def forget_rate(self) -> None:
        """A rate that changes from step to step was not seen for some: the next is no jump."""
        self._rate = 0.0

    @hide_from_compiler
    def is_expected_rate(self, rate: object) -> bool:
        """True if a learning rate is no jump from the one before, and not the first that is next to nothing.

        The next is then compared with it.
        """
        if not isinstance(rate, float):
            return True
        if 0.0 < self._rate * RATE_JUMP < rate:
            return False
        if rate > self._highest_rate:
            self._highest_rate = rate
        elif rate < self._highest_rate * NO_RATE and not self._fell_to_nothing:
            self._fell_to_nothing = True
            return False
        self._rate = rate
        return True


class Alarm:
    """Has the probe ``first-bad`` make its report, and stops the run before the update if that was asked for."""

    def __init__(
        self,
        state: State,
        dispatcher: ProbeDispatcher,
        budget: Budget,
        attention: Attention,
        note: Callable[[str, str], None],
        *,
        stop_before_update: bool,
    ) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._budget = budget
        self._attention = attention
        self._note = note
        self._stops = stop_before_update

    def bad_loss(self, value: float) -> None:
        """The loss is not finite and no update has been made of it: the weights are as they were in forward."""
        self._ask_for_causes(self._state.step + 1)
        self._dispatch_report("report_loss", value)
        self._stop_if_asked()

    def bad_gradients(self, bad: list[tuple[str, Bad]]) -> None:
        """Gradients are not finite and the optimizer has not used them."""
        if not self._state.bad_seen:
            self._dispatcher.dispatch("gradients_bad")
        self._dispatch_report("report_gradients", bad)
        self._stop_if_asked()

    def bad_local(self, bad: list[tuple[str, Bad]]) -> None:
        """Gradients of this rank alone are not finite; no other rank had a part in them, no optimizer has used them."""
        if not self._state.bad_seen:
            self._dispatcher.dispatch("gradients_bad")
        self._dispatch_report("report_local", bad)
        self._stop_if_asked()

    def bad_late(self, names: list[str], record: Step | None, kind: str = "") -> None:
        """Values read one step late are not finite; the weights have been updated since."""
        if not names:
            self._ask_for_causes(record.step if record is not None else self._state.step)
        self._dispatch_report("report_late", names, record, kind)

    def _stop_if_asked(self) -> None:
        if self._stops:
            step = self._state.step + 1
            self._note(STOPPED, f"tdbg ended the run before the update of step {step}, as --stop-before-update asks")
            raise StopBeforeUpdate

    def _ask_for_causes(self, step: int) -> None:
        """Have probes say what made a loss bad, before the first-bad report tells of its consequences."""
        if self._state.bad_seen or self._state.rerunning:
            return
        begun = time.perf_counter()
        self._dispatcher.dispatch("loss_bad", step)
        seconds = time.perf_counter() - begun
        self._budget.report_s += seconds
        self._budget.exclude(seconds)

    def _dispatch_report(self, how: str, *args: object) -> None:
        if not self._state.bad_seen:
            self._attention.escalate()
        probe = self._dispatcher.find_probe("first-bad")
        if probe is None or self._state.rerunning:
            return
        begun = time.perf_counter()
        probe.guard.call_guarded(getattr(probe, how), *args)
        seconds = time.perf_counter() - begun
        self._budget.report_s += seconds
        self._budget.exclude(seconds)
