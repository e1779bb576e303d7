"""Log records of a run, filtered, a part at a time."""

from typing import Any, Literal

import msgspec

from tdbg.logs.filter_args import FilterArgs, validate_args
from tdbg.logs.log_window import parse_place, read_window
from tdbg.logs.run_filter import Job
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_library import Served

MAX_RECORDS = 1_000
MAX_BYTES = 64 << 20  # looked at for one answer


class LogsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which records. kind: debug, info or all; text: a regular expression; after: where the last answer ended."""

    kind: Literal["debug", "info", "all"] = "debug"
    flag: str = ""
    ranks: str = ""
    level: str = ""
    steps: str = ""
    text: str = ""
    after: str = ""
    limit: int = 200


class LogPart(msgspec.Struct, kw_only=True):
    """Records in the order of the files. after: give it to go on; None at the end. Sizes in bytes."""

    records: list[dict[str, Any]]
    after: str | None
    looked_at: int
    total: int


@route("GET", f"{API}/runs/{{run}}/logs")
def filter_logs(served: Served, run: str, query: LogsQuery) -> LogPart:
    """Records by flag, rank, level, step and text, as `tdbg filter-logs --format jsonl`."""
    args = FilterArgs(
        paths=[str(served.runs.open_run(run).path)],
        kind="both" if query.kind == "all" else query.kind,
        flag=query.flag.split(",") if query.flag else (),
        ranks=query.ranks or "all",
        level=query.level,
        steps=query.steps,
        regex=query.text,
    )
    validate_args(args)
    found = read_window(Job(args), parse_place(query.after), min(max(query.limit, 1), MAX_RECORDS), MAX_BYTES)
    after = found.next.as_text() if found.next is not None else None
    return LogPart(records=found.records, after=after, looked_at=found.looked_at, total=found.total)
