"""The feed of a rank: what tdbg sees and what the program logs, as rows of its ``metrics.jsonl``."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdbg.core.events import Event, Metric, Plan, Step
from tdbg.core.guard import Guard
from tdbg.inject.metrics import steps
from tdbg.inject.metrics.dumps import Dumps
from tdbg.inject.metrics.printed_numbers import PrintedNumbers
from tdbg.inject.metrics.taps import Tap
from tdbg.inject.metrics.value_sorting import sort_values
from tdbg.metrics.rows.row import FILE, READ_FROM_TEXT, Row
from tdbg.metrics.sinks.fan_out import SENDING
from tdbg.metrics.sinks.jsonl import RowFile
from tdbg.metrics.step_logger import default_dir

if TYPE_CHECKING:
    from tdbg.inject.agent import Agent
    from tdbg.inject.metrics import RowSink
    from tdbg.runtime.monitor import Monitor

PART = "metrics"  # its name in the budget
SHARE = 0.25  # of the disk budget
LAST_BYTES = 500  # of it, for rows that say what was left out
FREE_ROWS = 100  # so many rows of what the program logs are kept whatever they cost
MAX_LATE = 1000  # device values on their way at a time
OWN_SOURCES = ("tdbg", "metric")  # what a program's own run does not hold anyway
STEPS_ALONE = ("transformers.Trainer",)  # its epochs mean nothing where max_steps is given


class Feed:
    """Writes the rows of one process: of events, which the monitor tells, and of what `tdbg.inject.metrics.taps` hear.

    Its cost belongs to tdbg's budget. What the program logs is kept as long as that alone fits into the budget: the
    records of steps make room for it. Nothing here raises; a part that fails is switched off and counted.
    """

    def __init__(self, me: "Agent", monitor: "Monitor") -> None:
        self.me, self.monitor = me, monitor
        self.is_off = False
        self.guard = Guard(PART, self._switch_off)
        self.own_run: RowSink | None = None  # the program's own run elsewhere, which tdbg's rows go into as well
        self.rehearses = False  # Lightning tries out the validation: nothing of it counts
        self._file: RowFile | None = None
        self.taps, self.dumps, self.printed = Tap(self), Dumps(self), PrintedNumbers(self)
        self._reset_state()
        me.at_fork(self._reset_state)
        default_dir.FOLDER.append(self._get_rank_folder)

    def _reset_state(self) -> None:
        self._lock = threading.RLock()  # a new one: the parent may have held it at the fork
        if self._file is not None:
            self._file.reset_after_fork()
        self._file = None
        self._passes = steps.Passes()
        self._pending: Row | None = None  # scalars that were logged one by one
        self._described_keys: set[str] = set()  # keys whose unit stands in the file
        self._heard = self._late = 0
        self._left_out: dict[str, int] = {}  # why -> rows that no row of the file has told of yet
        self._last_step = 0
        self.dumps.forked()
        self.printed.reset_after_fork()

    def _get_rank_folder(self) -> Path:
        """The rank's folder: loggers of the program write there too."""
        self.monitor.become_rank_now()
        return self.me.folder or Path()

    # what the monitor tells

    def record_event(self, event: Event) -> None:
        """Write what an event says; other kinds of events are none of its business."""
        if self.is_off or self.me.rank is None or self.rehearses:
            return
        self.guard.call_guarded(self._take_event, event)

    def _take_event(self, event: Event) -> None:
        if isinstance(event, Step):
            self._record_step(event)
        elif isinstance(event, Metric):
            key = event.name if "/" in event.name else f"metric/{event.name}"
            value = float(event.value)
            row = Row(event.t, event.step, self.monitor.epoch, values={key: value}, source="metric")
            self._write_after_pending(row)
            self.dumps.buffer_row(row)

    def _switch_off(self, part: str, error: BaseException) -> None:
        """The guard's report."""
        self.is_off = True
        self.me.record_failure(part, error)

    def _record_step(self, record: Step) -> None:
        monitor = self.monitor
        if record.phase == "train":
            over = self._passes.record_train_step(record.step, monitor.eval_calls)
        else:
            over = self._passes.record_eval_call(record, monitor.step, monitor.epoch)
        if over is not None:
            self._write_pass(over, record.t)
        if record.phase == "train":
            values = steps.values_of(record)
            if values:
                row = Row(record.t, record.step, record.epoch, "train", values=values, source="tdbg")
                self._write_after_pending(row)
                self.dumps.buffer_row(row, record.samples or 0)

    def _write_pass(self, over: steps.Pass, t: float) -> None:
        step = over.step if self.monitor.step else over.calls  # a program that only evaluates
        row = Row(t, step, over.epoch, "val", values=over.compute_metrics(), source="tdbg")
        self._write_after_pending(row)
        self.dumps.buffer_row(row)
        self.dumps.dump_validation_state(step)

    def record_plan(self, plan: Plan) -> None:
        """How far a trainer means to go, counted from the beginning of the process."""
        step, epoch = self.monitor.step, self.monitor.epoch
        values: dict[str, float] = {}
        if plan.steps is not None:
            values["schedule/planned_steps"] = step + plan.steps
        if plan.epochs is not None and plan.source not in STEPS_ALONE:
            done = epoch + 1 if step and epoch is not None else 0  # what was read before the first step was a try-out
            values["schedule/planned_epochs"] = done + plan.epochs
        if values and not self.is_off:
            self.record_own_row(Row(time.time(), step, epoch, values=values, source="tdbg"))

    # what the program logs

    @property
    def is_listening(self) -> bool:
        """False while tdbg is switched off or runs a batch of its own again, and while validation is tried out."""
        return not (self.is_off or self.rehearses or self.monitor.rerunning) and self.monitor.active

    def record_logged(
        self,
        source: str,
        data: Mapping[Any, object],
        *,
        own_step: int | None = None,
        epoch: float | None = None,
        phase: str | None = None,
        gather: bool = False,
        step: int | None = None,
    ) -> None:
        """Take what the program logged. own_step: the step it gave. gather: one scalar of several in a row of calls.

        step: the step when it was logged, if that is not now.
        """
        if not data or SENDING or not self._is_affordable():
            return
        found = sort_values(data)
        step = self.monitor.user_facing_step if step is None else step
        row = Row(time.time(), step, self.monitor.epoch if epoch is None else epoch, phase, source=source)
        row.values, row.text, row.own_step = found.values, found.text, own_step
        if found.late:
            self._queue_late_values(row, found.late)
        if row.values or row.text:
            self.monitor.when_rank(lambda: self._record_guarded(row, gather))

    def record_cost(self, seconds: float) -> None:
        """Count time that went into what the program logs."""
        budget = self.monitor.budget
        budget.record_cost(PART, seconds)
        budget.charge(PART, seconds)

    def _is_affordable(self) -> bool:
        """False where what the program logs would alone use up the budget: then a row is left out."""
        self._heard += 1
        budget = self.monitor.budget
        spent = budget.spent_on(PART)
        if self._heard <= FREE_ROWS or spent + budget.likely_s(PART) <= budget.earned_by_share_s(time.perf_counter()):
            return True
        self.leave_out("overhead")
        self.me.note_once(
            "metrics-left-out",
            "the program logs more often than the overhead budget allows: some of its values are not in metrics.jsonl",
        )
        return False

    def leave_out(self, why: str, count: int = 1) -> None:
        """Count rows that are not written; the next one tells of them."""
        with self._lock:
            self._left_out[why] = self._left_out.get(why, 0) + count

    def _queue_late_values(self, row: Row, late: list[tuple[str, Any]]) -> None:
        """Have values on a device come with the step's one copy, in a row of their own."""
        import torch

        if self._late + len(late) > MAX_LATE:
            self.leave_out("device")
            return
        self._late += len(late)
        keys = [key for key, _ in late]
        whole = torch.stack([value.reshape(()).float() for _, value in late])

        def record_late_values(values: list[float], record: Step | None) -> None:
            self._late -= len(keys)
            later = Row(row.t, row.step, row.epoch, row.phase, source=row.source, own_step=row.own_step)
            later.values = dict(zip(keys, values, strict=True))
            self.monitor.when_rank(lambda: self._record_guarded(later, False))

        self.monitor.read_late(whole, record_late_values)

    def record_own_row(self, row: Row) -> None:
        """Write a row of tdbg's own, as soon as this process is a rank."""
        self.monitor.when_rank(lambda: self._record_guarded(row, False))

    def _record_guarded(self, row: Row, gather: bool) -> None:
        """Write a row, or join it to the one that waits for more of its step."""
        self.guard.call_guarded(self._record_row, row, gather)  # it may be called as the process becomes a rank

    def _record_row(self, row: Row, gather: bool) -> None:
        if gather:
            self._merge_into_pending(row)
        else:
            self._write_after_pending(row)
        if row.source != READ_FROM_TEXT:  # a dump's state is exact
            self.dumps.buffer_row(row)

    def _merge_into_pending(self, row: Row) -> None:
        with self._lock:
            waiting = self._pending
            if waiting is not None and _is_mergeable(waiting, row):
                waiting.values |= row.values
                waiting.text |= row.text
                return
            self._pending = row
            if waiting is not None:
                self._write_row(waiting)

    # the file

    def _write_after_pending(self, row: Row) -> None:
        with self._lock:
            waiting, self._pending = self._pending, None
            if waiting is not None:
                self._write_row(waiting)
            self._write_row(row)

    def _write_row(self, row: Row) -> None:
        file = self._file or self._open_file()
        row.rank = self.me.rank or 0
        if row.source == "tdbg" and not row.values.keys() <= self._described_keys:
            row.units = {
                key: steps.UNITS[key] for key in row.values if key in steps.UNITS and key not in self._described_keys
            }
            self._described_keys.update(row.values)
        self._last_step = row.step
        if self.own_run is not None and row.source in OWN_SOURCES:
            self.own_run.add_row(row)
        row.left_out, before = self._left_out, file.written_bytes
        if file.write_row(row):
            self._left_out = {}
        else:
            self.leave_out("disk")
            if file.dropped == 1:  # at once: a killed process tells nothing later
                self._report_left_out()
        self.me.charge_disk(max(file.written_bytes - before, 0))

    def _report_left_out(self) -> None:
        """Write a row that says nothing but what was left out, though the budget be used up."""
        row = Row(time.time(), self._last_step, rank=self.me.rank or 0, source="tdbg", left_out=self._left_out)
        if self._file is not None and self._file.write_row(row, beyond_budget=True):
            self._left_out = {}

    def _open_file(self) -> RowFile:
        folder = self.me.folder
        assert folder is not None
        self._file = RowFile(
            lambda: folder / FILE,
            run=self.me.run_dir.name,
            rank=self.me.rank or 0,
            attempt=_parse_attempt(folder),
            budget_bytes=max(int(self.me.settings.disk_budget_bytes * SHARE) - LAST_BYTES, 1),
            on_trouble=lambda text: self.me.note_once("metrics-disk", text),
        )
        return self._file

    def flush_pending(self) -> None:
        """Write what waits for more of its step."""
        with self._lock:
            waiting, self._pending = self._pending, None
            if waiting is not None:
                self._write_row(waiting)

    def flush_at_exit(self) -> None:
        """The process leaves in good order."""
        if self.is_off or self.me.rank is None:
            return
        self.guard.call_guarded(self.printed.parse_waiting)
        over = self._passes.end_last_pass(self.monitor.eval_calls)
        if over is not None:
            self._write_pass(over, time.time())
        self.flush_pending()
        with self._lock:
            if self._left_out:
                self._report_left_out()

    def close(self) -> None:
        """The watch is over, and the process is not: nothing of the feed is left."""
        self.is_off = True
        self.taps.patches.restore()
        self.dumps.stop_listening()
        if self._get_rank_folder in default_dir.FOLDER:
            default_dir.FOLDER.remove(self._get_rank_folder)
        if self._file is not None:
            self._file.close()


def _is_mergeable(waiting: Row, row: Row) -> bool:
    """True if a scalar belongs to the row that waits: same step, and a key that is not there."""
    same = (waiting.step, waiting.own_step, waiting.source) == (row.step, row.own_step, row.source)
    return same and not (row.values.keys() & waiting.values.keys() or row.text.keys() & waiting.text.keys())


def _parse_attempt(folder: Path) -> int:
    number = folder.name.removeprefix("attempt")
    return int(number) if folder.name.startswith("attempt") and number.isdigit() else 0
