"""Series of a run in bounded memory: of each key the last value, the least, the most, how many, and its course."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdbg.metrics.reading import Batch, Line

POINTS = 64  # of a course: at least so many of a long series, at most twice that
MAX_KEYS = 100_000  # kept apart; a file with more is no run's
BARS = "▁▂▃▄▅▆▇█"
LOWER = ("loss", "error", "err", "ppl", "perplexity", "mse", "mae", "rmse", "wer", "cer", "fid", "nll", "bpb", "bpc")
HIGHER = (
    "acc",
    "accuracy",
    "precision",
    "recall",
    "f1",
    "auc",
    "auroc",
    "ap",
    "map",
    "iou",
    "miou",
    "dice",
    "bleu",
    "rouge",
    "psnr",
    "ssim",
    "reward",
    "score",
    "r2",
)


@dataclass(slots=True)
class Point:
    """A value and when it was."""

    value: float
    step: int
    epoch: float | None = None


@dataclass(slots=True)
class Course:
    """Every value of a short series, every second, fourth, ... of a long one."""

    values: list[float] = field(default_factory=list)
    stride: int = 1
    seen: int = 0

    def extend(self, values: Sequence[float]) -> None:
        """Add values, in order."""
        self.values.extend(values[-self.seen % self.stride :: self.stride])
        self.seen += len(values)
        while len(self.values) > 2 * POINTS:
            self.values = self.values[::2]
            self.stride *= 2


@dataclass(slots=True)
class Series:
    """All about one key of one rank. least, most: of the finite values, the first where several are equal."""

    key: str
    rank: int
    last: Point
    phase: str | None = None
    source: str = ""
    unit: str = ""
    least: Point | None = None
    most: Point | None = None
    count: int = 0
    non_finite: int = 0
    course: Course = field(default_factory=Course)

    def add(self, lines: Sequence["Line"], values: Sequence[float]) -> None:
        """Values of these rows. Cost: about 0.1 us a value where many come at once."""
        self.count += len(values)
        end = lines[-1]
        self.last = Point(values[-1], end.step, end.epoch)
        self.phase = end.phase
        total = sum(values)
        if total - total != 0.0:  # NaN or Inf is among them, or the sum is beyond what a float holds
            lines, values = self._finite(lines, values)
        if not values:
            return
        low, high = min(values), max(values)
        if self.least is None or low < self.least.value:
            line = lines[values.index(low)]
            self.least = Point(low, line.step, line.epoch)
        if self.most is None or high > self.most.value:
            line = lines[values.index(high)]
            self.most = Point(high, line.step, line.epoch)
        self.course.extend(values)

    def _finite(self, lines: Sequence["Line"], values: Sequence[float]) -> tuple[list["Line"], list[float]]:
        pairs = [pair for pair in zip(lines, values, strict=True) if math.isfinite(pair[1])]
        self.non_finite += len(values) - len(pairs)
        return [line for line, _ in pairs], [value for _, value in pairs]

    @property
    def best(self) -> Point | None:
        """The best value, where the name says which direction is better; None otherwise."""
        better = direction(self.key)
        return None if better is None else self.most if better else self.least


def direction(key: str) -> bool | None:
    """True if higher is better, False if lower is, None if the name of the metric does not say."""
    words = key.rpartition("/")[2].removeprefix("step_avg_").lower().replace("-", "_").split("_")
    if key.partition("/")[0] in ("lr", "schedule", "pipeline", "gradnorm"):
        return None
    for word in words:
        plain = word.rstrip("0123456789")
        if word in LOWER or plain in LOWER:
            return False
        if word in HIGHER or plain in HIGHER:
            return True
    return None


@dataclass(slots=True)
class Tally:
    """Every series of some rows. What two sources say of one key is kept apart."""

    series: dict[tuple[str, str, int], Series] = field(default_factory=dict)  # by key, source and rank
    texts: dict[tuple[str, int], str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    left_out: int = 0  # values of keys beyond `MAX_KEYS`
    last: dict[int, Point] = field(default_factory=dict)  # of each rank: step and epoch of the last row, and its time

    def add(self, batch: "Batch") -> None:
        """Take rows. Cost: about 0.3 us a row and 0.1 us a value."""
        groups: dict[tuple[str, ...], list[Line]] = {}
        for line in batch.lines:
            shape = (line.source, *line.values)
            if shape in groups:
                groups[shape].append(line)
            else:
                groups[shape] = [line]
        mixed = _in_several(groups)
        for (source, *keys), lines in groups.items():
            columns = zip(*[line.values.values() for line in lines], strict=True)
            for key, column in zip(keys, columns, strict=True):
                if (key, source) not in mixed:
                    self._take(key, source, batch.rank, lines, column)
        for key, source in mixed:
            lines = [line for line in batch.lines if key in line.values and line.source == source]
            self._take(key, source, batch.rank, lines, [line.values[key] for line in lines])
        end = batch.lines[-1]
        self.last[batch.rank] = Point(end.t, end.step, end.epoch)
        self._rare(batch)

    def _take(self, key: str, source: str, rank: int, lines: "Sequence[Line]", values: Sequence[float]) -> None:
        found = self.series.get((key, source, rank))
        if found is None:
            if len(self.series) >= MAX_KEYS:
                self.left_out += len(values)
                return
            found = Series(key, rank, Point(values[0], lines[0].step, lines[0].epoch), source=source)
            self.series[key, source, rank] = found
        found.add(lines, values)

    def _rare(self, batch: "Batch") -> None:
        for line in batch.lines:
            if line.text or line.units:
                self.units |= line.units or {}
                if len(self.texts) < MAX_KEYS:
                    self.texts |= {(key, batch.rank): text for key, text in (line.text or {}).items()}

    def settle(self) -> "Tally":
        """Give each series its unit; to be called when all rows are in."""
        from tdbg.metrics.keys import unit_of

        for one in self.series.values():
            one.unit = self.units.get(one.key) or unit_of(one.key.rpartition("/")[2])
        return self


def _in_several(groups: "Mapping[tuple[str, ...], list[Line]]") -> set[tuple[str, str]]:
    """Keys and sources that stand in rows of several shapes: these are read in the order of the rows."""
    once: set[tuple[str, str]] = set()
    found: set[tuple[str, str]] = set()
    for source, *keys in groups:
        for key in keys:
            (found if (key, source) in once else once).add((key, source))
    return found


def tally(batches: Iterable["Batch"], until: int | None = None) -> Tally:
    """Every series of these rows; until: the last step that counts."""
    found = Tally()
    for batch in batches:
        if until is not None:
            batch.lines = [line for line in batch.lines if line.step <= until]
        if batch.lines:
            found.add(batch)
    return found.settle()


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """The course of finite values in letters; each stands for the mean of its share."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(at * len(values) / count) for at in range(count + 1)]
    means = [math.fsum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if not high > low or math.isinf(high - low):
        return BARS[3] * count
    return "".join(BARS[min(int((mean - low) / (high - low) * len(BARS)), len(BARS) - 1)] for mean in means)
