"""The end of a step's record: probes fill it in, late values complete it, then it is written."""

import time
from collections.abc import Callable

from torch import Tensor
from torch.optim import Optimizer

from tdbg.core.events import Event, Step
from tdbg.core.guard import guarded
from tdbg.runtime.budget import Budget
from tdbg.runtime.cost_reports import CostReports
from tdbg.runtime.deferred_reads import Then
from tdbg.runtime.dispatcher import ProbeDispatcher
from tdbg.runtime.listener import Listener
from tdbg.runtime.state import State
from tdbg.runtime.step_record import Recorder


class RecordWriter:
    """Writes what the recorder has gathered. late_loss: told of the losses that were read a step late."""

    def __init__(
        self,
        state: State,
        budget: Budget,
        recorder: Recorder,
        dispatcher: ProbeDispatcher,
        costs: CostReports,
        *,
        emit: Callable[[Event], None],
        late_loss: Then,
    ) -> None:
        self._state = state
        self._budget = budget
        self._recorder = recorder
        self._dispatcher = dispatcher
        self._costs = costs
        self._emit = emit
        self._late_loss = late_loss
        self._device_fails = guarded(
            "a device that failed gives no values", self._without_late_values, program_code=True
        )

    def build_record(self, optimizer: Optimizer, now: float, *, skipped: bool) -> None:
        """Make the record of the step that ends now; it is written at once, or when its late values are there."""
        begun = time.perf_counter()
        record = self._recorder.build_record(
            self._state.step, optimizer, now, skipped=skipped, late_loss=self._late_loss
        )
        if skipped:
            record.skipped_in_a_row = self._state.skipped_in_a_row
        self._dispatcher.dispatch("step_ended", record, optimizer)
        if record.checked == "all":
            self._state.sampled += 1
        self._recorder.finish_or_wait(record, self.write_record)
        waited_s, self._recorder.late.waited_s = self._recorder.late.waited_s, 0.0
        self._budget.exclude(waited_s)  # the device worked meanwhile
        self._costs.report_if_due(now)
        self._budget.record_cost("record", time.perf_counter() - begun - waited_s)

    def write_record(self, record: Step) -> None:
        """Write a complete record."""
        self._recorder.keep_record(record)
        self._dispatcher.dispatch("record_written", record)
        settled = record.step > self._state.bad_at  # of an accelerator the records before it may come after the report
        if settled and record.finite and record.checked == "all" and record.loss is not None:
            self._state.bad_seen = False  # it has recovered: a later fault is news again
        self._emit(record)

    def read_late(self, values: Tensor, then: Then) -> None:
        """Have a small device tensor read one step later, with all others in one copy."""
        self._recorder.late.request_read(values, lambda values, record: self._hand_over(then, values, record))

    def _hand_over(self, then: Then, values: list[float], record: Step | None) -> None:
        def report_failure(error: BaseException) -> None:
            owner = getattr(then, "probe", None)
            self._dispatcher.handle_failure(owner if isinstance(owner, Listener) else "late values", error)

        with guarded("as around every call of a probe; the others get their values", report_failure, program_code=True):
            then(values, record)

    def finish_pending(self) -> None:
        """Write the record that waits for its values, if there is one."""
        with self._device_fails:
            self._recorder.finish_pending(self.write_record)

    def _without_late_values(self, error: BaseException) -> None:
        self._dispatcher.handle_failure("late values", error)
