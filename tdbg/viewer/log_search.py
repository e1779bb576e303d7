"""Search the log records of a run, a part at a time.

An expression that may take forever runs in a process of its own, which is stopped after `LIMIT_S`. That process is
``python -m tdbg.viewer.log_search RUN``: it reads a query from stdin and prints a `LogPart`, or what is wrong with it.
"""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from tdbg.core.errors import TdbgError
from tdbg.core.files import parse_json
from tdbg.core.guard import describe_error
from tdbg.core.tables import format_size
from tdbg.logs.collapse import Group, format_ranks, iter_groups
from tdbg.logs.filter_args import FilterArgs, validate_args
from tdbg.logs.log_counts import count_prefixes
from tdbg.logs.log_files import NoInfoLogError
from tdbg.logs.log_window import parse_place, read_window
from tdbg.logs.records import Record
from tdbg.logs.run_filter import Job, as_json
from tdbg.viewer.encoding import encode_json
from tdbg.viewer.routes import ConflictError

MAX_RECORDS = 1_000
MAX_BYTES = 64 << 20  # looked at for one answer
MAX_COLLAPSED_BYTES = 16 << 20  # of all logs: they are read by time, from the beginning
MAX_COUNTED_BYTES = 2 << 20
LIMIT_S = 20.0  # 64 MiB take half a second
MAX_LIFE_S = 25  # of a search, whatever happens to the server
# `re` backtracks, and holds the GIL meanwhile: ``(a+)+$`` on forty letters would block the server.
BACKTRACKING = re.compile(r"[*+?{|]")
MAX_PROCESSES = 2  # searches at a time
PATIENCE_S = 5.0  # how long a search waits for a free process
REFUSED = 3  # exit code: stdout says what is wrong with the query


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


class CountsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which records are counted. kind: debug, info or both."""

    kind: Literal["debug", "info", "both"] = "debug"


class TagCount(msgspec.Struct, kw_only=True):
    """Records under a tag. flag: which flag owns the tag; empty if none does."""

    tag: str
    flag: str
    records: int


class LogCounts(msgspec.Struct, kw_only=True):
    """Records by tag, in the first ``looked_at`` of ``total`` bytes."""

    tags: list[TagCount]
    looked_at: int
    total: int


class LogPart(msgspec.Struct, kw_only=True):
    """Records in the order of the files, collapsed ones by time. after: give it to go on; None at the end. Sizes in bytes."""

    records: list[dict[str, Any]]
    after: str | None
    looked_at: int
    total: int


_search_slots = threading.BoundedSemaphore(MAX_PROCESSES)


class _Refusal(msgspec.Struct, kw_only=True):
    what: str
    hint: str


def search_logs(run: Path, query: LogsQuery) -> LogPart:
    """The records of a run that fit, at most `MAX_RECORDS`. TdbgError: a wrong query, or one that takes too long."""
    return _search_in_process(run, query) if BACKTRACKING.search(query.text) else _find_records(run, query)


def count_tags(run: Path, kind: str) -> LogCounts:
    """How many records each tag has, in at most `MAX_COUNTED_BYTES` of the logs. Cost: some 70 ms a MiB."""
    try:
        job = Job(FilterArgs(paths=[str(run)], kind=kind))
        total = sum(source.size for source in job.inspect_sources())
    except NoInfoLogError:
        return LogCounts(tags=[], looked_at=0, total=0)
    read = 0

    def take_first() -> Iterator[Record]:
        nonlocal read
        for record in job.iter_records():
            yield record
            read += len(record.data)
            if read >= MAX_COUNTED_BYTES:
                return

    rows = count_prefixes(take_first())
    tags = [TagCount(tag=str(tag), flag=str(flag or ""), records=int(str(count))) for tag, flag, count, _ in rows]
    return LogCounts(tags=tags, looked_at=read if read >= MAX_COUNTED_BYTES else total, total=total)


def _search_in_process(run: Path, query: LogsQuery) -> LogPart:
    command = [sys.executable, "-P", "-m", __name__, str(run)]
    if not _search_slots.acquire(timeout=PATIENCE_S):
        raise ConflictError(f"{MAX_PROCESSES} other searches are still running", "try again in a moment")
    try:
        done = subprocess.run(
            command, input=msgspec.json.encode(query), capture_output=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        what = f"the search was stopped after {LIMIT_S:g} s: the expression or the logs take very long"
        raise TdbgError(what, "remove nested repeats such as (a+)+, or use `tdbg filter-logs`") from None
    finally:
        _search_slots.release()
    if done.returncode == REFUSED:
        refusal = msgspec.json.decode(done.stdout, type=_Refusal)
        raise TdbgError(refusal.what, refusal.hint)
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2] or f"exit {done.returncode}"
        raise TdbgError(f"the search failed: {last[:300]}", "use another expression, or `tdbg filter-logs`")
    return msgspec.json.decode(done.stdout, type=LogPart)


def _find_records(run: Path, query: LogsQuery) -> LogPart:
    args = FilterArgs(
        paths=[str(run)],
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


def main() -> int:
    """Answer the query on stdin about the run that is named."""
    signal.alarm(MAX_LIFE_S)  # also when the server is killed; `re` does not return to Python, so no handler
    try:
        query = msgspec.json.decode(sys.stdin.buffer.read(), type=LogsQuery)
        found: LogPart | _Refusal = _find_records(Path(sys.argv[1]), query)
    except TdbgError as error:
        found = _Refusal(what=str(error), hint=error.hint)
    except (OSError, OverflowError, RecursionError) as error:
        found = _Refusal(what=describe_error(error), hint="use another expression, or check the files of the run")
    sys.stdout.buffer.write(encode_json(found))
    return REFUSED if isinstance(found, _Refusal) else 0


if __name__ == "__main__":
    sys.exit(main())
