"""Early stopping and its reasons, and the steps at which tdbg's level changes."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tdbg.core.directions import direction_of, parse_direction
from tdbg.core.flags import LEVELS
from tdbg.metrics.keys import Key
from tdbg.metrics.step_logger.schedule_intervals import ScheduleError
from tdbg.metrics.tracker import state_fields
from tdbg.metrics.tracker.metric import is_improvement

VERSION = 1


class Reason(NamedTuple):
    """Why the run is to end. rule: patience, max_loss, min_lr, max_grad_norm or max_steps."""

    rule: str
    text: str
    step: int | None
    epoch: int | float | None = None


class EarlyStop:
    """Rules that end a run; the first that holds gives its reason, and stays the reason.

    metric: the key that patience watches. patience: the run ends at the check that is the Nth in a row without a new
        best (by more than min_delta), as in Lightning and Hugging Face; 0 ends it at the first one, as 1 does; None is
        off. NaN is no new best. max_loss, max_grad_norm: a value above, or NaN, ends the run. min_lr: every group's
        rate below it does. max_steps: the last step. warmup_steps: before them only max_steps counts.
    Raises ScheduleError for a bound that cannot be, KeyGrammarError for a metric that is no key: when it is made.
    """

    def __init__(
        self,
        *,
        metric: str = "val/loss",
        higher_is_better: bool | str | None = None,
        patience: int | None = None,
        min_delta: float = 0.0,
        max_loss: float | None = None,
        min_lr: float | None = None,
        max_grad_norm: float | None = None,
        max_steps: int | None = None,
        warmup_steps: int = 0,
    ) -> None:
        self.key = Key.parse(metric)
        name = self.key.metric
        self.higher_is_better = (
            parse_direction(higher_is_better, name) if higher_is_better is not None else direction_of(name)
        )
        if self.higher_is_better is None and patience is not None:
            raise ScheduleError(f"{metric} has no known direction", "pass higher_is_better=True or False")
        self.patience = _validate_bound("patience", patience, 0)
        self.min_delta = _validate_bound("min_delta", min_delta, 0) or 0.0
        self.max_loss = _validate_bound("max_loss", max_loss)
        self.min_lr = _validate_bound("min_lr", min_lr, 0)
        self.max_grad_norm = _validate_bound("max_grad_norm", max_grad_norm, 0)
        self.max_steps = _validate_bound("max_steps", max_steps, 1)
        self.warmup_steps = int(_validate_bound("warmup_steps", warmup_steps, 0) or 0)
        self.best: float | None = None
        self.best_epoch: int | float | None = None
        self.waited = 0  # checks since the best
        self.reason: Reason | None = None
        self._met = False  # a pass had the watched metric

    def check_step(
        self,
        step: int,
        *,
        loss: float | None = None,
        lr: float | Iterable[float] | Mapping[str, float] | None = None,
        grad_norm: float | None = None,
        epoch: int | float | None = None,
    ) -> Reason | None:
        """Look at one step; what is left out is not looked at. Returns the reason to end, or None."""
        if self.reason is not None:
            return self.reason
        if step > self.warmup_steps:
            if self.max_loss is not None and loss is not None and not loss <= self.max_loss:
                return self._record_reason("max_loss", _describe_violation("loss", loss, self.max_loss), step, epoch)
            if self.max_grad_norm is not None and grad_norm is not None and not grad_norm <= self.max_grad_norm:
                return self._record_reason(
                    "max_grad_norm", _describe_violation("gradient norm", grad_norm, self.max_grad_norm), step, epoch
                )
            rates = _list_rates(lr)
            if self.min_lr is not None and rates and max(rates) < self.min_lr:
                text = f"the learning rate {max(rates):g} is below {self.min_lr:g}"
                return self._record_reason("min_lr", text, step, epoch)
        if self.max_steps is not None and step >= self.max_steps:
            return self._record_reason("max_steps", f"step {step} is the last of {self.max_steps:g}", step, epoch)
        return None

    def check_metrics(
        self,
        values: Mapping[str, float] | Mapping[Key, float],
        *,
        epoch: int | float | None = None,
        step: int | None = None,
    ) -> Reason | None:
        """Look at the values of a finished pass, by key, such as `finalize_val_phase` returns; of another phase: nothing.

        A pass that lacks the watched metric, which earlier ones had, is one without a finite value. Raises ScheduleError
        if no pass of the watched phase had it.
        """
        if self.reason is not None or self.patience is None:
            return self.reason
        found = {str(key): value for key, value in values.items()}
        if str(self.key) not in found:
            if not any(Key.parse(key).phase == self.key.phase for key in found):
                return None
            if not self._met and self.best is None and not self.waited:
                self._raise_missing_metric(found)
        self._met = True
        if step is not None and step <= self.warmup_steps:
            return None
        value = found.get(str(self.key), math.nan)
        if is_improvement(value, self.best, self.higher_is_better, self.min_delta):
            self.best, self.best_epoch, self.waited = value, epoch, 0
            return None
        self.waited += 1
        if self.waited < self.patience:
            return None
        checks = f"{self.waited} check{'' if self.waited == 1 else 's'}"
        now = "" if math.isfinite(value) else f", and is {value:g} now"
        if self.best is None:
            return self._record_reason("patience", f"{self.key} was never finite in {checks}{now}", step, epoch)
        when = "" if self.best_epoch is None else f" of epoch {self.best_epoch:g}"
        text = f"{self.key} was no better than {self.best:g}{when} for {checks}{now}"
        return self._record_reason("patience", text, step, epoch)

    def state_dict(self) -> dict[str, object]:
        """What is needed to go on: best, checks since, the reason if there is one."""
        return {
            "version": VERSION,
            "metric": str(self.key),
            "best": self.best,
            "best_epoch": self.best_epoch,
            "waited": self.waited,
            "reason": None if self.reason is None else list(self.reason),
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from a saved state; of another metric only nothing is taken. Raises StateError for an unsound one."""
        if state_fields.require_whole(state, "version", "early stop") != VERSION:
            raise state_fields.StateError("early stop.version", f"is {state['version']}, which is not supported")
        best, best_epoch = (
            state_fields.number_or_none(state, "best", "early stop"),
            state_fields.validate_epoch(state, "best_epoch", "early stop"),
        )
        waited, saved = (
            state_fields.require_whole(state, "waited", "early stop"),
            state_fields.require_field(state, "reason", "early stop"),
        )
        reason = None
        if saved is not None:
            rule, text, step, epoch = state_fields.require_row(saved, 4, "early stop.reason", "a reason")
            reason = Reason(str(rule), str(text), step, epoch)
        if state_fields.require_text(state, "metric", "early stop") == str(self.key):
            self.best, self.best_epoch, self.waited, self.reason = best, best_epoch, waited, reason

    def list_rules(self) -> list[tuple[str, str]]:
        """Each rule that is on, and its bound."""
        patience = f"{self.patience:g} checks of {self.key}" if self.patience is not None else ""
        if patience and self.min_delta:
            patience += f", better by {self.min_delta:g}"
        bounds = [
            (name, f"{value:g}")
            for name in ("max_loss", "min_lr", "max_grad_norm", "max_steps")
            if (value := getattr(self, name)) is not None
        ]
        return ([("patience", patience)] if patience else []) + bounds

    def _record_reason(self, rule: str, text: str, step: int | None, epoch: int | float | None) -> Reason:
        self.reason = Reason(rule, text, step, epoch)
        return self.reason

    def _raise_missing_metric(self, found: Mapping[str, float]) -> None:
        import difflib

        near = difflib.get_close_matches(str(self.key), found, n=3, cutoff=0.3) or sorted(found)[:5]
        raise ScheduleError(
            f"early stopping watches {self.key}, which this phase does not have", f"it has {', '.join(near)}"
        )


class LevelSchedule:
    """At which steps tdbg's level changes: ``{1: "basic", 100: "advanced", 120: "basic"}``, from that step on.

    Raises ScheduleError for a step that is none and a level that there is not.
    """

    def __init__(self, levels: Mapping[int, str]) -> None:
        for step, level in levels.items():
            if isinstance(step, bool) or not isinstance(step, int) or step < 0:
                raise ScheduleError(f"a level change is set for step {step!r}", "steps are whole numbers from 0 up")
            if level not in LEVELS:
                raise ScheduleError(f"no level is called {level!r}", f"levels: {', '.join(LEVELS)}")
        self.levels = dict(sorted(levels.items()))

    def level_at(self, step: int) -> str | None:
        """The level in force at a step; None before the first."""
        found = [level for first, level in self.levels.items() if first <= step]
        return found[-1] if found else None

    def switch_at(self, step: int) -> str | None:
        """The level to switch to at exactly this step; None if it stays."""
        return self.levels.get(step) if self.level_at(step) != self.level_at(step - 1) else None


def _validate_bound(name: str, value: float | None, least: float | None = None) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ScheduleError(f"{name} of early stopping is {value!r}", "give a number")
    if least is not None and value < least:
        raise ScheduleError(f"{name} of early stopping is {value:g}", f"use {least:g} or more, or leave it out")
    return value


def _describe_violation(what: str, value: float, bound: float) -> str:
    """Why a bound of a step ends the run."""
    if math.isfinite(value):
        return f"the {what} {value:g} is above {bound:g}"
    return f"the {what} is {value:g}, not a finite number"


def _list_rates(lr: float | Iterable[float] | Mapping[str, float] | None) -> list[float]:
    if lr is None:
        return []
    if isinstance(lr, Mapping):
        return list(lr.values())
    return list(lr) if isinstance(lr, Iterable) else [lr]
