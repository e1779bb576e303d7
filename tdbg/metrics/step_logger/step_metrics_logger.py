"""The step logger: ties a run's state, schedule, metric names and sinks together, step by step."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tdbg.core.errors import TdbgError
from tdbg.core.output import print_messages
from tdbg.metrics.keys import Key, build_key, core_alias
from tdbg.metrics.rows.row import COUNT_0, FILE, MOST_NAMED, Row
from tdbg.metrics.sinks.base import MetricSink
from tdbg.metrics.sinks.by_name import plain_sinks
from tdbg.metrics.sinks.console import ConsoleSink
from tdbg.metrics.sinks.fan_out import FanOut
from tdbg.metrics.sinks.jsonl import JsonlSink
from tdbg.metrics.step_logger import default_dir
from tdbg.metrics.step_logger.averaging import AveragingWindow
from tdbg.metrics.step_logger.early_stop import Reason
from tdbg.metrics.step_logger.final_results import BEST, final_results, is_best
from tdbg.metrics.step_logger.ops_schedule import OpsSchedule
from tdbg.metrics.step_logger.run_config import plain_config
from tdbg.metrics.step_logger.shutdown import SHUTDOWN
from tdbg.metrics.step_logger.throughput import ThroughputMeter
from tdbg.metrics.tracker.last_values import lr_dict
from tdbg.metrics.tracker.metric_values import as_count, as_float
from tdbg.metrics.tracker.metrics_tracker import MetricsTracker
from tdbg.metrics.tracker.phase import Slot

VERSION = 1
Epoch = int | float | None
P = ParamSpec("P")
T = TypeVar("T")


def _defer_signals(call: Callable[P, T]) -> Callable[P, T]:
    """A signal to end the process waits until the call is done."""

    @wraps(call)
    def call_uninterrupted(*args: P.args, **kwargs: P.kwargs) -> T:
        SHUTDOWN.begin_write()
        try:
            return call(*args, **kwargs)
        finally:
            SHUTDOWN.end_write()

    return call_uninterrupted


class StepMetricsLogger:
    """Writes a run's metrics when they are due: to the console on rank 0, to ``metrics.jsonl`` always, and to sinks.

    tracker: the state; a new one if left out. schedule: what is due when; the defaults of `OpsSchedule` if left out.
    sinks: further ones, such as ``WandbSink()``, or by name (csv, tensorboard, wandb); those that are not for every rank
        are used on rank 0 alone. Files of theirs that nobody named lie in the folder of ``metrics.jsonl``.
    folder: where ``metrics.jsonl`` lies; the rank's of the run under `tdbg run`, else ``metrics/rank0000``.
    rank: read from the environment if left out. run: its name, for the header.
    config: what holds for the whole run: a mapping, a CfgNode of yacs, a namespace of argparse, ... (`run_config` adds
        what is known of data and model).
    core: whether chosen keys are copied under ``core/``. console: whether rank 0 prints.

    After each call ``stop`` holds the reason to end, or None, and ``level`` tdbg's level by the schedule, or None.
    Cost: about 15 us of the processor a step, 50 us where the step is written (five values, a warm cache).
    """

    def __init__(
        self,
        tracker: MetricsTracker | None = None,
        schedule: OpsSchedule | None = None,
        *,
        sinks: Iterable[MetricSink | str] = (),
        folder: Path | str | None = None,
        rank: int | None = None,
        run: str = "",
        config: object = None,
        console: bool = True,
        core: bool = True,
        on_trouble: Callable[[str], None] = print_messages,
    ) -> None:
        self.tracker = MetricsTracker() if tracker is None else tracker
        self.schedule = OpsSchedule() if schedule is None else schedule
        self.rank = _current_rank() if rank is None else rank
        self.core = core
        place = Path(folder) if folder is not None else default_dir.metrics_dir(self.rank)
        self.path = place / FILE
        jsonl = JsonlSink(self.path, run=run, rank=self.rank, on_trouble=on_trouble)
        made = [one if isinstance(one, MetricSink) else plain_sinks([one])[0] for one in sinks if one != jsonl.name]
        chosen = [one for one in made if self.rank == 0 or one.every_rank]
        self.sinks = FanOut([jsonl, *chosen], on_trouble)
        self.sinks.place(place.absolute())
        total = self.schedule.total_steps
        self.console = FanOut([ConsoleSink(total_steps=total)] if console and self.rank == 0 else [], on_trouble)
        is_off = self.schedule.interval("wandb").is_off  # what a flush then writes is a mean of all steps up to it
        self.window = AveragingWindow(renames=self.schedule.averages or is_off)
        self.step, self.epoch = 0, self.tracker.epoch
        self.stop: Reason | None = None
        self.level: str | None = None
        self._clock = ThroughputMeter(total)
        self._phase = "train"
        self._units: set[str] = set()
        self._static: set[str] = set()  # names of the static schedule that the sinks were told
        self._closed = False
        if config is not None:
            self.sinks.config(plain_config(config))
        SHUTDOWN.register(self)

    # each step

    @_defer_signals
    def log_step_metrics(
        self,
        values: Mapping[str, object],
        *,
        step: int,
        epoch: Epoch = None,
        samples: object = 1,
        phase: str = "train",
        tasks: Mapping[str, Mapping[str, object]] | None = None,
        lr: object = None,
    ) -> Reason | None:
        """Take a step's values, each step; print and write what is due. Returns the reason to end, or None.

        values: by metric (``loss``) or key (``loss/class``), means over ``samples``. tasks: task -> metric -> mean.
        lr: an optimizer, a scheduler or rates, for the rule min_lr and, when due, `log_learning_rates`.
        Raises MetricValueError for what is no number; then nothing of it is taken.
        """
        found = self._by_key(phase, values, tasks or {})
        count = as_count(samples, f"{phase} step")
        self._set_position(step, epoch, phase)
        self._clock.record_step(step, count)
        if self.schedule.due("step", step):
            self.window.add_step(found, count)
        if self.schedule.due("console", step):
            shown = {str(key): value for key, value in found.items()} | self._measure_throughput(phase, "console")
            self.console.write(self._make_row(shown, phase))
        if self.schedule.due("wandb", step):
            self._write_averages()
        if lr is not None and self.schedule.due("lr", step):
            self._write_store("lr", lr_dict(lr), step, epoch)
        return self._check_stop(found, phase, lr)

    def accumulate_metrics_for_wandb(
        self, values: Mapping[str, object], samples: int = 1, *, phase: str = "train"
    ) -> None:
        """Feed the averages that the next write to the sinks holds; `log_step_metrics` does it by itself."""
        self.window.add_step(self._by_key(phase, values, {}), as_count(samples, f"{phase} step"))

    def get_averaged_wandb_metrics(self) -> dict[str, float]:
        """The averages as they are now, by key; changes nothing."""
        return self.window.compute_means(core=self.core)

    @_defer_signals
    def log_learning_rates(self, source: object, *, step: int, epoch: Epoch = None) -> None:
        """When due: store and write the rate of each parameter group of an optimizer or scheduler."""
        if self.schedule.due("lr", step):
            self._write_store("lr", lr_dict(source), step, epoch)

    @_defer_signals
    def log_pipeline_metrics(self, values: Mapping[str, object], *, step: int, epoch: Epoch = None) -> None:
        """When due: store and write numbers of the data pipeline."""
        if self.schedule.due("pipeline", step):
            self._write_store("pipeline", values, step, epoch)

    @_defer_signals
    def log_gradnorm_metrics(self, values: Mapping[str, object], *, step: int, epoch: Epoch = None) -> None:
        """When due: store and write numbers of a GradNorm update; a mapping among them is by task."""
        if self.schedule.due("gradnorm", step):
            self._write_store("gradnorm", values, step, epoch)

    @_defer_signals
    def log_schedule_values(
        self,
        values: Mapping[str, object],
        *,
        step: int,
        epoch: Epoch = None,
        static: Mapping[str, object] | None = None,
    ) -> None:
        """At the first call and when due: store and write this step's values; static ones go to the run's config, once."""
        first = not self.tracker.stores["schedule"].history
        new = {name: value for name, value in (static or {}).items() if name not in self._static}
        if new:
            self._static.update(new)
            self.sinks.config({f"schedule/{name}": value for name, value in new.items()})
        if first or self.schedule.due("schedule_values", step):
            self._write_store("schedule", values, step, epoch)

    # each pass

    @_defer_signals
    def log_validation_summary(
        self, phase: str | None = None, *, step: int | None = None, epoch: Epoch = None
    ) -> Reason | None:
        """Write the finished pass of a phase, with the step and epoch it was finished at; look at early stopping.

        phase: the validation phase begun last, if left out. A pass without values is warned of.
        """
        return self._write_pass(phase or self.tracker.val_phase, step, epoch)

    @_defer_signals
    def log_epoch_summary(self, phase: str = "train", *, step: int | None = None, epoch: Epoch = None) -> Reason | None:
        """Write the finished epoch, and what is in the averages if their interval is in epochs."""
        found = self._write_pass(phase, step, epoch)
        interval = self.schedule.interval("wandb")
        held = self.tracker.phases.get(phase)
        done = (held.finished if held else 0) if self.epoch is None else int(self.epoch) + 1
        if interval.due_after_epoch(done):
            self._write_averages()
        return found

    @_defer_signals
    def log_final_results(self) -> dict[str, float]:
        """Write best and last of every phase that the tracker has; print a line of each metric; returns them."""
        self._write_averages()
        numbers, summary = final_results(self.tracker)
        bests = {key: value for key, value in numbers.items() if is_best(key)}
        if bests:  # the last values stand in the file already
            self._write_row(bests, None)
        if summary:
            self.sinks.summary(summary)
            self.console.summary(summary)
        return numbers

    # saving, ending

    def state_dict(self) -> dict[str, object]:
        """What a checkpoint needs beside the tracker's and the schedule's own state, as plain data."""
        return {
            "version": VERSION,
            "step": self.step,
            "epoch": self.epoch,
            "window": self.window.state_dict(),
            "sinks": self.sinks.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint: rows of later steps will be made again, and readers are told so.

        Raises TdbgError for a state that is not sound, and then changes nothing.
        """
        try:
            if state["version"] != VERSION:
                raise ValueError(f"version {state['version']!r} is not supported")
            step, epoch = int(state["step"]), state["epoch"]
            window, sinks = state["window"], dict(state["sinks"])
        except (KeyError, TypeError, ValueError) as error:
            raise TdbgError(f"the logger's saved state is invalid: {error!r}", "load another checkpoint") from None
        self.window.load_state_dict(window)
        self.step, self.epoch = step, epoch
        self.sinks.load_state_dict(sinks)
        self.sinks.resumed(step)

    @_defer_signals
    def flush(self) -> None:
        """Write the averages that are under way, and let every sink write what it holds."""
        self._write_averages()
        self.sinks.flush()

    def close(self) -> None:
        """Flush and close every sink; done by itself at exit, at an exception and at SIGTERM. May be called twice."""
        if not self._closed:
            self.flush()
            self._closed = True
            self.sinks.close()
            self.console.close()

    def __enter__(self) -> "StepMetricsLogger":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # the parts of these calls

    def _by_key(
        self, phase: str, values: Mapping[str, object], tasks: Mapping[str, Mapping[str, object]]
    ) -> dict[Key, float]:
        """Values by key. A name with a slash is a key already."""
        found = {
            (Key.parse(name) if "/" in name else build_key(phase, name)): as_float(value, name)
            for name, value in values.items()
        }
        for task, inner in tasks.items():
            for name, value in inner.items():
                found[Key(phase, name, task)] = as_float(value, f"{name}_{task}")
        return found

    def _set_position(self, step: int | None, epoch: Epoch, phase: str | None = None) -> None:
        """Say where the run is; what is left out is as the tracker was told, which may be further than the logger."""
        known = self.epoch if self.tracker.epoch is None else self.tracker.epoch
        self.step = max(self.step, self.tracker.step or 0) if step is None else step
        self.epoch = known if epoch is None else epoch
        self._phase = phase or self._phase
        self.tracker.step, self.tracker.epoch = self.step, self.epoch

    def _measure_throughput(self, phase: str, asker: str) -> dict[str, float]:
        return {f"{phase}/{name}": value for name, value in self._clock.compute_rates(asker).items()}

    def _make_row(self, values: Mapping[str, float], phase: str | None, text: Mapping[str, str] | None = None) -> Row:
        return Row(time.time(), self.step, self.epoch, phase, self.rank, dict(values), dict(text or {}))

    def _write_row(self, values: Mapping[str, float], phase: str | None, text: Mapping[str, str] | None = None) -> None:
        row = self._make_row(values, phase, text)
        row.units = self._new_units(values)
        self.sinks.write(row)

    def _new_units(self, keys: Iterable[str]) -> dict[str, str]:
        """The units of keys that are written for the first time, as far as the tracker knows them."""
        new = [key for key in keys if key not in self._units]
        self._units.update(new)
        return {key: unit for key in new if (unit := self._unit_of(key))}

    def _unit_of(self, text: str) -> str:
        """The unit of a metric, which its best, its averages and its copies share."""
        key = Key.parse(text)
        phase = self.tracker.phases.get(key.phase)
        for metric in (key.metric, key.metric.removeprefix(BEST)):
            held = phase.metrics.get(Slot(metric, key.task, key.subset)) if phase else None
            if unit := held.unit if held else self.tracker.units.get(metric, ""):
                return unit
        return ""

    def _write_averages(self) -> None:
        """Write the averages, if there are any. A window is emptied first: it is never written twice."""
        if self.window.steps:
            phase = self._phase
            self._write_row(self.window.flush(core=self.core) | self._measure_throughput(phase, "sinks"), phase)

    def _write_store(self, name: str, values: Mapping[str, object], step: int, epoch: Epoch) -> None:
        self._set_position(step, epoch)
        store = self.tracker.stores[name]
        store.update(values, self.epoch, self.step)
        fresh = [key for key, (_, _, at) in store if at == self.step]
        numbers, texts = store.select_numbers(), store.select_texts()
        chosen = {str(key): numbers[key] for key in fresh if key in numbers}
        self._write_row(chosen, None, {str(key): texts[key] for key in fresh if key in texts})

    def _write_pass(self, phase: str, step: int | None, epoch: Epoch) -> Reason | None:
        self._set_position(step, epoch)
        held = self.tracker.phases.get(phase) or self.tracker.phase(phase)  # of a name that nobody has begun: an error
        if not held.snapshot and not held.strange:
            self.tracker._warn_once(f"the last pass of {phase!r} has no value to summarise", "was its loader empty?")
        if not held.metrics:
            return self.stop
        strange = dict.fromkeys(held.strange, math.nan)
        old = {*held.empty, *(str(core_alias(Key.parse(key))) for key in held.empty)}  # of an earlier pass
        known = self.tracker.get_wandb_metrics(phase, core=self.core)
        values = {key: as_float(value, key) for key, value in known.items() if key not in old} | strange
        unfed = ", ".join([key for key in held.empty if key not in strange][:MOST_NAMED])
        text = {f"{phase}/{COUNT_0}": unfed} if unfed else {}
        self._write_row(values, phase, text)
        self.console.write(self._make_row(values, phase, text))
        stop = self.schedule.early_stop
        if stop is not None:
            snapshot = {str(key): value for key, value in held.snapshot.items()} | strange
            self.stop = stop.check_metrics(snapshot, epoch=self.epoch, step=self.step)
        return self.stop

    def _check_stop(self, found: Mapping[Key, float], phase: str, lr: object) -> Reason | None:
        self.level = self.schedule.level_at(self.step)
        stop = self.schedule.early_stop
        if stop is not None:
            loss, norm = found.get(Key(phase, "loss")), found.get(Key(phase, "grad_norm"))
            rates = None if lr is None else lr_dict(lr)
            self.stop = stop.check_step(self.step, loss=loss, lr=rates, grad_norm=norm, epoch=self.epoch)
        return self.stop


def _current_rank() -> int:
    """The rank that the process group, or the launcher, tells."""
    import os
    import sys

    from tdbg.core.rundir import env_rank

    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return env_rank(os.environ) or 0
