"""Series of numbers over steps."""

import glob
from typing import Any

import msgspec

from tdbg.core.errors import TdbgError
from tdbg.core.tables import to_json_value
from tdbg.metrics.metrics_options import key_filter
from tdbg.metrics.render.curve_data import build_curve_dicts, collect_curves
from tdbg.metrics.rows.row_files import find_rows_files
from tdbg.metrics.rows.row_reader import Reading
from tdbg.metrics.rows.series import build_tally
from tdbg.metrics.rows.series_data import describe_metrics, list_series
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_library import Served


class MetricsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which series. key: a glob; ranks: such as 0,3-5."""

    key: str = ""
    ranks: str = ""


class CurvesQuery(MetricsQuery, kw_only=True, forbid_unknown_fields=True):
    """Which curves. keys: names as they are, a JSON list; smooth: the weight of what was before, from 0 to less than 1."""

    keys: str = ""
    smooth: float = 0.0


@route("GET", f"{API}/runs/{{run}}/metrics")
def list_metrics(served: Served, run: str, query: MetricsQuery) -> dict[str, Any]:
    """Latest, best, least and most value of each key, as `tdbg metrics show --json`."""
    place = find_rows_files(str(served.runs.open_run(run).path), query.ranks)
    reading = Reading(place.files)
    found = build_tally(reading.iter_batches())
    return describe_metrics(place.name, list_series(found, key_filter(_list_globs(query))), found, reading.counts)


@route("GET", f"{API}/runs/{{run}}/metrics/curves")
def plot_metrics(served: Served, run: str, query: CurvesQuery) -> dict[str, Any]:
    """Steps and values of each key, thinned so that extremes stay, as `tdbg metrics plot --json`."""
    place = find_rows_files(str(served.runs.open_run(run).path), query.ranks)
    globs = [*_list_globs(query), *_read_names(query.keys)]
    curves, _ = collect_curves(Reading(place.files), globs, min(max(query.smooth, 0.0), 0.999))
    found: dict[str, Any] = to_json_value({"run": place.name, "curves": build_curve_dicts(curves)})
    return found


def _list_globs(query: MetricsQuery) -> list[str]:
    return [query.key] if query.key else []


def _read_names(text: str) -> list[str]:
    """The globs that fit these names alone."""
    if not text:
        return []
    try:
        names = msgspec.json.decode(text, type=list[str])
    except msgspec.MsgspecError:
        raise TdbgError("keys is no list of names", 'write a JSON list, such as ["train/loss"]') from None
    return [glob.escape(name) for name in names]
