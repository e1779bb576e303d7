"""Log records of a run, filtered, a part at a time; of several ranks also what they write alike, once."""

from itertools import islice
from typing import Any, Literal

import msgspec

from tdbg.core.errors import TdbgError
from tdbg.core.files import parse_json
from tdbg.core.tables import format_size
from tdbg.logs.collapse import Group, format_ranks, iter_groups
from tdbg.logs.filter_args import FilterArgs, validate_args
from tdbg.logs.log_window import parse_place, read_window
from tdbg.logs.run_filter import Job, as_json
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_library import Served

MAX_RECORDS = 1_000
MAX_BYTES = 64 << 20  # looked at for one answer
MAX_COLLAPSED_BYTES = 16 << 20  # of all logs: they are read by time, from the beginning


class LogsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which records. kind: debug, info or both; text: a regular expression; after: where the last answer ended.

    collapse: what several ranks write alike is one record, with its ranks.
    """

    kind: Literal["debug", "info", "both"] = "debug"
    flag: str = ""
    ranks: str = ""
    level: str = ""
    steps: str = ""
    text: str = ""
    after: str = ""
    limit: int = 200
    collapse: bool = False


class LogPart(msgspec.Struct, kw_only=True):
    """Records in the order of the files, collapsed ones by time. after: give it to go on; None at the end. Sizes in bytes."""

    records: list[dict[str, Any]]
    after: str | None
    looked_at: int
    total: int


@route("GET", f"{API}/runs/{{run}}/logs")
def filter_logs(served: Served, run: str, query: LogsQuery) -> LogPart:
    """Records by flag, rank, level, step and text, as `tdbg filter-logs --format jsonl`."""
    args = FilterArgs(
        paths=[str(served.runs.open_run(run).path)],
        kind=query.kind,
        flag=query.flag.split(",") if query.flag else (),
        ranks=query.ranks or "all",
        level=query.level,
        steps=query.steps,
        regex=query.text,
    )
    validate_args(args)
    limit = min(max(query.limit, 1), MAX_RECORDS)
    if query.collapse:
        return _collapse_records(Job(args), query.after, limit)
    found = read_window(Job(args), parse_place(query.after), limit, MAX_BYTES)
    after = found.next.as_text() if found.next is not None else None
    return LogPart(records=found.records, after=after, looked_at=found.looked_at, total=found.total)


def _collapse_records(job: Job, after: str, limit: int) -> LogPart:
    """As `tdbg filter-logs --collapse`. after: how many were given."""
    if after and not (after.isascii() and after.isdigit() and len(after) < 16):
        raise TdbgError(f"there is no place {after[:60]!r} in the collapsed logs", "leave it out: the beginning")
    sources = job.inspect_sources()
    total = sum(source.size for source in sources)
    if total > MAX_COLLAPSED_BYTES:
        what = f"the logs are {format_size(total)}, more than can be collapsed while you wait"
        raise TdbgError(what, "`tdbg filter-logs RUN --collapse` takes its time")
    first = int(after or 0)
    ranks = {-1 if source.rank is None else source.rank for source in sources}
    groups = list(islice(iter_groups(job.iter_ordered_records(), ranks), first, first + limit + 1))
    following = str(first + limit) if len(groups) > limit else None
    return LogPart(records=[_as_row(one) for one in groups[:limit]], after=following, looked_at=total, total=total)


def _as_row(group: Group) -> dict[str, Any]:
    row = parse_json(as_json(group.first))
    found = row if isinstance(row, dict) else {"text": group.text.decode("utf-8", "backslashreplace")}
    return {**found, "ranks": format_ranks(group.ranks)}
