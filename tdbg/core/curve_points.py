"""Curves of a run in constant memory: thinned so that extremes, gaps, non-finite values and marked steps stay.

What comes out is plain data, which ``web/charts.js`` draws.
"""

import math
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import sub
from typing import NotRequired, TypedDict

from tdbg.core.events import Number

MAX_STEP = 1 << 53  # a browser's numbers are exact up to here
MAX_GAPS = 500  # of a curve, of each kind: missing records, non-finite values
GAP_RATIO = 8  # a gap is this many times the median distance between the records before it ...
LEAST_GAP = 20  # ... and this many steps
RECENT = 31  # distances of which the median is the usual one: that of sparse records after as many of them
NON_FINITE = ("nan", "inf", "-inf")


class CurveData(TypedDict):
    """A curve for ``drawCurves``. y: None breaks the line. gaps: the steps of those breaks before which records are
    missing. non_finite: first step, last step, values, kind. clock: by its number that which tells when each step was.
    uid: by which a chart knows it when it is drawn again under another name.
    """

    name: str
    x: list[int]
    y: list[float | None]
    count: int
    gaps: list[int]
    non_finite: list[tuple[int, int, int, str]]
    clock: NotRequired[int]
    uid: NotRequired[str]


class BandData(TypedDict):
    """The least and the most of many curves, by step."""

    name: str
    x: list[int]
    low: list[float]
    high: list[float]


class ValueBuckets:
    """Steps and values in constant memory: of each bucket of equally many values the least and the most.

    buckets: how many at most; two neighbours become one when there are more.
    """

    def __init__(self, buckets: int) -> None:
        self._most = max(buckets, 2) & ~1
        self._size = 1  # values of a whole bucket
        self._held = 1  # values of the last one
        self._low_steps, self._high_steps = array("q"), array("q")
        self._lows, self._highs = array("d"), array("d")

    def add_value(self, step: int, value: float) -> None:
        """The next value, which is finite."""
        if self._held < self._size:
            self._held += 1
            if value < self._lows[-1]:
                self._lows[-1], self._low_steps[-1] = value, step
            elif value > self._highs[-1]:
                self._highs[-1], self._high_steps[-1] = value, step
            return
        if len(self._lows) >= self._most:
            self._join_buckets()
        self._held = 1
        self._lows.append(value)
        self._highs.append(value)
        self._low_steps.append(step)
        self._high_steps.append(step)

    def add_values(self, steps: Sequence[int], values: Sequence[float]) -> None:
        """The next values, all of them finite: as `add_value` of each. Cost: 0.1 us a value of a long series."""
        at = self._append_single(steps, values) if self._size == 1 else 0
        while at < len(values):
            part = values[at : at + self._size - self._held]
            if not part:  # the last bucket is whole
                self.add_value(steps[at], values[at])
                at += 1
                continue
            low, high = min(part), max(part)
            if low < self._lows[-1]:
                self._lows[-1], self._low_steps[-1] = low, steps[at + part.index(low)]
            if high > self._highs[-1]:
                self._highs[-1], self._high_steps[-1] = high, steps[at + part.index(high)]
            self._held += len(part)
            at += len(part)

    def count_buckets(self) -> int:
        """How many buckets there are now."""
        return len(self._lows)

    def _append_single(self, steps: Sequence[int], values: Sequence[float]) -> int:
        """A bucket of its own for each of the first values, as long as there is room; returns how many were taken."""
        room = max(self._most - len(self._lows), 0)
        self._lows.extend(values[:room])
        self._highs.extend(values[:room])
        self._low_steps.extend(steps[:room])
        self._high_steps.extend(steps[:room])
        return min(room, len(values))

    def _join_buckets(self) -> None:
        """Make one bucket of each two neighbours."""
        for values, steps, better in ((self._lows, self._low_steps, min), (self._highs, self._high_steps, max)):
            kept = [better((at, at + 1), key=values.__getitem__) for at in range(0, len(values) - 1, 2)]
            values[:], steps[:] = array("d", [values[at] for at in kept]), array("q", [steps[at] for at in kept])
        self._size *= 2

    def iter_extremes(self) -> Iterator[tuple[tuple[int, float], tuple[int, float]]]:
        """Step and value of the least and of the most of each bucket, in order."""
        lows, highs = zip(self._low_steps, self._lows, strict=True), zip(self._high_steps, self._highs, strict=True)
        return zip(lows, highs, strict=True)


class CurveBreaks:
    """Where a curve is not one line: records are missing before a step, or values are not finite.

    One rule for every chart. gaps: the steps after a gap. non_finite: first step, last step, values, kind.
    """

    def __init__(self) -> None:
        self.gaps: list[int] = []
        self.non_finite: list[tuple[int, int, int, str]] = []
        self._last_step: int | None = None
        self._last_is_finite = True
        self._distances: deque[int] = deque(maxlen=RECENT)

    def add_step(self, step: int, kind: str = "") -> None:
        """The step of the next value. kind: what it is instead of a finite number."""
        is_gap = self._find_gap(step)
        if kind:
            self._add_non_finite(step, kind, is_gap)
        elif is_gap:
            self.gaps.append(step)
        self._last_step, self._last_is_finite = step, not kind

    def add_steps(self, steps: Sequence[int]) -> None:
        """The steps of the next values, which are finite."""
        if not steps:
            return
        distances = list(map(sub, steps[1:], steps))
        if self._last_step is not None:
            distances.insert(0, steps[0] - self._last_step)
        if distances and (min(distances) <= 0 or max(distances) > LEAST_GAP):
            for step in steps:
                self.add_step(step)
            return
        self._distances.extend(distances[-RECENT:])
        self._last_step, self._last_is_finite = steps[-1], True

    def _find_gap(self, step: int) -> bool:
        distance = 0 if self._last_step is None else step - self._last_step
        if distance <= 0:
            return False
        is_gap = False
        if distance > LEAST_GAP and self._distances and len(self.gaps) < MAX_GAPS:
            is_gap = distance > GAP_RATIO * sorted(self._distances)[len(self._distances) // 2]
        self._distances.append(distance)
        return is_gap

    def _add_non_finite(self, step: int, kind: str, is_gap: bool) -> None:
        if self.non_finite and not self._last_is_finite and not is_gap:
            first, _, count, kinds = self.non_finite[-1]
            known = kinds.split("+")
            kinds = kinds if kind in known else "+".join([*known, kind])
            self.non_finite[-1] = (first, step, count + 1, kinds)
            return
        if len(self.non_finite) >= MAX_GAPS:
            self.non_finite = _join_spans(self.non_finite)
        self.non_finite.append((step, step, 1, kind))

    def build_data(self, name: str, points: Iterable[tuple[int, float]], count: int) -> CurveData:
        """The curve through these points, broken, in the order of steps."""
        ordered: list[tuple[int, int, float | None]] = [(step, 1, value) for step, value in points]
        ordered += [(step, 0, None) for step in self.gaps]
        ordered += [(first, 0, None) for first, *_ in self.non_finite]
        ordered.sort(key=lambda point: point[:2])
        return {
            "name": name,
            "x": [step for step, _, _ in ordered],
            "y": [round_value(value) for _, _, value in ordered],
            "count": count,
            "gaps": list(self.gaps),
            "non_finite": list(self.non_finite),
        }


class CurvePoints(ValueBuckets):
    """One curve: the extremes of its buckets, and every marked step.

    marked: steps whose value stays (or, where a step has no record, that of the next one).
    """

    def __init__(self, marked: Iterable[int] = (), buckets: int = 1000) -> None:
        super().__init__(buckets)
        self.count = 0
        self._marked = sorted(set(marked), reverse=True)
        self._kept_from = -MAX_STEP  # the next value from this step on is kept: the first one, and marked ones
        self._kept: list[tuple[int, float]] = []
        self._last: tuple[int, float] | None = None
        self._breaks = CurveBreaks()

    def add_point(self, step: int, value: Number | None) -> None:
        """The next value; None for a record without one. What is no number is passed over. Cost: about 1 us."""
        if type(step) is not int or not -MAX_STEP < step < MAX_STEP:
            return
        if type(value) is float or type(value) is int:
            if math.isfinite(value):
                self._add_finite(step, float(value))
            else:
                self._breaks.add_step(step, name_non_finite(value))
        elif isinstance(value, str) and value in NON_FINITE:
            self._breaks.add_step(step, value)

    def _add_finite(self, step: int, value: float) -> None:
        self._breaks.add_step(step)
        if step >= self._kept_from:
            self._keep_value(step, value)
        self._last = (step, value)
        self.count += 1
        self.add_value(step, value)

    def _keep_value(self, step: int, value: float) -> None:
        self._kept.append((step, value))
        while self._marked and self._marked[-1] <= step:
            self._marked.pop()
        self._kept_from = self._marked[-1] if self._marked else MAX_STEP

    def is_empty(self) -> bool:
        """True if there was neither a number nor a NaN or Inf."""
        return not self.count and not self._breaks.non_finite

    def as_data(self, name: str) -> CurveData:
        """The curve as plain data, in the order of steps."""
        points = {*self._kept, *(point for bucket in self.iter_extremes() for point in bucket)}
        if self._last is not None:
            points.add(self._last)
        return self._breaks.build_data(name, points, self.count)


def name_non_finite(value: float) -> str:
    """``nan``, ``inf`` or ``-inf``."""
    return "nan" if value != value else "inf" if value > 0 else "-inf"


def _join_spans(spans: Sequence[tuple[int, int, int, str]]) -> list[tuple[int, int, int, str]]:
    """Make one span of each two neighbours."""
    joined = []
    for at in range(0, len(spans), 2):
        pair = spans[at : at + 2]
        kinds = "+".join(dict.fromkeys(kind for *_, kinds in pair for kind in kinds.split("+")))
        joined.append((pair[0][0], pair[-1][1], sum(count for _, _, count, _ in pair), kinds))
    return joined


class ValueBand:
    """The least and the most of many curves, in buckets of equally many steps: for more ranks than lines can show.

    last_step: the last one there will be; later ones count for the last bucket.
    """

    def __init__(self, last_step: int, buckets: int = 400) -> None:
        self._steps_each = max(-(-(max(last_step, 0) + 1) // buckets), 1)
        most = max(last_step, 0) // self._steps_each + 1
        self._lows, self._highs = array("d", [math.inf]) * most, array("d", [-math.inf]) * most

    def add_point(self, step: int, value: Number | None) -> None:
        """A value of any of the curves; what is no finite number is passed over."""
        if (type(value) is float or type(value) is int) and math.isfinite(value) and type(step) is int:
            at = min(max(step, 0) // self._steps_each, len(self._lows) - 1)
            self._lows[at] = min(self._lows[at], float(value))
            self._highs[at] = max(self._highs[at], float(value))

    def as_data(self, name: str) -> BandData:
        """The band as plain data; steps without a value are left out."""
        found = [at for at, low in enumerate(self._lows) if low < math.inf]
        return {
            "name": name,
            "x": [at * self._steps_each for at in found],
            "low": [round_value(self._lows[at]) or 0.0 for at in found],
            "high": [round_value(self._highs[at]) or 0.0 for at in found],
        }


def round_value(value: float | None) -> float | None:
    """Seven digits, which no picture shows; None stays."""
    return value if value is None else float(f"{value:.7g}")


def merge_equal(curves: Sequence[tuple[str, CurveData]]) -> list[tuple[list[str], CurveData]]:
    """Curves by what they show: those of equal points are one, with the names of all."""
    found: dict[tuple[object, ...], tuple[list[str], CurveData]] = {}
    for name, curve in curves:
        key = (tuple(curve["x"]), tuple(curve["y"]), tuple(curve["non_finite"]))
        found.setdefault(key, ([], curve))[0].append(name)
    return list(found.values())
