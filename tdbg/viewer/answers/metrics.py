"""Series of numbers over steps."""

import functools
import glob
from collections.abc import Sequence
from typing import Any

import msgspec

from tdbg.core.errors import TdbgError
from tdbg.core.tables import to_json_value
from tdbg.metrics.metrics_options import key_filter
from tdbg.metrics.render.curve_data import build_curve_dicts, collect_curves
from tdbg.metrics.rows.row_files import RowsFile, find_rows_files
from tdbg.metrics.rows.row_reader import Reading
from tdbg.metrics.rows.series import build_tally
from tdbg.metrics.rows.series_data import describe_metrics, list_series
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_library import Served

KEPT = 16  # answers in memory: thinned, so some 100 KB each
States = tuple[tuple[int, int], ...]  # bytes of each file, and when it was written


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
    return _describe_rows(place.name, tuple(place.files), _read_states(place.files), tuple(_list_globs(query)))


@route("GET", f"{API}/runs/{{run}}/metrics/curves")
def plot_metrics(served: Served, run: str, query: CurvesQuery) -> dict[str, Any]:
    """Steps and values of each key, thinned so that extremes stay, as `tdbg metrics plot --json`."""
    place = find_rows_files(str(served.runs.open_run(run).path), query.ranks)
    globs = (*_list_globs(query), *_read_names(query.keys))
    smooth = min(max(query.smooth, 0.0), 0.999)
    return _plot_rows(place.name, tuple(place.files), _read_states(place.files), globs, smooth)


@functools.lru_cache(maxsize=KEPT)
def _describe_rows(
    name: str,
    files: tuple[RowsFile, ...],
    states: States,
    globs: tuple[str, ...],
) -> dict[str, Any]:
    reading = Reading(files)
    found = build_tally(reading.iter_batches())
    return describe_metrics(name, list_series(found, key_filter(globs)), found, reading.counts)


@functools.lru_cache(maxsize=KEPT)
def _plot_rows(
    name: str,
    files: tuple[RowsFile, ...],
    states: States,
    globs: tuple[str, ...],
    smooth: float,
) -> dict[str, Any]:
    curves, _ = collect_curves(Reading(files), globs, smooth)
    found: dict[str, Any] = to_json_value({"run": name, "curves": build_curve_dicts(curves)})
    return found


def _read_states(files: Sequence[RowsFile]) -> States:
    """What changes with a file. Rows take a microsecond each to read: of files that are as they were, answers are kept."""
    found = []
    for one in files:
        try:
            state = one.path.stat()
        except OSError:  # reading it says so
            found.append((-1, -1))
        else:
            found.append((state.st_size, state.st_mtime_ns))
    return tuple(found)


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
