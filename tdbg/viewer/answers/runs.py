"""The list of runs, and how far one is."""

from typing import Any

import msgspec

from tdbg.core.rundir import RunDir
from tdbg.launch.live import read_snapshot
from tdbg.launch.run_list import RunEntry, describe_run_entry
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_answers import RunStatus
from tdbg.viewer.run_library import Served

MAX_RUNS = 1_000


class RunList(msgspec.Struct, kw_only=True):
    """The runs, the newest first."""

    folder: str
    runs: list[RunEntry]
    left_out: int


class RunsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which runs are listed."""

    offset: int = 0
    limit: int = 100


@route("GET", f"{API}/runs")
def list_runs(served: Served, query: RunsQuery) -> RunList:
    """List the runs: status, verdict, duration, last loss."""
    names = served.runs.list_names()
    first, limit = max(query.offset, 0), min(max(query.limit, 0), MAX_RUNS)
    shown = names[first : first + limit]
    runs = [describe_run_entry(RunDir(served.runs.folder / name)) for name in shown]
    return RunList(folder=served.runs.label, runs=runs, left_out=len(names) - len(shown))


@route("GET", f"{API}/runs/{{run}}/status", answers=RunStatus)
def show_status(served: Served, run: str) -> dict[str, Any]:
    """How far a run is: rank, step, rate, loss, level, last finding, as `tdbg status --json`."""
    return read_snapshot(served.runs.open_run(run)).as_dict()
