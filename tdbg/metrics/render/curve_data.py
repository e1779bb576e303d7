"""Curves of metrics from their rows, and as plain data: what `tdbg metrics plot --json` prints and the viewer serves."""

from collections.abc import Iterator, Mapping, Sequence

from tdbg.metrics.metrics_options import key_filter
from tdbg.metrics.render.curves import Curve
from tdbg.metrics.rows.row_reader import Line, Reading
from tdbg.metrics.rows.series import MAX_KEYS, extract_columns, group_by_source


def collect_curves(reading: Reading, globs: Sequence[str], smooth: float) -> tuple[dict[str, list[Curve]], set[str]]:
    """The curves of each key that is wanted, and all keys."""
    wanted = key_filter(globs)
    found: dict[tuple[str, int, str], Curve] = {}
    known: dict[str, bool] = {}
    for batch in reading.iter_batches():
        for source, lines in group_by_source(batch.lines).items():
            for key, steps, values in _iter_columns(lines):
                if key not in known and len(known) < MAX_KEYS:
                    known[key] = wanted(key)
                if known.get(key):
                    at = (key, batch.rank, source)
                    if at not in found:
                        found[at] = Curve(key, batch.rank, source, smooth)
                    found[at].add_points(steps, values)
    curves: dict[str, list[Curve]] = {}
    for (key, _, _), curve in sorted(found.items()):
        curves.setdefault(key, []).append(curve)
    return curves, set(known)


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
