"""The series of a run in bounded memory: last, smallest and largest value of each key, count, and course."""

import gc
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, zip_longest
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tdbg.metrics.rows.row_reader import Batch, Line

POINTS = 64  # of a course: at least so many of a long series, at most twice that
MAX_KEYS = 100_000  # kept apart; a file with more is no run's
TEXT_NUMBERS = 8  # numbers that take as much memory as a short text with its place
BARS = "▁▂▃▄▅▆▇█"
WILD = "×"  # a share of a course with a value that is not finite


class Point(NamedTuple):
    """A value and when it was."""

    value: float
    step: int
    epoch: float | None = None


class Course:
    """Every value of a short series, every second, fourth, ... of a long one; but none that is not finite is lost."""

    stride: int = 1
    seen: int = 0

    def __init__(self) -> None:
        self.values: list[float] = []

    def extend(self, values: Sequence[float]) -> None:
        """Add values, in order."""
        self.values.extend(values[-self.seen % self.stride :: self.stride])
        self.seen += len(values)
        while len(self.values) > 2 * POINTS:
            pairs = zip_longest(self.values[::2], self.values[1::2], fillvalue=0.0)
            self.values = [one if math.isfinite(other) else other for one, other in pairs]
            self.stride *= 2

    def insert_non_finite(self, back: int, value: float) -> None:
        """Put a value that is not finite where it was: so many values before the end."""
        self.values[(self.seen - back) // self.stride] = value


@dataclass(slots=True, repr=False, eq=False)
class Series:
    """All about one key of one rank. least, most: of the finite values, the first where several are equal.

    first_step: of its first value. first_wild: its first value that is not finite.
    """

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
    first_step: int = 0
    first_wild: Point | None = None
    course: Course = field(default_factory=Course)

    def add_values(self, lines: Sequence["Line"], values: Sequence[float]) -> None:
        """Values of these rows. Cost: about 0.1 us a value where many come at once."""
        self.count += len(values)
        end = lines[-1]
        self.last = Point(values[-1], end.step, end.epoch)
        self.phase = end.phase
        self.course.extend(values)
        total = sum(values)
        if total - total != 0.0:  # NaN or Inf is among them, or the sum is beyond what a float holds
            lines, values = self._filter_finite(lines, values)
        if not values:
            return
        low, high = min(values), max(values)
        if self.least is None or low < self.least.value:
            line = lines[values.index(low)]
            self.least = Point(low, line.step, line.epoch)
        if self.most is None or high > self.most.value:
            line = lines[values.index(high)]
            self.most = Point(high, line.step, line.epoch)

    def _filter_finite(self, lines: Sequence["Line"], values: Sequence[float]) -> tuple[list["Line"], list[float]]:
        wild = [at for at, value in enumerate(values) if not math.isfinite(value)]
        if wild and self.first_wild is None:
            line = lines[wild[0]]
            self.first_wild = Point(values[wild[0]], line.step, line.epoch)
        self.non_finite += len(wild)
        for at in wild:
            self.course.insert_non_finite(len(values) - at, values[at])
        pairs = [pair for pair in zip(lines, values, strict=True) if math.isfinite(pair[1])]
        return [line for line, _ in pairs], [value for _, value in pairs]

    @property
    def best(self) -> Point | None:
        """The best value, where the name says which direction is better; None otherwise."""
        better = resolve_direction(self.key)
        return None if better is None else self.most if better else self.least


@lru_cache(4096)
def resolve_direction(key: str) -> bool | None:
    """True if higher is better, False if lower is, None if the name of the metric does not say."""
    from tdbg.core.directions import direction_of
    from tdbg.metrics.keys import Key, KeyGrammarError

    try:
        found = Key.parse(key)
    except KeyGrammarError:
        return direction_of(*key.split("/")[::-1])
    if found.of_phase:
        return direction_of(found.metric, found.task, found.subset, found.phase)
    return direction_of(found.metric, found.phase) if found.phase == "loss" else None


class Unwritten:
    """Rows that a rank left out, and the step where it was first said."""

    rows: int = 0

    def __init__(self, first_step: int) -> None:
        self.first_step = first_step


class Records:
    """Step records of a rank among its rows: how many, the first step that has one, and the last that tdbg tells of."""

    count: int = 0
    first: int = 0
    last: int = 0

    def count_steps(self, lines: "Sequence[Line]") -> None:
        """Count those of training among rows of tdbg's own."""
        steps = [line.step for line in lines if line.phase == "train"]
        if steps:
            self.first = min(steps) if not self.count else min(self.first, min(steps))
            self.count += len(steps)
        self.last = max(self.last, *(line.step for line in lines))

    @property
    def missing(self) -> int:
        """Steps in between without one."""
        return max(self.last - self.first + 1 - self.count, 0) if self.count else 0


class Tally:
    """Every series of some rows. What two sources say of one key is kept apart."""

    left_out: int = 0  # values of keys beyond `MAX_KEYS`

    def __init__(self) -> None:
        self.series: dict[tuple[str, str, int], Series] = {}  # by key, source and rank
        self.texts: dict[tuple[str, int], str] = {}
        self.units: dict[str, str] = {}
        self.last: dict[int, Point] = {}  # of each rank: the largest step, with its epoch and time
        self.unwritten: dict[tuple[int, str], Unwritten] = {}  # by rank and why, as `LEFT_OUT` has it
        self.records: dict[int, Records] = {}  # by rank

    def count_numbers(self) -> int:
        """How many numbers take as much memory as the series and texts, about."""
        texts = (*self.texts.values(), *self.units.values(), *(key for key, _, _ in self.series))
        of_series = sum(2 * POINTS + len(one.course.values) for one in self.series.values())
        return of_series + count_as_numbers(texts)

    def add_batch(self, batch: "Batch") -> None:
        """Take rows. Cost: about 0.3 us a row and 0.1 us a value."""
        for source, lines in group_by_source(batch.lines).items():
            self._add_of(source, batch.rank, lines)
        end = max(reversed(batch.lines), key=attrgetter("step"))  # an evaluation pass is written once training went on
        before = self.last.get(batch.rank)
        if before is None or end.step >= before.step:  # whatever parts the rows come in
            self.last[batch.rank] = Point(end.t, end.step, end.epoch)
        self._record_rare_fields(batch)

    def _add_of(self, source: str, rank: int, every: "list[Line]") -> None:
        """Rows of one source: those with the same keys are taken together, column by column."""
        if source == "tdbg":
            self.records.setdefault(rank, Records()).count_steps(every)
        keys = tuple(every[0].values)
        columns = extract_columns(keys, [line.values for line in every])
        if columns is not None:
            for key, column in zip(keys, columns, strict=True):
                self._add_values(key, source, rank, every, column)
            return
        groups: dict[tuple[str, ...], list[Line]] = {}
        for line in every:
            shape = tuple(line.values)
            if shape in groups:
                groups[shape].append(line)
            else:
                groups[shape] = [line]
        mixed = _in_several(groups)
        for keys, lines in groups.items():
            columns = zip(*[line.values.values() for line in lines], strict=True)
            for key, column in zip(keys, columns, strict=True):
                if key not in mixed:
                    self._add_values(key, source, rank, lines, column)
        for key in mixed:  # in the order of the rows
            lines = [line for line in every if key in line.values]
            self._add_values(key, source, rank, lines, [line.values[key] for line in lines])

    def _add_values(self, key: str, source: str, rank: int, lines: "Sequence[Line]", values: Sequence[float]) -> None:
        found = self.series.get((key, source, rank))
        if found is None:
            if len(self.series) >= MAX_KEYS:
                self.left_out += len(values)
                return
            begin = lines[0]
            found = Series(key, rank, Point(values[0], begin.step, begin.epoch), source=source, first_step=begin.step)
            self.series[key, source, rank] = found
        found.add_values(lines, values)

    def _record_rare_fields(self, batch: "Batch") -> None:
        for line in [line for line in batch.lines if line.text or line.units or line.left_out]:
            for why, count in (line.left_out or {}).items():
                if len(self.unwritten) < MAX_KEYS:
                    self.unwritten.setdefault((batch.rank, why), Unwritten(line.step)).rows += count
            self.units |= line.units or {}
            if len(self.texts) < MAX_KEYS:
                self.texts |= {(key, batch.rank): text for key, text in (line.text or {}).items()}

    def assign_units(self) -> "Tally":
        """Give each series its unit; to be called when all rows are in."""
        from tdbg.metrics.keys import unit_of

        for one in self.series.values():
            one.unit = self.units.get(one.key) or unit_of(one.key.rpartition("/")[2])
        return self


def count_as_numbers(texts: "Iterable[str]") -> int:
    """How many numbers take as much memory as these texts, about."""
    return sum(TEXT_NUMBERS + len(text) // 8 for text in texts)


def group_by_source(lines: "list[Line]") -> "dict[str, list[Line]]":
    """Rows by who wrote them, in their order."""
    sources = {line.source for line in lines}
    if len(sources) == 1:
        return {sources.pop(): lines}
    return {source: [line for line in lines if line.source == source] for source in sources}


def extract_columns(keys: Sequence[str], rows: Sequence[dict[str, float]]) -> "Iterable[Sequence[float]] | None":
    """The values of each key, where every row has these keys and no others; None otherwise."""
    if len(keys) < 2 or set(map(len, rows)) != {len(keys)}:
        return None
    try:
        return list(zip(*map(itemgetter(*keys), rows), strict=True))
    except KeyError:
        return None


def _in_several(groups: "Iterable[tuple[str, ...]]") -> set[str]:
    """Keys that stand in rows of several shapes."""
    once: set[str] = set()
    found: set[str] = set()
    for keys in groups:
        found |= once.intersection(keys)
        once.update(keys)
    return found


def build_tally(batches: Iterable["Batch"], until: int | None = None) -> Tally:
    """Every series of these rows; until: the last step that counts."""
    found = Tally()
    collects = gc.isenabled()
    gc.disable()  # rows make no circles, and looking for some takes a third of the time
    try:
        for batch in batches:
            if until is not None:
                batch = batch._replace(lines=[line for line in batch.lines if line.step <= until])
            if batch.lines:
                found.add_batch(batch)
    finally:
        if collects:
            gc.enable()
    return found.assign_units()


def format_sparkline(values: Sequence[float], width: int = 24) -> str:
    """The course in letters; each stands for the mean of its share, a cross for a share that is not all finite."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(at * len(values) / count) for at in range(count + 1)]
    means = [_compute_mean(values[a:b]) for a, b in pairwise(edges)]
    known = [mean for mean in means if mean is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    span = high - low
    flat = not high > low or math.isinf(span)
    return "".join(
        WILD if mean is None else BARS[3] if flat else BARS[min(int((mean - low) / span * len(BARS)), len(BARS) - 1)]
        for mean in means
    )


def _compute_mean(values: Sequence[float]) -> float | None:
    """None if one of them is not finite."""
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else None
