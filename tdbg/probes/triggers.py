"""What happens when a condition over step records comes true: dump, look closer for a while, cool down."""

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdbg.core.conditions import Action, Condition, make_partial_step, parse_pairs
from tdbg.core.events import Step, Trigger, as_float
from tdbg.core.step_anomalies import LossSpike
from tdbg.probes import PROBES, Probe

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor

COOL_STEPS = 200  # in which the same trigger does not go off again
MAX_DUMPS = 3
ESCALATE_STEPS = 20
ONE_UP = {"basic": "advanced", "advanced": "extreme"}

SKIPS = 5  # GradScaler's skipped updates in a row;
START_STEPS = 20  # while the scale comes down from its first value,
START_SKIPS = 12  # so many


class SkipStreak:
    """GradScaler skips one update after the other."""

    def __init__(self) -> None:
        self.streak = 0

    def is_met(self, record: Step) -> bool:
        """See one record."""
        self.streak = max(self.streak + 1, record.skipped_in_a_row) if record.skipped else 0
        return self.streak >= (SKIPS if record.step > START_STEPS + SKIPS else START_SKIPS)


def not_finite(record: Step) -> bool:
    """True for a bad loss, and for bad gradients that the optimizer was given."""
    loss = as_float(record.loss)
    return (record.finite is False and not record.skipped) or (loss is not None and not math.isfinite(loss))


@dataclass(slots=True)
class _Fuse:
    """Lets a trigger go off once each time its condition comes true, and not again before it has cooled down."""

    armed: bool = True
    cool_at: int = 0

    def is_ready(self, step: int) -> bool:
        return self.armed and step >= self.cool_at

    def goes_off(self, true: bool, step: int) -> bool:
        if not true:
            self.armed = True
        if not (true and self.is_ready(step)):
            return False
        self.armed, self.cool_at = False, step + COOL_STEPS
        return True


@PROBES.add
class Triggers(Probe):
    """Looks closer when something happens: the user's conditions (--when), and three of its own.

    Reads:  step records: non-finite values, a loss spike (above twice the median and median + 8 MAD of the last 64),
            5 skipped updates in a row, and what --when says. Losses on the host count between records, too.
    Emits:  a Trigger event. Its own triggers dump the last step records, the history of tensors and the batch,
            at most three times a run, and raise the level by one for 20 steps; the same one rests for 200 steps.
            After a loss spike, five steps are recorded at the expense of the allowance, to tell a spike from a
            lasting jump.
            A user's does what --then says.
    Cost:   2 us a record, 1 to 5 us a condition more. A dump is booked as a report, apart from the budget.
    Limits: sees the steps that are on record; between them, where the loss is on the host, what the loss, the step's
            number and metrics alone make true. Each rank looks at its own records alone: a loss that spikes on
            one rank is looked at closer there. Nothing goes off while --measure-overhead measures.
    """

    name = "triggers"
    levels = ("basic", "advanced", "extreme")

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._users: list[tuple[Condition, Action, _Fuse]] = []
        self._dumps = 0
        self._reset_state()

    def _reset_state(self) -> None:
        self._spike, self._skips = LossSpike(), SkipStreak()
        self._fuses = {"non-finite": _Fuse(), "loss spike": _Fuse(), "skip streak": _Fuse()}
        self._dumped: tuple[int, str, str] = (0, "", "")  # step, dump, batch

    def attach(self) -> None:
        settings = self.monitor.settings
        if settings.baseline:
            self.on = False
            if settings.when:
                self.monitor.note("triggers-off", "--when: conditions are not evaluated while --measure-overhead runs")
            return
        self._users = [(condition, action, _Fuse()) for condition, action in parse_pairs(settings.when, settings.then)]
        self.monitor.suspects = self.should_trigger

    def detach(self) -> None:
        self.monitor.suspects = None
        super().detach()

    def loss_bound(self) -> float:
        """A loss up to this one makes no trigger go off."""
        return -math.inf if self._users else self._spike.compute_bound()

    def should_trigger(self, loss: float) -> bool:
        """True if a trigger will go off at the running step, of which no record was planned, for its loss alone."""
        step = self.monitor.step + 1
        if self._fuses["loss spike"].is_ready(step) and self._spike.is_outlier(loss):
            return True
        self._spike.observe_loss(loss)
        ready = [condition for condition, _, fuse in self._users if fuse.is_ready(step)]
        if not ready:
            return False
        record = make_partial_step(step, loss)
        return any(condition.would_be_met(record, self.monitor.metrics) for condition in ready)

    def record_written(self, record: Step) -> None:
        if not self.on:
            return
        own = (
            ("non-finite", not_finite(record)),
            ("loss spike", self._spike.is_met(record)),
            ("skip streak", self._skips.is_met(record)),
        )
        for name, true in own:
            if self._fuses[name].goes_off(true, record.step):
                self._own_goes_off(name, record)
        for condition, action, fuse in self._users:
            if fuse.goes_off(condition.is_met(record, self.monitor.metrics), record.step):
                values = condition.collect_values(record, self.monitor.metrics)
                self._goes_off(record, condition.text, values, action)

    def _own_goes_off(self, name: str, record: Step) -> None:
        up = "" if self.monitor.level_overrides.temporary else ONE_UP.get(self.monitor.settings.level, "")
        values: dict[str, Any] = {"loss": record.loss, "grad_norm": record.grad_norm}
        if name == "loss spike":
            values["median(loss)"] = self._spike.window.median * max(record.micro, 1)
            self.monitor.inspection.ask_for_repetition()
        if name == "skip streak":
            values = {"skipped in a row": self._skips.streak, "scale": record.scale}
        self._goes_off(record, name, values, Action("", level=up, for_steps=ESCALATE_STEPS if up else 0, dump=True))

    def _goes_off(self, record: Step, condition: str, values: dict[str, Any], action: Action) -> None:
        begun = time.perf_counter()
        event = Trigger(step=record.step, condition=condition, values=values, stop=action.stop)
        done = []
        if action.dump and self._write_dump(record, event):
            done.append("dump")
        if action.has_switches:
            done.append(self._switch_level(action))
        event.action = ", ".join([*done, *(["stop"] if action.stop else [])])
        self.monitor.emit(event)
        self.monitor.log_line(f"[{self.name}]", f"{condition} at step {record.step}: {event.action or 'noted'}", "W")
        seconds = time.perf_counter() - begun
        self.monitor.budget.report_s += seconds
        self.monitor.budget.exclude(seconds)

    def _switch_level(self, action: Action) -> str:
        self.monitor.level_overrides.queue(action.level, dict(action.flags), "trigger", action.for_steps)
        words = [f"level={action.level}"] if action.level else []
        words += [f"flag={name}" if value is True else f"flag={name}={value}" for name, value in action.flags.items()]
        return ", ".join(words) + (f" for {action.for_steps}" if action.for_steps else "")

    # the dump

    def _write_dump(self, record: Step, event: Trigger) -> bool:
        """Keep what led to this step; of several triggers in a step the first does."""
        if self._dumped[0] != record.step:
            if self._dumps >= MAX_DUMPS:
                return False
            self._dumps += 1
            kept = self.monitor.keep(f"trigger_step{record.step:08d}.json", self._build_dump(event))
            self._dumped = record.step, kept, self._save_batch(record)
        _, event.dump, event.batch = self._dumped
        return True

    def _build_dump(self, event: Trigger) -> dict[str, object]:
        stats = self.monitor.find_probe("tensor-stats")
        return {
            "step": event.step,
            "rank": self.monitor.rank,
            "condition": event.condition,
            "values": event.values,
            "level": self.monitor.settings.level,
            "records": self.monitor.recorder.list_rows(),
            "tensors": stats.collect_history() if stats is not None else [],
        }

    def _save_batch(self, record: Step) -> str:
        """Keep the step's batch, as far as it is still at hand and no report of a bad value has kept it."""
        monitor = self.monitor
        if record.finite is False and monitor.bad_seen:
            return ""
        late = record.step != monitor.step  # an accelerator's values come a step later: the batch is the one before
        calls = monitor.calls.late if late else monitor.calls
        loader = None if late else monitor.find_probe("loader-wait")
        parts: dict[str, Any] = {"inputs": [(call.args, call.kwargs) for call in calls]} if calls else {}
        if loader is not None and loader.batch is not None:
            parts["batch"] = loader.batch
        return monitor.save_batch(record.step, parts) if parts else ""

    def history_cleared(self) -> None:
        self._spike = LossSpike()
        for condition, _, _ in self._users:
            condition.reset_medians()

    def forked(self) -> None:
        self._dumps = 0
        self._reset_state()
        for condition, _, _ in self._users:
            condition.reset_medians()
