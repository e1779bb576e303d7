"""Series of numbers over steps."""

import glob
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tdbg.core.errors import TdbgError
from tdbg.metrics.metrics_options import key_filter
from tdbg.metrics.render.curve_data import CurveCollector, build_curve_dicts, collect_curves
from tdbg.metrics.rows.growing_rows import can_grow
from tdbg.metrics.rows.row_files import RowsFile, find_rows_files
from tdbg.metrics.rows.row_reader import Counts, Reading
from tdbg.metrics.rows.series import Tally, build_tally
from tdbg.metrics.rows.series_data import describe_metrics, list_series
from tdbg.viewer.encoding import encode_json
from tdbg.viewer.growing_metrics import GrowingMetrics
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_library import Served
from tdbg.viewer.series_answers import CurvesAnswer, MetricsAnswer

MAX_KEPT = 16  # answers in memory: thinned, so some 100 KB each
MAX_KEPT_BYTES = 16 << 20  # of all of them as JSON
AT_REST_S = (
    2.0  # a file that was written since then may have been written again at the same time: nothing is kept of it
)
GROWS_S = 60.0  # a file that was written since then is likely to be written again
States = tuple[tuple[int, int], ...]  # bytes of each file, and when it was written
Key = tuple[str, tuple[RowsFile, ...], tuple[str, ...], float | None]


@dataclass(slots=True)
class KeptAnswers:
    """The last answers, each with the state of the files that it was read from: one for each question."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _found: dict[Key, tuple[States, dict[str, Any], int]] = field(default_factory=dict)

    def get_answer(self, key: Key, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The answer that was kept, if its files are as they were; else what is read."""
        states = _read_states(key[1])
        with self._lock:
            kept = self._found.pop(key, None)
            if kept is not None and kept[0] == states:
                self._found[key] = kept  # the last to be given up
                return kept[1]
        found = read()
        if _is_at_rest(states):
            self._cache_answer(key, states, found)
        return found

    def _cache_answer(self, key: Key, states: States, found: dict[str, Any]) -> None:
        size = len(encode_json(found))
        if size > MAX_KEPT_BYTES:
            return
        with self._lock:
            self._found.pop(key, None)
            self._found[key] = states, found, size
            while len(self._found) > MAX_KEPT or self.nbytes > MAX_KEPT_BYTES:
                del self._found[next(iter(self._found))]

    @property
    def nbytes(self) -> int:
        """Bytes of all answers that are kept, as JSON."""
        return sum(size for _, _, size in self._found.values())

    def __len__(self) -> int:
        return len(self._found)


ANSWERS = KeptAnswers()
GROWING = GrowingMetrics()


class MetricsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which series. key: a glob; ranks: such as 0,3-5."""

    key: str = ""
    ranks: str = ""


class CurvesQuery(MetricsQuery, kw_only=True, forbid_unknown_fields=True):
    """Which curves. keys: names as they are, a JSON list; smooth: the weight of what was before, from 0 to less than 1."""

    keys: str = ""
    smooth: float = 0.0


@route("GET", f"{API}/runs/{{run}}/metrics", answers=MetricsAnswer)
def list_metrics(served: Served, run: str, query: MetricsQuery) -> dict[str, Any]:
    """Latest, best, least and most value of each key, as `tdbg metrics show --json`."""
    place = find_rows_files(str(served.runs.open_run(run).path), query.ranks)
    files, globs = tuple(place.files), tuple(_list_globs(query))
    return ANSWERS.get_answer((place.name, files, globs, None), lambda: _describe_rows(place.name, files, globs))


@route("GET", f"{API}/runs/{{run}}/metrics/curves", answers=CurvesAnswer)
def plot_metrics(served: Served, run: str, query: CurvesQuery) -> dict[str, Any]:
    """Steps and values of each key, thinned so that extremes stay, as `tdbg metrics plot --json`."""
    place = find_rows_files(str(served.runs.open_run(run).path), query.ranks)
    globs = (*_list_globs(query), *_read_names(query.keys))
    smooth = min(max(0.0, query.smooth), 0.999)  # in this order NaN becomes 0
    files = tuple(place.files)
    return ANSWERS.get_answer((place.name, files, globs, smooth), lambda: _plot_rows(place.name, files, globs, smooth))


def _describe_rows(name: str, files: tuple[RowsFile, ...], globs: tuple[str, ...]) -> dict[str, Any]:
    def describe(found: Tally, counts: Counts) -> dict[str, Any]:
        return describe_metrics(name, list_series(found.assign_units(), key_filter(globs)), found, counts)

    if _grows(files) and (growing := GROWING.describe(files, "series", Tally, describe)) is not None:
        return growing
    reading = Reading(files)
    return describe(build_tally(reading.iter_batches()), reading.counts)


def _plot_rows(name: str, files: tuple[RowsFile, ...], globs: tuple[str, ...], smooth: float) -> dict[str, Any]:
    def describe(found: CurveCollector, counts: Counts) -> dict[str, Any]:
        return {"run": name, "curves": build_curve_dicts(found.list_by_key())}  # all of its numbers are finite

    def collect() -> CurveCollector:
        return CurveCollector(globs, smooth)

    if _grows(files) and (growing := GROWING.describe(files, (globs, smooth), collect, describe)) is not None:
        return growing
    curves, _ = collect_curves(Reading(files), globs, smooth)
    return {"run": name, "curves": build_curve_dicts(curves)}


def _grows(files: tuple[RowsFile, ...]) -> bool:
    """True while a file is written to, and nothing that comes can take back what was there."""
    return not _is_at_rest(_read_states(files), GROWS_S) and can_grow(files)


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


def _is_at_rest(states: States, rest_s: float = AT_REST_S) -> bool:
    """True if no file was written of late."""
    return time.time_ns() - max((written for _, written in states), default=0) > rest_s * 1e9


def _list_globs(query: MetricsQuery) -> list[str]:
    return [query.key] if query.key else []


def _read_names(text: str) -> list[str]:
    """The globs that fit these names alone."""
    if not text:
        return []
    try:
        names = msgspec.json.decode(text, type=list[str])
    except msgspec.MsgspecError:
        names = []
    if not names:
        raise TdbgError("keys must be a JSON list of names", 'such as ["train/loss"]; leave it out for all')
    return [glob.escape(name) for name in names]
