"""Profiler traces of a run: where time and memory went."""

import functools
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from tdbg.core.errors import TdbgError
from tdbg.core.files import describe_failure, open_regular
from tdbg.traces.analyze.rank_sampling import select_ranks
from tdbg.traces.parse.trace_files import TraceFile
from tdbg.traces.render.summary_data import describe_flames, describe_summaries
from tdbg.traces.render.trace_page import describe_page
from tdbg.traces.summary import Summary
from tdbg.traces.trace_options import Selected, load_summaries, load_summary, select_traces
from tdbg.viewer.routes import API, Download, NotFoundError, route
from tdbg.viewer.run_library import Served
from tdbg.viewer.series_answers import CallTrees, TracePage, TraceSummaries

KEPT = 8  # summaries in memory: one takes some MB
NO_TRACES: dict[str, Any] = {"times": "ns", "traces": []}


class TraceQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which traces. windows: last or all. file: that trace alone, as a path in the run directory."""

    ranks: str = ""
    windows: Literal["last", "all"] = "last"
    file: str = ""


class FlameQuery(TraceQuery, kw_only=True, forbid_unknown_fields=True):
    """How calls are joined: operator, stack or module; empty: what there is."""

    by: Literal["", "operator", "stack", "module"] = ""


class FileQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which trace, as the page of the traces numbers it."""

    rank: int
    attempt: int = 0
    window: int = 0


class NoTraceError(NotFoundError):
    """The run has no such trace."""


@route("GET", f"{API}/runs/{{run}}/traces", answers=TraceSummaries)
def show_traces(served: Served, run: str, query: TraceQuery) -> dict[str, Any]:
    """Steps, parts, operators and memory of each trace, as `tdbg trace show --json`; none of a run that was not profiled."""
    found = _select(served, run, query)
    return (
        describe_summaries(_load(found, trees=False)) if found else {**NO_TRACES, "ranks": None, "ranks_left_out": []}
    )


@route("GET", f"{API}/runs/{{run}}/traces/flame", answers=CallTrees)
def show_flames(served: Served, run: str, query: FlameQuery) -> dict[str, Any]:
    """The tree of calls of each trace, as `tdbg trace flame --json`."""
    found = _select(served, run, query)
    return describe_flames(_load(found, trees=True), query.by) if found else NO_TRACES


@route("GET", f"{API}/runs/{{run}}/traces/page", answers=TracePage)
def draw_traces(served: Served, run: str, query: TraceQuery) -> dict[str, Any]:
    """Steps by part, flame graphs, memory and tables, as `tdbg trace show --html` shows them; of many ranks some."""
    found = _select(served, run, query)
    if not found:
        return describe_page([])
    chosen = found if query.ranks or query.file else select_ranks(found).found
    return describe_page(_load(chosen, trees=True))


@route("GET", f"{API}/runs/{{run}}/traces/file")
def send_trace(served: Served, run: str, query: FileQuery) -> Download:
    """The trace as the profiler wrote it: ui.perfetto.dev and chrome://tracing open it."""
    for one in _select(served, run, TraceQuery(windows="all")):
        if (one.rank, one.attempt, one.window) == (query.rank, query.attempt, query.window):
            return _open_trace(one)
    raise NoTraceError("this run has no such trace", "GET .../traces/page lists them")


def _open_trace(one: TraceFile) -> Download:
    packed = ".gz" if one.path.suffix == ".gz" else ""
    try:
        return Download(open_regular(one.path), f"rank{one.rank}-window{one.window}.json{packed}")
    except (OSError, ValueError) as error:
        raise TdbgError(f"the trace cannot be read: {describe_failure(error)}", "") from None


def _load(found: Sequence[TraceFile], *, trees: bool) -> list[tuple[TraceFile, Summary]]:
    """Their summaries, kept in memory: to look at a run writes nothing into it."""
    return load_summaries(found, trees=trees, load=_load_one)


def _load_one(one: TraceFile, trees: bool) -> Summary:
    try:
        state = one.path.stat()
    except OSError:
        return load_summary(one, trees, keep=False)  # which says what is wrong
    return _load_state(one, trees, state.st_size, state.st_mtime_ns)


@functools.lru_cache(maxsize=KEPT)
def _load_state(one: TraceFile, trees: bool, size_bytes: int, changed_ns: int) -> Summary:
    return load_summary(one, trees, keep=False)


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
