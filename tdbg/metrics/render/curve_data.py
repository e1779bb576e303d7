"""Curves of metrics from their rows, and as plain data: what `tdbg metrics plot --json` prints and the viewer serves."""

from collections.abc import Iterator, Mapping, Sequence

from tdbg.metrics.metrics_options import key_filter
from tdbg.metrics.render.curves import Curve
from tdbg.metrics.rows.row_reader import Batch, Line, Reading
from tdbg.metrics.rows.series import MAX_KEYS, count_as_numbers, extract_columns, group_by_source

CURVE_NUMBERS = 100  # that take as much memory as an empty curve


class CurveCollector:
    """The curves of each key that is wanted, row by row. known: all keys, and whether each is wanted."""

    def __init__(self, globs: Sequence[str], smooth: float) -> None:
        self.known: dict[str, bool] = {}
        self._wanted, self._smooth = key_filter(globs), smooth
        self._curves: dict[tuple[str, int, str], Curve] = {}

    def add_batch(self, batch: Batch) -> None:
        """Take rows."""
        for source, lines in group_by_source(batch.lines).items():
            for key, steps, values in _iter_columns(lines):
                if key not in self.known and len(self.known) < MAX_KEYS:
                    self.known[key] = self._wanted(key)
                if self.known.get(key):
                    self._get_curve(key, batch.rank, source).add_points(steps, values)

    def count_numbers(self) -> int:
        """How many numbers take as much memory as the curves and keys, about."""
        return sum(map(_count_numbers, self._curves.values())) + count_as_numbers(self.known)

    def _get_curve(self, key: str, rank: int, source: str) -> Curve:
        at = (key, rank, source)
        if at not in self._curves:
            self._curves[at] = Curve(key, rank, source, self._smooth)
        return self._curves[at]

    def list_by_key(self) -> dict[str, list[Curve]]:
        """The curves of each key, by rank and source."""
        found: dict[str, list[Curve]] = {}
        for (key, _, _), curve in sorted(self._curves.items()):
            found.setdefault(key, []).append(curve)
        return found


def _count_numbers(curve: Curve) -> int:
    """A step and a value at each end of a bucket, and what has no value."""
    breaks = len(curve.breaks.gaps) + len(curve.breaks.non_finite)
    return CURVE_NUMBERS + 4 * curve.count_buckets() + 2 * len(curve.wild_steps) + 4 * breaks


def collect_curves(reading: Reading, globs: Sequence[str], smooth: float) -> tuple[dict[str, list[Curve]], set[str]]:
    """The curves of each key that is wanted, and all keys."""
    collector = CurveCollector(globs, smooth)
    for batch in reading.iter_batches():
        collector.add_batch(batch)
    return collector.list_by_key(), set(collector.known)


def _iter_columns(lines: Sequence[Line]) -> Iterator[tuple[str, Sequence[int], Sequence[float]]]:
    """Each key with the steps and values of the rows that have it."""
    steps, keys = [line.step for line in lines], tuple(lines[0].values)
    columns = extract_columns(keys, [line.values for line in lines])
    if columns is not None:
        yield from ((key, steps, column) for key, column in zip(keys, columns, strict=True))
        return
    parts: dict[str, tuple[list[int], list[float]]] = {}
    for line in lines:
        for key, value in line.values.items():
            of_steps, of_values = parts.setdefault(key, ([], []))
            of_steps.append(line.step)
            of_values.append(value)
    yield from ((key, *part) for key, part in parts.items())


def build_curve_dicts(curves: Mapping[str, Sequence[Curve]]) -> list[dict[str, object]]:
    """Curves as plain data."""
    return [
        {
            "key": one.key,
            "rank": one.rank,
            "source": one.source,
            "steps": [step for step, _ in one.points],
            "values": [value for _, value in one.points],
            "count": one.count,
            "not_finite": one.non_finite,
            "not_finite_steps": list(one.wild_steps),
            "gaps": list(one.breaks.gaps),
            "not_finite_spans": [list(span) for span in one.breaks.non_finite],
        }
        for those in curves.values()
        for one in those
    ]
