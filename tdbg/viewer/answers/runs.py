"""The list of runs, and how far one is."""

import time
from typing import Any

import msgspec

from tdbg.core.files import read_json
from tdbg.core.rundir import RunDir
from tdbg.launch.live import has_ended, read_snapshot
from tdbg.rules.verdict import REPORT_FILE
from tdbg.rules.view import read_info
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_library import RunLibrary

MAX_RUNS = 1_000


class RunEntry(msgspec.Struct, kw_only=True):
    """A run in the list. Times in seconds since 1970; duration_s: until now while it goes on."""

    name: str
    state: str  # running, ended
    start: float | None
    duration_s: float | None
    command: list[str]
    headline: str  # empty before the verdict is drawn
    severity: str | None
    codes: list[str]
    steps: int | None
    loss: float | str | None


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
def list_runs(library: RunLibrary, query: RunsQuery) -> RunList:
    """List the runs: status, verdict, duration, last loss."""
    names = library.list_names()
    first, limit = max(query.offset, 0), min(max(query.limit, 0), MAX_RUNS)
    shown = names[first : first + limit]
    runs = [describe_entry(RunDir(library.folder / name)) for name in shown]
    return RunList(folder=library.folder.name, runs=runs, left_out=len(names) - len(shown))


def describe_entry(run: RunDir) -> RunEntry:
    """What the list shows of a run: its two small files alone are read."""
    info, report = read_info(run), _read_report(run)
    start, end, is_over = _as_number(info.get("start")), _as_number(info.get("end")), has_ended(info)
    until = end if end is not None else None if is_over else time.time()
    ranks = [row for row in report.get("ranks", ()) if isinstance(row, dict)]
    command = info.get("command")
    return RunEntry(
        name=run.path.name,
        state="ended" if is_over else "running",
        start=start,
        duration_s=max(until - start, 0.0) if start is not None and until is not None else None,
        command=[str(word) for word in command] if isinstance(command, list) else [],
        headline=str(report.get("headline", "")).removeprefix("verdict: "),
        severity=report.get("worst_severity"),
        codes=[str(one.get("code")) for one in report.get("findings", ()) if isinstance(one, dict)],
        steps=max((row["steps"] for row in ranks if isinstance(row.get("steps"), int)), default=None),
        loss=next((row["loss"] for row in ranks if row.get("loss") is not None), None),
    )


def _read_report(run: RunDir) -> dict[str, Any]:
    try:
        found = read_json(run.path / REPORT_FILE)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _as_number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


@route("GET", f"{API}/runs/{{run}}/status")
def show_status(library: RunLibrary, run: str) -> dict[str, Any]:
    """How far a run is: rank, step, rate, loss, level, last finding, as `tdbg status --json`."""
    return read_snapshot(library.open_run(run)).as_dict()
