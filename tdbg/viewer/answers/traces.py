"""Profiler traces of a run: where time and memory went."""

from typing import Any, Literal

import msgspec

from tdbg.traces.parse.trace_files import TraceFile
from tdbg.traces.render.summary_data import describe_flames, describe_summaries
from tdbg.traces.trace_options import Selected, load_summaries, select_traces
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_library import Served

NO_TRACES: dict[str, Any] = {"times": "ns", "traces": []}


class TraceQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which traces. windows: last or all."""

    ranks: str = ""
    windows: Literal["last", "all"] = "last"


class FlameQuery(TraceQuery, kw_only=True, forbid_unknown_fields=True):
    """How calls are joined: operator, stack or module; empty: what there is."""

    by: Literal["", "operator", "stack", "module"] = ""


@route("GET", f"{API}/runs/{{run}}/traces")
def show_traces(served: Served, run: str, query: TraceQuery) -> dict[str, Any]:
    """Steps, parts, operators and memory of each trace, as `tdbg trace show --json`; none of a run that was not profiled."""
    found = _select(served, run, query)
    return (
        describe_summaries(load_summaries(found, trees=False))
        if found
        else {**NO_TRACES, "ranks": None, "ranks_left_out": []}
    )


@route("GET", f"{API}/runs/{{run}}/traces/flame")
def show_flames(served: Served, run: str, query: FlameQuery) -> dict[str, Any]:
    """The tree of calls of each trace, as `tdbg trace flame --json`."""
    found = _select(served, run, query)
    return describe_flames(load_summaries(found, trees=True), query.by) if found else NO_TRACES


def _select(served: Served, run: str, query: TraceQuery) -> list[TraceFile]:
    """The traces; none where the run was not profiled."""
    path = served.runs.open_run(run).path
    if not any(path.glob("rank*/traces/*")) and not any(path.glob("rank*/*/traces/*")):
        return []
    return select_traces(Selected(paths=[str(path)], ranks=query.ranks, windows=query.windows))
