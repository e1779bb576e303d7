"""The thin entry point that ties four parts together: state, schedule, names and sinks, step by step."""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tdbg.core.errors import TdbgError
from tdbg.core.output import say
from tdbg.metrics.sinks.base import MetricSink
from tdbg.metrics.step_logger.early_stop import Reason
from tdbg.metrics.step_logger.final_results import final_results, is_best
from tdbg.metrics.step_logger.ops_schedule import OpsSchedule
from tdbg.metrics.step_logger.shutdown import ENDING
from tdbg.metrics.step_logger.writing import Writing
from tdbg.metrics.tracker.last_values import lr_dict
from tdbg.metrics.tracker.metric_values import as_count
from tdbg.metrics.tracker.metrics_tracker import MetricsTracker

VERSION = 1
Epoch = int | float | None
P = ParamSpec("P")
T = TypeVar("T")


def _whole(call: Callable[P, T]) -> Callable[P, T]:
    """A signal to end the process waits until the call is done."""

    @wraps(call)
    def waiting(*args: P.args, **kwargs: P.kwargs) -> T:
        ENDING.enter()
        try:
            return call(*args, **kwargs)
        finally:
            ENDING.leave()

    return waiting


class StepMetricsLogger(Writing):
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
        config: Any = None,
        console: bool = True,
        core: bool = True,
        on_trouble: Callable[[str], None] = say,
    ) -> None:
        super().__init__(
            tracker,
            schedule,
            sinks,
            folder=folder,
            rank=rank,
            run=run,
            config=config,
            console=console,
            core=core,
            on_trouble=on_trouble,
        )
        ENDING.register(self)

    # each step

    @_whole
    def log_step_metrics(
        self,
        values: Mapping[str, Any],
        *,
        step: int,
        epoch: Epoch = None,
        samples: Any = 1,
        phase: str = "train",
        tasks: Mapping[str, Mapping[str, Any]] | None = None,
        lr: Any = None,
    ) -> Reason | None:
        """Take a step's values, each step; print and write what is due. Returns the reason to end, or None.

        values: by metric (``loss``) or key (``loss/class``), means over ``samples``. tasks: task -> metric -> mean.
        lr: an optimizer, a scheduler or rates, for the rule min_lr and, when due, `log_learning_rates`.
        Raises MetricValueError for what is no number; then nothing of it is taken.
        """
        found = self._keyed(phase, values, tasks or {})
        count = as_count(samples, f"{phase} step")
        self._move(step, epoch, phase)
        self._clock.tick(step, count)
        if self.schedule.due("step", step):
            self.window.add(found, count)
        if self.schedule.due("console", step):
            shown = {str(key): value for key, value in found.items()} | self._rates(phase, "console")
            self.console.write(self._row(shown, phase))
        if self.schedule.due("wandb", step):
            self._write_window()
        if lr is not None and self.schedule.due("lr", step):
            self._log_store("lr", lr_dict(lr), step, epoch)
        return self._judge(found, phase, lr)

    def accumulate_metrics_for_wandb(
        self, values: Mapping[str, Any], samples: int = 1, *, phase: str = "train"
    ) -> None:
        """Feed the averages that the next write to the sinks holds; `log_step_metrics` does it by itself."""
        self.window.add(self._keyed(phase, values, {}), as_count(samples, f"{phase} step"))

    def get_averaged_wandb_metrics(self) -> dict[str, float]:
        """The averages as they are now, by key; changes nothing."""
        return self.window.means(core=self.core)

    @_whole
    def log_learning_rates(self, source: Any, *, step: int, epoch: Epoch = None) -> None:
        """When due: store and write the rate of each parameter group of an optimizer or scheduler."""
        if self.schedule.due("lr", step):
            self._log_store("lr", lr_dict(source), step, epoch)

    @_whole
    def log_pipeline_metrics(self, values: Mapping[str, Any], *, step: int, epoch: Epoch = None) -> None:
        """When due: store and write numbers of the data pipeline."""
        if self.schedule.due("pipeline", step):
            self._log_store("pipeline", values, step, epoch)

    @_whole
    def log_gradnorm_metrics(self, values: Mapping[str, Any], *, step: int, epoch: Epoch = None) -> None:
        """When due: store and write numbers of a GradNorm update; a mapping among them is by task."""
        if self.schedule.due("gradnorm", step):
            self._log_store("gradnorm", values, step, epoch)

    @_whole
    def log_schedule_values(
        self, values: Mapping[str, Any], *, step: int, epoch: Epoch = None, static: Mapping[str, Any] | None = None
    ) -> None:
        """At the first call and when due: store and write this step's values; static ones go to the run's config, once."""
        first = not self.tracker.stores["schedule"].history
        new = {name: value for name, value in (static or {}).items() if name not in self._static}
        if new:
            self._static.update(new)
            self.sinks.config({f"schedule/{name}": value for name, value in new.items()})
        if first or self.schedule.due("schedule_values", step):
            self._log_store("schedule", values, step, epoch)

    # each pass

    @_whole
    def log_validation_summary(
        self, phase: str | None = None, *, step: int | None = None, epoch: Epoch = None
    ) -> Reason | None:
        """Write the finished pass of a phase, with the step and epoch it was finished at; look at early stopping.

        phase: the validation phase begun last, if left out. A pass without values is warned of.
        """
        return self._log_pass(phase or self.tracker.val_phase, step, epoch)

    @_whole
    def log_epoch_summary(self, phase: str = "train", *, step: int | None = None, epoch: Epoch = None) -> Reason | None:
        """Write the finished epoch, and what is in the averages if their interval is in epochs."""
        found = self._log_pass(phase, step, epoch)
        interval = self.schedule.interval("wandb")
        held = self.tracker.phases.get(phase)
        done = (held.finished if held else 0) if self.epoch is None else int(self.epoch) + 1
        if interval.due_after_epoch(done):
            self._write_window()
        return found

    @_whole
    def log_final_results(self) -> dict[str, float]:
        """Write best and last of every phase that the tracker has; print a line of each metric; returns them."""
        self._write_window()
        numbers, summary = final_results(self.tracker)
        bests = {key: value for key, value in numbers.items() if is_best(key)}
        if bests:  # the last values stand in the file already
            self._write(bests, None)
        if summary:
            self.sinks.summary(summary)
            self.console.summary(summary)
        return numbers

    # saving, ending

    def state_dict(self) -> dict[str, Any]:
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
                raise ValueError(f"its version is {state['version']!r}")
            step, epoch = int(state["step"]), state["epoch"]
            window, sinks = state["window"], dict(state["sinks"])
        except (KeyError, TypeError, ValueError) as error:
            raise TdbgError(f"the logger's saved state is not sound: {error!r}", "load another checkpoint") from None
        self.window.load_state_dict(window)
        self.step, self.epoch = step, epoch
        self.sinks.load_state_dict(sinks)
        self.sinks.resumed(step)

    @_whole
    def flush(self) -> None:
        """Write the averages that are under way, and let every sink write what it holds."""
        self._write_window()
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
