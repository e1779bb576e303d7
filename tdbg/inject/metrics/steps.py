"""What step records say as metrics: their keys and units, and the passes of evaluation between them."""

from dataclasses import dataclass
from typing import Any

from tdbg.core.events import Step, as_float

MAX_GROUPS = 32
MAX_OTHERS = 8
APART_STEPS = 2  # passes closer to each other are part of training: a teacher, a critic, a target
FIGURES = (  # field of the record, key
    ("loader_ms", "pipeline/loader_ms"),
    ("forward_ms", "pipeline/forward_ms"),
    ("backward_ms", "pipeline/backward_ms"),
    ("optimizer_ms", "pipeline/optimizer_ms"),
    ("step_ms", "pipeline/step_ms"),
    ("host_mb", "pipeline/host_mb"),
    ("device_mb", "pipeline/device_mb"),
    ("device_peak_mb", "pipeline/device_peak_mb"),
)
RATES = tuple(f"lr/group{number}" for number in range(MAX_GROUPS))
UNITS = {key: key.rpartition("_")[2] for _, key in FIGURES} | {
    "pipeline/samples_per_sec": "per_sec",
    "val/avg_samples_per_sec": "per_sec",
    "val/epoch_duration_sec": "sec",
}


def values_of(record: Step) -> dict[str, float]:
    """The numbers of one training step. Cost: about 2 us."""
    values: dict[str, Any] = {}
    if record.loss is not None:
        values["train/loss"] = as_float(record.loss)
    if record.grad_norm is not None:
        values["train/grad_norm"] = as_float(record.grad_norm)
    values.update(zip(RATES, record.lr, strict=False))
    for number, loss in enumerate(record.other_losses[:MAX_OTHERS], start=1):
        values[f"loss/other{number}"] = as_float(loss)
    if record.scale is not None:
        values["train/loss_scale"] = as_float(record.scale)
        values["train/skipped"] = int(record.skipped)
    for name, key in FIGURES:
        value = getattr(record, name)
        if value is not None:
            values[key] = value
    if record.samples and record.step_ms:
        values["pipeline/samples_per_sec"] = round(record.samples / record.step_ms * 1e3, 3)
    return values


@dataclass(slots=True)
class Pass:
    """Calls of the model without gradients, with no training between them."""

    step: int  # training steps done before it
    epoch: int | None
    begun_at: float
    before: int  # calls before it, in the whole run
    ended_at: float = 0.0
    last: int = 0  # number of the last call that was looked at
    seen: int = 0
    samples: int = 0
    calls: int = 0  # how many there were, looked at or not; known at its end

    def add_call(self, record: Step) -> None:
        """One call of it was looked at."""
        self.ended_at = record.t
        self.last = record.call or 0
        self.seen += 1
        self.samples += record.samples or 0

    def end_pass(self, calls: int) -> "Pass":
        """It is over. calls: those up to now, in the whole run."""
        self.calls = calls - self.before
        return self

    def compute_metrics(self) -> dict[str, float]:
        """What is known of it.

        Where calls at its end were not looked at, the duration is that of the others, in proportion.
        """
        values: dict[str, float] = {"val/calls": self.calls}
        reached = self.last - self.before
        if reached <= 0 or self.calls <= 0:
            return values
        seconds = (self.ended_at - self.begun_at) * self.calls / reached
        values["val/epoch_duration_sec"] = round(seconds, 6)
        if self.seen == self.calls and self.samples:
            values["val/samples"] = self.samples
            if seconds > 0:
                values["val/avg_samples_per_sec"] = round(self.samples / seconds, 3)
        return values


class Passes:
    """Finds the passes of evaluation in the records of a process.

    One is told once training has gone on for two steps without another: calls in every step are part of training.
    """

    def __init__(self) -> None:
        self._now: Pass | None = None
        self._total = 0  # calls up to the last training record
        self._crowded = False  # the pass before came the step before

    def record_eval_call(self, record: Step, trained: int, epoch: int | None) -> Pass | None:
        """A call without gradients. Returns the pass before, if that was one. trained: training steps done."""
        now, ended = self._now, None
        call = max(record.call or 1, 1)
        if now is not None and now.step != trained:
            apart = trained - now.step >= APART_STEPS
            ended = now.end_pass(call - 1) if apart and not self._crowded else None
            self._crowded = not apart
            now = None
        if now is None:
            begun = record.t - (record.forward_ms or 0.0) / 1e3
            now = self._now = Pass(trained, epoch, begun, min(self._total, call - 1))
        now.add_call(record)
        return ended

    def record_train_step(self, step: int, calls: int) -> Pass | None:
        """A training step was recorded. Returns the pass that this makes sure of. calls: those up to now."""
        self._total = calls
        now = self._now
        if now is None or step - now.step < APART_STEPS:
            return None
        self._now = None
        crowded, self._crowded = self._crowded, False
        return None if crowded else now.end_pass(calls)

    def end_last_pass(self, calls: int) -> Pass | None:
        """The process ends: the last pass, if it was one."""
        now, self._now = self._now, None
        return None if now is None or self._crowded else now.end_pass(calls)
