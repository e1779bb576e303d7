"""One metric: its current value, its best so far, and the sums of the current pass."""

import math
from collections import deque
from typing import Any, NamedTuple

from tdbg.core.directions import parse_direction
from tdbg.metrics.keys import unit_of
from tdbg.metrics.tracker.metric_values import as_count, as_float
from tdbg.metrics.tracker.partial import Partial

HISTORY = 100  # finished passes that a metric remembers


class Point(NamedTuple):
    """One finished pass. sums: the sum and its count."""

    epoch: int | float | None
    step: int | None
    value: float
    sums: Partial


class Metric:
    """A number that is accumulated over a pass, weighted by samples, and its best.

    value: of the last finished pass; None before the first. best, best_epoch, best_step: None until the first finite
        value; ties keep the earlier. count: samples behind ``value``. higher_is_better: None has no best; "min" and
        "max" are taken for False and True, anything else raises TdbgError.
    unit: what it is measured in (``pct``, ``frac``, ``ms``), empty if nobody said. nan, inf: samples that were left out.
    history: the last ``history`` finished passes.
    """

    __slots__ = (
        "_inf",
        "_nan",
        "best",
        "best_epoch",
        "best_step",
        "done",
        "epoch",
        "finished",
        "higher_is_better",
        "history",
        "name",
        "partial",
        "step",
        "unit",
        "value",
    )

    def __init__(
        self,
        name: str = "metric",
        *,
        higher_is_better: bool | str | None = True,
        unit: str = "",
        history: int = HISTORY,
    ) -> None:
        self.name = name
        self.higher_is_better = parse_direction(higher_is_better, name)
        self.unit = unit or unit_of(name)
        self.value: float | None = None
        self.epoch: int | float | None = None
        self.step: int | None = None
        self.best: float | None = None
        self.best_epoch: int | float | None = None
        self.best_step: int | None = None
        self.partial = Partial()  # of the pass under way
        self.done = Partial()  # of the last finished pass
        self.finished = 0  # passes that had a finite value
        self.history: deque[Point] = deque(maxlen=history)
        self._nan = 0
        self._inf = 0

    def add(self, value: object, count: object = 1) -> None:
        """Add the mean of a batch of ``count`` samples. Raises MetricValueError. Cost: about 1 us for a float."""
        self.partial.add_mean(as_float(value, self.name), as_count(count, self.name))

    def add_sum(self, total: object, count: object) -> None:
        """Add a sum over ``count`` samples, such as the number of right answers. Raises MetricValueError."""
        self.partial.add_sum(as_float(total, self.name), as_count(count, self.name))

    def start(self) -> None:
        """Begin a pass: the sums are empty, nothing else changes."""
        self._nan += self.partial.nan
        self._inf += self.partial.inf
        self.partial = Partial()

    def close(self, epoch: int | float | None = None, step: int | None = None) -> bool:
        """Divide, and update value and best; the sums stay until `start`.

        False if nothing finite was counted: value and best stay what they were.
        """
        value = self.partial.compute_mean()
        if value is None:
            return False
        self.append(Point(epoch, step, value, self.partial.copy_finite()))
        return True

    def finalize(self, epoch: int | float | None = None, step: int | None = None) -> bool:
        """End the pass: `close` it, and empty the sums."""
        try:
            return self.close(epoch, step)
        finally:
            self.start()

    def record(self, value: object, epoch: int | float | None = None, step: int | None = None) -> bool:
        """Take a number that is whole already, such as a duration: a pass of one sample."""
        self.start()
        self.add(value)
        return self.finalize(epoch, step)

    def best_of_history(self) -> None:
        """Make the best anew from the passes that are remembered."""
        self.best = self.best_epoch = self.best_step = None
        for point in self.history:
            if self.is_better(point.value):
                self.best, self.best_epoch, self.best_step = point.value, point.epoch, point.step

    def append(self, point: Point) -> None:
        """Take a pass that is finished already."""
        self.epoch, self.step, self.value, self.done = point
        self.finished += 1
        self.history.append(point)
        if self.is_better(point.value):
            self.best, self.best_epoch, self.best_step = point.value, point.epoch, point.step

    def left_out(self) -> tuple[int, int]:
        """Samples of earlier passes that were NaN, and infinite."""
        return self._nan, self._inf

    def add_left_out(self, nan: int, inf: int) -> None:
        """Count samples of earlier passes that were NaN or infinite."""
        self._nan += nan
        self._inf += inf

    def is_better(self, value: float, least: float = 0.0) -> bool:
        """True if a value would be a new best, by more than ``least``."""
        return is_improvement(value, self.best, self.higher_is_better, least)

    @property
    def count(self) -> int:
        """Samples behind ``value``."""
        return self.done.count

    @property
    def nan(self) -> int:
        """Samples whose value was NaN, in all passes."""
        return self._nan + self.partial.nan

    @property
    def inf(self) -> int:
        """Samples whose value was infinite, in all passes."""
        return self._inf + self.partial.inf

    def __repr__(self) -> str:
        return f"Metric({self.name}={self.value}, best={self.best} at epoch {self.best_epoch}, count={self.count})"

    def record_of(self, *, sums: bool = False, history: bool = False) -> dict[str, object]:
        """Plain data for a dump."""
        found: dict[str, Any] = {
            "value": self.value,
            "epoch": self.epoch,
            "step": self.step,
            "count": self.count,
            "best": self.best,
            "best_epoch": self.best_epoch,
            "best_step": self.best_step,
            "higher_is_better": self.higher_is_better,
            "unit": self.unit,
            "nan": self.nan,
            "inf": self.inf,
        }
        if sums:
            under_way = self.partial
            found["partial"] = {
                "mean": under_way.compute_mean(),
                "count": under_way.count,
                "batches": under_way.batches,
                "nan": under_way.nan,
                "inf": under_way.inf,
            }
        if history:
            found["history"] = [[point.epoch, point.step, point.value] for point in self.history]
        return found

    def state(self) -> dict[str, object]:
        """All of it as plain data; `tdbg.metrics.tracker.saved_state` reads it back."""
        return {
            "higher_is_better": self.higher_is_better,
            "unit": self.unit,
            "value": self.value,
            "count": self.count,
            "best": self.best,
            "best_epoch": self.best_epoch,
            "best_step": self.best_step,
            "finished": self.finished,
            "nan": self._nan,
            "inf": self._inf,
            "partial": self.partial.state(),
            "history": [[point.epoch, point.step, point.sums.state()] for point in self.history],
        }


def is_improvement(value: float, best: float | None, higher_is_better: bool | None, least: float = 0.0) -> bool:
    """True if a value beats the best by more than ``least``; a tie does not, NaN and Inf never do."""
    if higher_is_better is None or not math.isfinite(value):
        return False
    if best is None:
        return True
    return value > best + least if higher_is_better else value < best - least
