"""What a step logger writes, and how: rows stamped with step and epoch, averages, last values, units."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tdbg.metrics.keys import Key, core_alias, under
from tdbg.metrics.rows.row import COUNT_0, FILE, MOST_NAMED, Row
from tdbg.metrics.sinks.base import MetricSink
from tdbg.metrics.sinks.by_name import plain_sinks
from tdbg.metrics.sinks.console import ConsoleSink
from tdbg.metrics.sinks.fan_out import FanOut
from tdbg.metrics.sinks.jsonl import JsonlSink
from tdbg.metrics.step_logger import default_dir
from tdbg.metrics.step_logger.averaging import AveragingWindow
from tdbg.metrics.step_logger.early_stop import Reason
from tdbg.metrics.step_logger.final_results import BEST
from tdbg.metrics.step_logger.ops_schedule import OpsSchedule
from tdbg.metrics.step_logger.run_config import plain_config
from tdbg.metrics.step_logger.throughput import Clock
from tdbg.metrics.tracker.last_values import lr_dict
from tdbg.metrics.tracker.metric_values import as_float
from tdbg.metrics.tracker.metrics_tracker import MetricsTracker
from tdbg.metrics.tracker.phase import Slot

Epoch = int | float | None


class Writing:
    """The parts of a `StepMetricsLogger`, and what its calls have in common."""

    def __init__(
        self,
        tracker: MetricsTracker | None,
        schedule: OpsSchedule | None,
        sinks: Iterable[MetricSink | str],
        *,
        folder: Path | str | None,
        rank: int | None,
        run: str,
        config: Any,
        console: bool,
        core: bool,
        on_trouble: Callable[[str], None],
    ) -> None:
        self.tracker = MetricsTracker() if tracker is None else tracker
        self.schedule = OpsSchedule() if schedule is None else schedule
        self.rank = _rank() if rank is None else rank
        self.core = core
        place = Path(folder) if folder is not None else default_dir.folder(self.rank)
        self.path = place / FILE
        jsonl = JsonlSink(self.path, run=run, rank=self.rank, on_trouble=on_trouble)
        made = [one if isinstance(one, MetricSink) else plain_sinks([one])[0] for one in sinks if one != jsonl.name]
        chosen = [one for one in made if self.rank == 0 or one.every_rank]
        self.sinks = FanOut([jsonl, *chosen], on_trouble)
        self.sinks.place(place.absolute())
        total = self.schedule.total_steps
        self.console = FanOut([ConsoleSink(total_steps=total)] if console and self.rank == 0 else [], on_trouble)
        is_off = self.schedule.interval("wandb").off  # what a flush then writes is a mean of all steps up to it
        self.window = AveragingWindow(renames=self.schedule.averages or is_off)
        self.step, self.epoch = 0, self.tracker.epoch
        self.stop: Reason | None = None
        self.level: str | None = None
        self._clock = Clock(total)
        self._phase = "train"
        self._units: set[str] = set()
        self._static: set[str] = set()  # names of the static schedule that the sinks were told
        self._closed = False
        if config is not None:
            self.sinks.config(plain_config(config))

    def _keyed(self, phase: str, values: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any]]) -> dict[Key, float]:
        """Values by key. A name with a slash is a key already."""
        found = {
            (Key.parse(name) if "/" in name else under(phase, name)): as_float(value, name)
            for name, value in values.items()
        }
        for task, inner in tasks.items():
            for name, value in inner.items():
                found[Key(phase, name, task)] = as_float(value, f"{name}_{task}")
        return found

    def _move(self, step: int | None, epoch: Epoch, phase: str | None = None) -> None:
        """Say where the run is; what is left out is as the tracker was told, which may be further than the logger."""
        known = self.epoch if self.tracker.epoch is None else self.tracker.epoch
        self.step = max(self.step, self.tracker.step or 0) if step is None else step
        self.epoch = known if epoch is None else epoch
        self._phase = phase or self._phase
        self.tracker.step, self.tracker.epoch = self.step, self.epoch

    def _rates(self, phase: str, asker: str) -> dict[str, float]:
        return {f"{phase}/{name}": value for name, value in self._clock.rates(asker).items()}

    def _row(self, values: Mapping[str, float], phase: str | None, text: Mapping[str, str] | None = None) -> Row:
        return Row(time.time(), self.step, self.epoch, phase, self.rank, dict(values), dict(text or {}))

    def _write(self, values: Mapping[str, float], phase: str | None, text: Mapping[str, str] | None = None) -> None:
        row = self._row(values, phase, text)
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

    def _write_window(self) -> None:
        """Write the averages, if there are any. A window is emptied first: it is never written twice."""
        if self.window.steps:
            phase = self._phase
            self._write(self.window.flush(core=self.core) | self._rates(phase, "sinks"), phase)

    def _log_store(self, name: str, values: Mapping[str, Any], step: int, epoch: Epoch) -> None:
        self._move(step, epoch)
        store = self.tracker.stores[name]
        store.update(values, self.epoch, self.step)
        fresh = [key for key, (_, _, at) in store if at == self.step]
        numbers, texts = store.numbers(), store.texts()
        chosen = {str(key): numbers[key] for key in fresh if key in numbers}
        self._write(chosen, None, {str(key): texts[key] for key in fresh if key in texts})

    def _log_pass(self, phase: str, step: int | None, epoch: Epoch) -> Reason | None:
        self._move(step, epoch)
        held = self.tracker.phases.get(phase) or self.tracker.phase(phase)  # of a name that nobody has begun: an error
        if not held.snapshot and not held.strange:
            self.tracker._warn(f"the last pass of {phase!r} has no value to summarise", "was its loader empty?")
        if not held.metrics:
            return self.stop
        strange = dict.fromkeys(held.strange, math.nan)
        old = {*held.empty, *(str(core_alias(Key.parse(key))) for key in held.empty)}  # of an earlier pass
        known = self.tracker.get_wandb_metrics(phase, core=self.core)
        values = {key: as_float(value, key) for key, value in known.items() if key not in old} | strange
        unfed = ", ".join([key for key in held.empty if key not in strange][:MOST_NAMED])
        text = {f"{phase}/{COUNT_0}": unfed} if unfed else {}
        self._write(values, phase, text)
        self.console.write(self._row(values, phase, text))
        stop = self.schedule.early_stop
        if stop is not None:
            snapshot = {str(key): value for key, value in held.snapshot.items()} | strange
            self.stop = stop.check_metrics(snapshot, epoch=self.epoch, step=self.step)
        return self.stop

    def _judge(self, found: Mapping[Key, float], phase: str, lr: Any) -> Reason | None:
        self.level = self.schedule.level_at(self.step)
        stop = self.schedule.early_stop
        if stop is not None:
            loss, norm = found.get(Key(phase, "loss")), found.get(Key(phase, "grad_norm"))
            rates = None if lr is None else lr_dict(lr)
            self.stop = stop.check_step(self.step, loss=loss, lr=rates, grad_norm=norm, epoch=self.epoch)
        return self.stop


def _rank() -> int:
    """The rank that the process group, or the launcher, tells."""
    import os
    import sys

    from tdbg.core.rundir import env_rank

    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return env_rank(os.environ) or 0
