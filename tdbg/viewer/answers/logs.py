"""Log records of a run, filtered, a part at a time; of several ranks also what they write alike, once."""

from tdbg.viewer.log_search import CountsQuery, LogCounts, LogPart, LogsQuery, count_tags, search_logs
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_library import Served


@route("GET", f"{API}/runs/{{run}}/logs")
def filter_logs(served: Served, run: str, query: LogsQuery) -> LogPart:
    """Records by flag, rank, level, step and text, as `tdbg filter-logs --format jsonl`."""
    return search_logs(served.runs.open_run(run).path, query)


@route("GET", f"{API}/runs/{{run}}/logs/counts")
def count_logs(served: Served, run: str, query: CountsQuery) -> LogCounts:
    """Records by tag and flag, as `tdbg filter-logs --list-prefixes`; of large logs those at their beginning."""
    return count_tags(served.runs.open_run(run).path, query.kind)
