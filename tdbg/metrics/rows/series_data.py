"""The metrics of a run as plain data: what `tdbg metrics show --json` prints and the viewer serves."""

from collections.abc import Callable, Sequence
from typing import Any

from tdbg.core.tables import to_json_value
from tdbg.metrics.keys import CATEGORIES, PHASES, Key, KeyGrammarError
from tdbg.metrics.rows.row_reader import Counts
from tdbg.metrics.rows.series import Point, Series, Tally


def list_series(found: Tally, wanted: Callable[[str], bool]) -> list[Series]:
    """The series whose key is wanted: phases, then tasks, then metrics; keys outside the grammar at the end."""
    return sorted((one for one in found.series.values() if wanted(one.key)), key=_build_sort_key)


def _build_sort_key(one: Series) -> tuple[object, ...]:
    try:
        key = Key.parse(one.key)
    except KeyGrammarError:
        return (3, 0, one.key, "", "", "", one.source, one.rank)
    first = PHASES.index(key.phase) if key.phase in PHASES else len(PHASES)
    kind = 2 if key.core else 1 if key.phase in CATEGORIES else 0
    return (kind, first, key.phase, key.subset, key.task, key.metric, one.source, one.rank)


def describe_metrics(name: str, every: Sequence[Series], found: Tally, counts: Counts) -> dict[str, Any]:
    """Series, rows and what is missing of them."""
    data = {
        "run": name,
        "rows": counts.rows,
        "lines_passed_over": counts.broken,
        "rows_made_again": counts.again,
        "rows_left_out": [
            {"rank": rank, "why": why, "rows": one.rows, "from_step": one.first_step}
            for (rank, why), one in sorted(found.unwritten.items())
        ],
        "steps_recorded": [
            {"rank": rank, "steps": one.count + one.missing, "recorded": one.count}
            for rank, one in sorted(found.records.items())
        ],
        "ranks": {rank: {"step": end.step, "epoch": end.epoch, "t": end.value} for rank, end in found.last.items()},
        "series": [build_series_dict(one) for one in every],
        "text": [{"key": key, "rank": rank, "text": text} for (key, rank), text in sorted(found.texts.items())],
    }
    plain: dict[str, Any] = to_json_value(data)
    return plain


def build_series_dict(one: Series) -> dict[str, object]:
    """A series as plain data."""

    def build_point_dict(of: Point | None) -> dict[str, object] | None:
        return None if of is None else of._asdict()

    return {
        "key": one.key,
        "rank": one.rank,
        "source": one.source,
        "phase": one.phase,
        "unit": one.unit or None,
        "latest": build_point_dict(one.last),
        "best": build_point_dict(one.best),
        "least": build_point_dict(one.least),
        "most": build_point_dict(one.most),
        "count": one.count,
        "not_finite": one.non_finite,
        "course": one.course.values,
    }
