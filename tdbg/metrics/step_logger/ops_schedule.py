"""The schedule of a run: what is due at which step, warm-up, early stopping and levels. It knows no metric."""

from collections.abc import Mapping
from typing import Any

from tdbg.core.errors import suggest_name
from tdbg.core.tables import format_count
from tdbg.metrics.step_logger.early_stop import EarlyStop, LevelSchedule
from tdbg.metrics.step_logger.schedule_intervals import Interval, ScheduleError, resolve_interval
from tdbg.metrics.tracker import state_fields

OPS = {  # operation -> its interval where none is said, what it is
    "validation": ({"epochs": 1}, "validate"),
    "masking": (0, "validate with components masked"),
    "checkpoint": ({"epochs": 1}, "save a checkpoint"),
    "step": (1, "add a step's values to the averages"),
    "console": (10, "print a line"),
    "wandb": (10, "write to the sinks: W&B, TensorBoard, files"),
    "lr": (10, "write the learning rates"),
    "pipeline": (100, "write the numbers of the data pipeline"),
    "gradnorm": (100, "update and write GradNorm"),
    "schedule_values": (100, "write the schedule's values"),
}
LENGTHS = ("total_steps", "epochs", "steps_per_epoch")
VERSION = 1


class OpsSchedule:
    """Says at a step, or at the end of an epoch, whether an operation of a run is due.

    total_steps, epochs, steps_per_epoch: how long the run is; of two the third follows. Each operation of `OPS` by its
    name: a number of steps (0: off) or one of ``{"steps": N}``, ``{"epochs": N}``, ``{"fraction": F}``. warmup: so
    too. early_stop: an `EarlyStop` or its settings. levels: step -> level, a `LevelSchedule`.
    Raises ScheduleError for what contradicts itself.
    """

    def __init__(
        self,
        *,
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        warmup: object = 0,
        early_stop: EarlyStop | Mapping[str, Any] | None = None,
        levels: LevelSchedule | Mapping[int, str] | None = None,
        **intervals: object,
    ) -> None:
        self.total_steps, self.epochs, self.steps_per_epoch = _resolve_length(total_steps, epochs, steps_per_epoch)
        for name in intervals:
            if name not in OPS:
                raise _make_unknown_error(name)
        self.intervals: dict[str, Interval] = {
            name: resolve_interval(intervals.get(name, default), name, self.total_steps)
            for name, (default, _) in OPS.items()
        }
        self.warmup_steps = self._resolve_warmup(warmup)
        if isinstance(early_stop, Mapping):
            try:
                early_stop = EarlyStop(**{"warmup_steps": self.warmup_steps, **early_stop})
            except TypeError as error:
                raise ScheduleError(f"early_stop has an unknown setting: {error}", "see EarlyStop") from None
        self.early_stop = early_stop
        self.levels = levels if isinstance(levels, LevelSchedule) else LevelSchedule(levels or {})

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> "OpsSchedule":
        """The schedule that a section of a configuration asks for: yacs, OmegaConf or a plain mapping.

        Names are those of this class in any case, also with ``_INTERVAL`` behind them, and those of operations may stand
        in a section METRICS (``METRICS.WANDB_INTERVAL``). A length of 0 is an unknown one. Raises ScheduleError.
        """
        flat: dict[str, Any] = {}
        for name, value in [*config.items(), *_find_section(config, "metrics").items()]:
            plain = str(name).lower().removesuffix("_interval")
            if plain == "metrics":
                continue
            if plain in flat:
                raise ScheduleError(f"{plain} is set twice in the configuration", "set it once")
            flat[plain] = value
        for length in LENGTHS:
            flat[length] = flat.get(length) or None
        if isinstance(stop := flat.get("early_stop"), Mapping):
            flat["early_stop"] = {str(name).lower(): value for name, value in stop.items()}
        return cls(**flat)

    def due(self, operation: str, step: int) -> bool:
        """True if an operation is due at this step: ask at every step, not at the end of an epoch only."""
        return self.interval(operation).is_due(step)

    def due_after_epoch(self, operation: str, epochs_done: int) -> bool:
        """True if an operation with an interval in epochs is due now that so many epochs are done."""
        return self.interval(operation).due_after_epoch(epochs_done)

    def interval(self, operation: str) -> Interval:
        """The resolved interval of an operation. Raises ScheduleError for one that there is not."""
        if operation not in self.intervals:
            raise _make_unknown_error(operation)
        return self.intervals[operation]

    @property
    def averages(self) -> bool:
        """True if what is written to the sinks are means over several steps: keys then carry ``step_avg_``."""
        sink, step = self.intervals["wandb"], self.intervals["step"]
        return not sink.is_off and (sink.epochs > 0 or sink.steps > max(step.steps, 1))

    def warming_up(self, step: int) -> bool:
        """True up to the last step of the warm-up."""
        return step <= self.warmup_steps

    def warmup_factor(self, step: int) -> float:
        """How much of the warm-up is done: 0 to 1, linear in steps."""
        return 1.0 if not self.warmup_steps else min(max(step, 0) / self.warmup_steps, 1.0)

    def level_at(self, step: int) -> str | None:
        """tdbg's level at a step; None where the schedule says nothing."""
        return self.levels.level_at(step)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The table of the schedule: operation, interval as resolved, what was asked, first due."""
        found = [
            (name, _format_interval(one), one.asked, self._format_first_due(one))
            for name, one in self.intervals.items()
        ]
        if self.warmup_steps:
            found.append(("warmup", f"{format_count(self.warmup_steps, 'step')}", "", "step 1"))
        for rule, bound in self.early_stop.list_rules() if self.early_stop else ():
            found.append((f"stop: {rule}", bound, "", ""))
        found += [("level", level, "", f"step {step}") for step, level in self.levels.levels.items()]
        return found

    def __str__(self) -> str:
        head = ("operation", "interval", "asked", "first")
        rows = [head, *self.rows()]
        widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def state_dict(self) -> dict[str, object]:
        """What is needed to go on after a restart; intervals are the settings' to say."""
        return {"version": VERSION, "early_stop": None if self.early_stop is None else self.early_stop.state_dict()}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from a saved state. Raises StateError for an unsound one, and then changes nothing."""
        if state_fields.require_whole(state, "version", "schedule") != VERSION:
            raise state_fields.StateError("schedule.version", f"is {state['version']}")
        saved = state_fields.require_field(state, "early_stop", "schedule")
        if self.early_stop is not None and saved is not None:
            self.early_stop.load_state_dict(saved)

    def _resolve_warmup(self, asked: object) -> int:
        found = resolve_interval(asked, "warmup", self.total_steps)
        if found.epochs and not self.steps_per_epoch:
            raise ScheduleError("the warm-up is in epochs of unknown length", "set steps_per_epoch")
        steps = found.steps or found.epochs * (self.steps_per_epoch or 0)
        if self.total_steps is not None and steps > self.total_steps:
            raise ScheduleError(
                f"the warm-up of {format_count(steps, 'step')} is longer than the run of {self.total_steps}",
                "shorten it",
            )
        return steps

    def _format_first_due(self, one: Interval) -> str:
        """When it is due first; an interval that the run is too short for is told so."""
        if one.is_off:
            return "never"
        if one.steps:
            late = self.total_steps is not None and one.steps > self.total_steps
            return "never: the run is shorter" if late else f"step {one.steps}"
        late = self.epochs is not None and one.epochs > self.epochs
        return "never: the run is shorter" if late else f"end of epoch {one.epochs}"


def _find_section(config: Mapping[str, object], wanted: str) -> Mapping[str, object]:
    found = next((value for name, value in config.items() if str(name).lower() == wanted), None)
    return found if isinstance(found, Mapping) else {}


def _format_interval(one: Interval) -> str:
    if one.is_off:
        return "off"
    number, thing = (one.steps, "step") if one.steps else (one.epochs, "epoch")
    return f"every {thing}" if number == 1 else f"every {number} {thing}s"


def _resolve_length(
    total: int | None, epochs: int | None, each: int | None
) -> tuple[int | None, int | None, int | None]:
    """Steps, epochs and steps an epoch; of two the third."""
    for name, value in (("total_steps", total), ("epochs", epochs), ("steps_per_epoch", each)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ScheduleError(f"{name} is {value!r}", "use a whole number of 1 or more; leave it out if unknown")
    if epochs and each:
        if total and not (epochs - 1) * each < total <= epochs * each:
            raise ScheduleError(
                f"total_steps={total} is not epochs={epochs} times steps_per_epoch={each}", "give two of them"
            )
        total = total or epochs * each
    elif total and each:
        epochs = -(-total // each)
    elif total and epochs:
        each = -(-total // epochs)
    return total, epochs, each


def _make_unknown_error(name: str) -> ScheduleError:
    return ScheduleError(f"no operation is called {name!r}", suggest_name(name, OPS, f"there are: {', '.join(OPS)}"))
