"""Curves of metrics from their rows, and as plain data: what `tdbg metrics plot --json` prints and the viewer serves."""

from collections.abc import Mapping, Sequence

from tdbg.metrics.metrics_options import key_filter
from tdbg.metrics.render.curves import Curve
from tdbg.metrics.rows.row_reader import Reading
from tdbg.metrics.rows.series import MAX_KEYS


def collect_curves(reading: Reading, globs: Sequence[str], smooth: float) -> tuple[dict[str, list[Curve]], set[str]]:
    """The curves of each key that is wanted, and all keys."""
    wanted = key_filter(globs)
    found: dict[tuple[str, int, str], Curve] = {}
    known: dict[str, bool] = {}
    for rank, line in reading.iter_lines():
        for key, value in line.values.items():
            if key not in known and len(known) < MAX_KEYS:
                known[key] = wanted(key)
            if known.get(key):
                at = (key, rank, line.source)
                if at not in found:
                    found[at] = Curve(key, rank, line.source, smooth)
                found[at].add_point(line.step, value)
    curves: dict[str, list[Curve]] = {}
    for (key, _, _), curve in sorted(found.items()):
        curves.setdefault(key, []).append(curve)
    return curves, set(known)


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
