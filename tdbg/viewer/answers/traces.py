"""Profiler traces of a run: where time and memory went."""

from typing import Any

import msgspec

from tdbg.core.errors import TdbgError
from tdbg.traces.render.summary_data import describe_flames, describe_summaries
from tdbg.traces.trace_options import Selected, load_summaries, select_traces
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_library import Served, UnknownRunError


class TraceQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which traces. windows: last or all."""

    ranks: str = ""
    windows: str = "last"


class FlameQuery(TraceQuery, kw_only=True, forbid_unknown_fields=True):
    """How calls are joined: operator, stack or module; empty: what there is."""

    by: str = ""


class NoTraceError(UnknownRunError):
    """The run was not profiled."""


@route("GET", f"{API}/runs/{{run}}/traces")
def show_traces(served: Served, run: str, query: TraceQuery) -> dict[str, Any]:
    """Steps, parts, operators and memory of each trace, as `tdbg trace show --json`."""
    return describe_summaries(load_summaries(_select(served, run, query), trees=False))


@route("GET", f"{API}/runs/{{run}}/traces/flame")
def show_flames(served: Served, run: str, query: FlameQuery) -> dict[str, Any]:
    """The tree of calls of each trace, as `tdbg trace flame --json`."""
    return describe_flames(load_summaries(_select(served, run, query), trees=True), query.by)


def _select(served: Served, run: str, query: TraceQuery) -> Any:
    path = served.runs.open_run(run).path
    if not any(path.glob("rank*/**/traces")):
        raise NoTraceError("this run has no traces", "make some with `tdbg profile`")
    try:
        return select_traces(Selected(paths=[str(path)], ranks=query.ranks, windows=query.windows))
    except TdbgError as error:
        raise NoTraceError(str(error), error.hint) from None
