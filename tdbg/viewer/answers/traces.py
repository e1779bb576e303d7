"""Profiler traces of a run: where time and memory went."""

from collections.abc import Sequence
from math import isfinite
from typing import Any, Literal

import msgspec

from tdbg.core.errors import TdbgError
from tdbg.core.files import describe_failure, open_regular
from tdbg.traces.analyze.rank_sampling import select_ranks
from tdbg.traces.parse.trace_files import TraceFile
from tdbg.traces.render.summary_data import describe_flames, describe_summaries
from tdbg.traces.render.trace_page import describe_page
from tdbg.traces.summary import Summary
from tdbg.traces.trace_options import Selected, load_summaries, select_traces
from tdbg.viewer.routes import API, Download, NotFoundError, route
from tdbg.viewer.run_library import Served
from tdbg.viewer.series_answers import CallTrees, TracePage, TraceSpans, TraceSummaries
from tdbg.viewer.trace_indexes import Reading

MAX_SPANS = 10_000
MAX_ROWS = 100_000
NO_TRACES: dict[str, Any] = {"times": "ns", "traces": []}


class TraceQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which traces. windows: last or all. file: that trace alone, as a path in the run directory."""

    ranks: str = ""
    windows: Literal["last", "all"] = "last"
    file: str = ""


class SummaryQuery(TraceQuery, kw_only=True, forbid_unknown_fields=True):
    """rows: of each table at most so many, those of the longest total time; left_out counts the others."""

    rows: int = 1_000


class FlameQuery(TraceQuery, kw_only=True, forbid_unknown_fields=True):
    """How calls are joined: operator, stack or module; empty: what there is."""

    by: Literal["", "operator", "stack", "module"] = ""


class FileQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which trace, as the page of the traces numbers it."""

    rank: int
    attempt: int = 0
    window: int = 0


class SpansQuery(FileQuery, kw_only=True, forbid_unknown_fields=True):
    """Which spans of which trace. from_ms, to_ms: from the start of the trace; left out: all of it. spans: at most so many.

    step: the range of that step instead; all of the trace if it has no such step.
    """

    from_ms: float = 0.0
    to_ms: float | None = None
    step: int | None = None
    spans: int = 2_000


class NoTraceError(NotFoundError):
    """The run has no such trace."""


@route("GET", f"{API}/runs/{{run}}/traces", answers=TraceSummaries)
def show_traces(served: Served, run: str, query: SummaryQuery) -> dict[str, Any]:
    """Steps, parts, operators and memory of each trace, as `tdbg trace show --json`; none of a run that was not profiled."""
    found = _select(served, run, query)
    reading = served.traces.follow_reading(found)
    if reading is not None or not found:
        return {**NO_TRACES, "ranks": None, "ranks_left_out": [], **_format_reading(reading)}
    return describe_summaries(_load(served, found), rows=min(max(query.rows, 1), MAX_ROWS))


@route("GET", f"{API}/runs/{{run}}/traces/flame", answers=CallTrees)
def show_flames(served: Served, run: str, query: FlameQuery) -> dict[str, Any]:
    """The tree of calls of each trace, as `tdbg trace flame --json`."""
    found = _select(served, run, query)
    reading = served.traces.follow_reading(found)
    if reading is not None or not found:
        return {**NO_TRACES, **_format_reading(reading)}
    return describe_flames(_load(served, found), query.by)


@route("GET", f"{API}/runs/{{run}}/traces/page", answers=TracePage)
def draw_traces(served: Served, run: str, query: TraceQuery) -> dict[str, Any]:
    """Steps by part, flame graphs, memory and tables, as `tdbg trace show --html` shows them; of many ranks some."""
    found = _select(served, run, query)
    chosen = found if query.ranks or query.file or not found else select_ranks(found).found
    reading = served.traces.follow_reading(chosen)
    if reading is not None or not found:
        return {**describe_page([]), **_format_reading(reading)}
    return describe_page(_load(served, chosen))


@route("GET", f"{API}/runs/{{run}}/traces/spans")
def list_spans(served: Served, run: str, query: SpansQuery) -> TraceSpans:
    """The longest spans of a range of a trace, as many as are wanted, and how many others begin in it."""
    from tdbg.traces.analyze.span_columns import describe_range

    one = _find_window(served, run, query)
    if not (isfinite(query.from_ms) and isfinite(query.to_ms or 0.0)):
        raise TdbgError("from_ms and to_ms are numbers of milliseconds", "leave them out for the whole trace")
    reading = served.traces.follow_reading([one], spans=True)
    if reading is not None:
        return TraceSpans(from_ms=query.from_ms, to_ms=query.to_ms or 0.0, reading=reading)
    spans = served.traces.open_spans(one)
    whole_ms = (spans.index.end - spans.index.start) / 1e6
    of_step = None if query.step is None else _find_step(served.traces.load_summary(one), query.step)
    from_ms, to_ms = of_step or (query.from_ms, whole_ms if query.to_ms is None else query.to_ms)
    found = describe_range(spans, from_ms, to_ms, min(max(query.spans, 1), MAX_SPANS))
    about = {"whole_ms": whole_ms, "step": query.step if of_step else None, **msgspec.structs.asdict(found)}
    return TraceSpans(from_ms=from_ms, to_ms=to_ms, **about)


def _find_step(read: Summary, number: int) -> tuple[float, float] | None:
    """Where a step begins and ends, in milliseconds from the start of its trace."""
    step = next((one for one in read.steps if one.number == number), None)
    if step is None:
        return None
    begin = step.start - read.start
    return begin / 1e6, (begin + step.length) / 1e6


@route("GET", f"{API}/runs/{{run}}/traces/file")
def send_trace(served: Served, run: str, query: FileQuery) -> Download:
    """The trace as the profiler wrote it: ui.perfetto.dev and chrome://tracing open it."""
    return _open_trace(_find_window(served, run, query))


def _find_window(served: Served, run: str, query: FileQuery) -> TraceFile:
    for one in _select(served, run, TraceQuery(windows="all")):
        if (one.rank, one.attempt, one.window) == (query.rank, query.attempt, query.window):
            return one
    raise NoTraceError("this run has no such trace", "GET .../traces/page lists them")


def _open_trace(one: TraceFile) -> Download:
    packed = ".gz" if one.path.suffix == ".gz" else ""
    try:
        return Download(open_regular(one.path), f"rank{one.rank}-window{one.window}.json{packed}")
    except (OSError, ValueError) as error:
        raise TdbgError(f"the trace cannot be read: {describe_failure(error)}", "") from None


def _load(served: Served, found: Sequence[TraceFile]) -> list[tuple[TraceFile, Summary]]:
    """Their summaries: to look at a run writes nothing into it."""
    return load_summaries(found, trees=True, load=lambda one, trees: served.traces.load_summary(one))


def _format_reading(reading: Reading | None) -> dict[str, Any]:
    return {} if reading is None else {"reading": reading}


def _select(served: Served, run: str, query: TraceQuery) -> list[TraceFile]:
    """The traces; none where the run was not profiled."""
    path = served.runs.open_run(run).path
    if not any(path.glob("rank*/traces/*")) and not any(path.glob("rank*/*/traces/*")):
        return []
    windows = "all" if query.file else query.windows
    found = select_traces(Selected(paths=[str(path)], ranks=query.ranks, windows=windows))
    if not query.file:
        return found
    wanted = {query.file, f"{query.file}.gz"}  # it is compressed once it is written
    chosen = [one for one in found if one.path.relative_to(path).as_posix() in wanted]
    if not chosen:
        raise NoTraceError("this run has no such trace", "GET .../traces/page lists them")
    return chosen
