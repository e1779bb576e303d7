"""The first divergence of the series of two runs, read side by side, step by step; neither is ever held whole."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tdbg.core.window import Window
from tdbg.metrics.rows.row_files import Place, RowsFile
from tdbg.metrics.rows.row_reader import Batch, Counts, Reading
from tdbg.metrics.rows.series import Point, Series

SPREAD = "spread"
WITHIN = 3.0  # times its own spread that a series may differ
IN_A_ROW = 3  # consecutive steps beyond the spread; chance alone does that once in a million steps of a noisy series
LEAST = 8  # values before a spread is known
PENDING = 100_000  # values of a key that are held until the other run reaches their step

Name = tuple[str, str, int]  # key, source, rank


@dataclass(slots=True)
class SeriesPair:
    """One key of both runs. first_divergence: the first step where they differ beyond the tolerance, with both values."""

    key: str
    source: str
    rank: int
    a: Series | None = None
    b: Series | None = None
    together: int = 0  # steps that both runs have
    only_a: int = 0
    only_b: int = 0
    first_divergence: tuple[int, float, float] | None = None
    differing_steps: int = 0
    largest_difference: float = 0.0
    _wait_a: deque[tuple[int, float]] = field(default_factory=deque)
    _wait_b: deque[tuple[int, float]] = field(default_factory=deque)
    _window: Window = field(default_factory=Window)
    _before: float | None = None
    _row: list[tuple[int, float, float]] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        """True if the two diverge at some step."""
        return self.first_divergence is not None


Allowed = Callable[
    [float, float, float | None], bool
]  # two values and the spread of the first: is the difference allowed?


def make_tolerance(tolerance: float | None) -> Allowed:
    """Which differences are allowed. tolerance: a share of the larger value; None for 3 times the series' own spread."""

    def is_allowed(a: float, b: float, spread: float | None) -> bool:
        if a == b or (math.isnan(a) and math.isnan(b)):
            return True
        if not (math.isfinite(a) and math.isfinite(b)):
            return False
        if tolerance is None:
            return spread is None or abs(a - b) <= WITHIN * spread
        return abs(a - b) <= tolerance * max(abs(a), abs(b))

    return is_allowed


class SeriesComparison:
    """Two runs, rank by rank. tolerance: see `make_tolerance`. Memory: of each key, the steps that only one run has reached."""

    def __init__(self, a: Place, b: Place, tolerance: float | None, wanted: Callable[[str], bool]) -> None:
        self.counts = (Counts(), Counts())
        self.pairs: dict[Name, SeriesPair] = {}
        self._allowed = make_tolerance(tolerance)
        self._spread = tolerance is None
        self._wanted = wanted
        self._compare_ranks(a, b)

    def _compare_ranks(self, a: Place, b: Place) -> None:
        ranks = sorted({file.rank for file in (*a.files, *b.files)}, key=lambda rank: -1 if rank is None else rank)
        if None in ranks:  # a file that is of no rank's folder stands for all of its ranks
            self._side_by_side(a.files, b.files)
            return
        for rank in ranks:
            self._side_by_side([f for f in a.files if f.rank == rank], [f for f in b.files if f.rank == rank])

    def _side_by_side(self, a: Sequence[RowsFile], b: Sequence[RowsFile]) -> None:
        """Read on where the steps are behind, so that little waits."""
        readings = (Reading(a), Reading(b))
        left: list[Iterator[Batch] | None] = [readings[0].iter_batches(), readings[1].iter_batches()]
        reached = [-1, -1]
        while any(left):
            side = 0 if left[0] and (not left[1] or reached[0] <= reached[1]) else 1
            stream = left[side]
            batch = next(stream, None) if stream else None
            if batch is None:
                left[side] = None
                continue
            reached[side] = batch.lines[-1].step
            self._add_batch(side, batch)
        for pair in self.pairs.values():
            self._compare_pending(pair, everything=True)
        for mine, of in zip(self.counts, readings, strict=True):
            mine.rows += of.counts.rows
            mine.broken += of.counts.broken
            mine.again += of.counts.again

    def _add_batch(self, side: int, batch: Batch) -> None:
        touched: dict[Name, tuple[list[object], list[float]]] = {}
        for line in batch.lines:
            for key, value in line.values.items():
                if self._wanted(key):
                    lines, values = touched.setdefault((key, line.source, batch.rank), ([], []))
                    lines.append(line)
                    values.append(value)
        for name, (lines, values) in touched.items():
            self._extend_series(side, name, lines, values)

    def _extend_series(self, side: int, name: Name, lines: list[object], values: list[float]) -> None:
        key, source, rank = name
        pair = self.pairs.setdefault(name, SeriesPair(key, source, rank))
        series = pair.b if side else pair.a
        if series is None:
            series = Series(key, rank, Point(values[0], 0), source=source)
            if side:
                pair.b = series
            else:
                pair.a = series
        series.add_values(lines, values)  # type: ignore[arg-type]
        steps = [line.step for line in lines]  # type: ignore[attr-defined]
        (pair._wait_b if side else pair._wait_a).extend(zip(steps, values, strict=True))
        self._compare_pending(pair)

    def _compare_pending(self, pair: SeriesPair, *, everything: bool = False) -> None:
        """Compare what both have; what one has and the other passed over is counted."""
        a, b = pair._wait_a, pair._wait_b
        while a and b:
            if a[0][0] == b[0][0]:
                self._compare_step(pair, a.popleft(), b.popleft()[1])
            elif a[0][0] < b[0][0]:
                a.popleft()
                pair.only_a += 1
            else:
                b.popleft()
                pair.only_b += 1
        limit = 0 if everything else PENDING
        while len(a) > limit:
            a.popleft()
            pair.only_a += 1
        while len(b) > limit:
            b.popleft()
            pair.only_b += 1

    def _compare_step(self, pair: SeriesPair, one: tuple[int, float], other: float) -> None:
        step, value = one
        pair.together += 1
        spread = None
        if self._spread:
            if len(pair._window) >= LEAST:
                spread = pair._window.compute_mad() * 1.4826
            if pair._before is not None and math.isfinite(value - pair._before):
                pair._window.push(value - pair._before)
            pair._before = value
        difference = abs(value - other)
        if difference > pair.largest_difference:
            pair.largest_difference = difference
        if self._allowed(value, other, spread):
            pair._row.clear()
            return
        pair.differing_steps += 1
        if pair.first_divergence is None:
            pair._row.append((step, value, other))
            if len(pair._row) == (IN_A_ROW if self._spread else 1):
                pair.first_divergence = pair._row[0]
