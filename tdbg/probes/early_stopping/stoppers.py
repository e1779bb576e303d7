"""Early stoppers: what they keep, which way their metric gets better, and whether they count that way."""

import inspect
import math
import numbers
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from tdbg.core.directions import certain_direction

COUNTERS = (
    "counter",
    "wait_count",
    "wait",
    "num_bad_epochs",
    "bad_epochs",
    "patience_counter",
    "counter_patience",
    "epochs_no_improve",
    "epochs_without_improvement",
    "no_improve",
    "no_improvement",
    "early_stopping_patience_counter",
)
BESTS = (
    "best_score",
    "best",
    "best_loss",
    "best_val_loss",
    "best_value",
    "best_metric",
    "best_acc",
    "min_loss",
    "min_validation_loss",
    "val_loss_min",
    "lowest_loss",
    "max_score",
)
STOPS = ("early_stop", "should_stop", "stop", "stopped", "early_stopped", "stop_training")
DELTAS = ("min_delta", "delta", "threshold", "early_stopping_threshold", "tol", "tolerance", "eps")
METRICS = ("monitor", "metric", "metric_name", "monitor_metric", "monitored")
METHODS = ("__call__", "step", "update", "check", "early_stop", "should_stop", "check_early_stop", "on_epoch_end")

NOT_METRICS = {"epoch", "step", "iteration", "it", "i"}

RELATIVE_GAIN = 0.01  # a change below it is never held against a stopper
LASTING = 3  # checks in a row
NAN_CHECKS = 2
UNSET = 1e6  # a best value beyond it is a start value, no metric


@dataclass(frozen=True, slots=True)
class State:
    """What a stopper keeps, as far as it was recognised."""

    patience: float | None = None
    counter: float | None = None
    best: float | None = None
    stop: bool = False
    delta: float = 0.0
    mode: str = ""


def read_state(stopper: object) -> State:
    """Read the attributes of an early stopper; no property and no method of it is called."""
    kept = getattr(stopper, "__dict__", {})
    mode = kept.get("mode")
    return State(
        patience=_find_first_number(kept, ("patience", "early_stopping_patience")),
        counter=_find_first_number(kept, COUNTERS),
        best=_find_first_number(kept, BESTS),
        stop=any(kept.get(name) is True for name in STOPS),
        delta=abs(_find_first_number(kept, DELTAS) or 0.0),
        mode=mode if isinstance(mode, str) else "",
    )


def _find_first_number(kept: dict[str, object], names: tuple[str, ...]) -> float | None:
    return next((value for value in (as_number(kept.get(name)) for name in names) if value is not None), None)


def as_number(value: object) -> float | None:
    """A number or a tensor of one element, as a float.

    Read only after the stopper has compared it: the host has waited for a tensor on an accelerator then.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, numbers.Real) or (isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta):
        return float(value)
    return None


def find_direction(name: str) -> str:
    """``min`` or ``max`` where a metric's name says which way is better; empty where it does not."""
    higher = certain_direction(name)
    return "" if higher is None else "max" if higher else "min"


def list_parameters(method: Callable[..., object]) -> list[str]:
    """The names of a method's parameters after the first."""
    try:
        return list(inspect.signature(method).parameters)[1:]
    except (TypeError, ValueError):
        return []


def find_metric(
    stopper: object, names: list[str], args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[str, float | None]:
    """(name, value) of the metric that a call of a stopper's method was given."""
    kept = getattr(stopper, "__dict__", {})
    called = next((kept[name] for name in METRICS if isinstance(kept.get(name), str)), "")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    for value in given.values():
        if called and isinstance(value, dict):
            return called, as_number(value.get(called))
    numeric = {name: found for name, value in given.items() if (found := as_number(value)) is not None}
    likely = [name for name in numeric if find_direction(name)] or [name for name in numeric if name not in NOT_METRICS]
    if not likely:
        return called, None
    return called or likely[0], numeric[likely[0]]


class Course:
    """The checks of one stopper so far, and whether it counts as the name of its metric says.

    Faults: ``ignores`` (a value better than all before is counted as no improvement), ``follows`` (worse values
    are taken as new best ones), ``nan`` (NaN is neither counted nor stopped at, so that patience never ends).
    Silent where the name says nothing, a value is negative, or the change is within the stopper's own delta.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.direction = find_direction(name)
        self.checks = 0
        self.first: float | None = None
        self.best_seen: float | None = None
        self.streaks: Counter[str] = Counter()
        self.since: dict[str, int] = {}  # the step of the first check of a streak
        self._last: tuple[float, bool, int] | None = None  # value of the check before, whether it was worse, its step

    def add_check(self, value: float | None, before: State, after: State, step: int) -> str:
        """See one check; returns a fault or nothing."""
        self.checks += 1
        if value is None:
            return ""
        if not math.isfinite(value):
            return self._add_nan(before, after, step)
        self.streaks["nan"] = 0
        if self.first is None:
            self.first = value
        if value < 0:
            self.direction = ""
        if not self.direction:
            return ""
        fault = self._add_number(value, before, after, step)
        if self.best_seen is None or self._is_better(value, self.best_seen, 0.0):
            self.best_seen = value
        return fault

    def _add_nan(self, before: State, after: State, step: int) -> str:
        self._last = None
        counted = after.stop or (after.counter or 0) > (before.counter or 0)
        known = after.counter is not None or after.best is not None
        self._count_streak("nan", known and not counted, step)
        return "nan" if self.streaks["nan"] >= NAN_CHECKS else ""

    def _add_number(self, value: float, before: State, after: State, step: int) -> str:
        if self._last is not None:
            earlier, worse, when = self._last
            self._count_streak("follows", worse and _is_same(before.best, earlier), when)
        worse = self.best_seen is not None and self._is_better(self.best_seen, value, _compute_margin(value, after))
        self._last = value, worse and not after.counter, step
        ignores = self._is_ignored(value, before, after)
        if ignores is not None:
            self._count_streak("ignores", ignores, step)
        ignored = self.streaks["ignores"]
        if ignored >= LASTING or (ignored and after.stop and ignored >= (after.counter or LASTING)):
            return "ignores"
        return "follows" if self.streaks["follows"] >= max(LASTING, (after.patience or 0) + 1) else ""

    def _is_ignored(self, value: float, before: State, after: State) -> bool | None:
        """True for a value better than any before that is counted as no improvement; None if it is too close to call."""
        if after.counter is None or after.counter <= (before.counter or 0):
            return False
        best = before.best
        unset = best is None or not math.isfinite(best) or best == 0 or abs(best) >= UNSET
        if self.best_seen is None:
            return unset and best is not None  # nothing beats the value it starts from
        if not self._is_better(value, self.best_seen, _compute_margin(self.best_seen, after)):
            return None if self._is_better(value, self.best_seen, 0.0) else False
        if best is None or unset:
            return True
        return self._is_better(
            value, abs(best), _compute_margin(best, after)
        )  # some keep the metric with its sign turned

    def _is_better(self, value: float, than: float, margin: float) -> bool:
        return (than - value if self.direction == "min" else value - than) > margin

    def _count_streak(self, kind: str, is_shown: bool, step: int) -> None:
        self.streaks[kind] = self.streaks[kind] + 1 if is_shown else 0
        if self.streaks[kind] == 1:
            self.since[kind] = step


def _compute_margin(base: float, state: State) -> float:
    """Changes up to this are held against nobody: the stopper's delta, absolute or relative, or one in a hundred."""
    return max(state.delta, state.delta * abs(base), RELATIVE_GAIN * abs(base))


def _is_same(best: float | None, value: float) -> bool:
    return best is not None and math.isclose(abs(best), value, rel_tol=1e-6)
