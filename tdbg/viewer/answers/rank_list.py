"""The ranks of a run now: how far each is, when it was last seen, and who is quiet."""

from typing import Any

import msgspec

from tdbg.core.ranges import parse_ranges
from tdbg.launch.live import read_snapshot
from tdbg.viewer.rank_activity import describe_ranks
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_answers import RanksAnswer
from tdbg.viewer.run_library import Served


class RanksQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which ranks, such as 0,3-5; all if it is left out."""

    ranks: str = ""


@route("GET", f"{API}/runs/{{run}}/ranks", answers=RanksAnswer)
def list_ranks(served: Served, run: str, query: RanksQuery) -> dict[str, Any]:
    """How far each rank is, when it was last seen, and which are quiet."""
    bounds = parse_ranges("ranks", query.ranks, "-")
    found = served.runs.open_run(run)
    snapshot = read_snapshot(found)
    ranks = describe_ranks(snapshot, bounds)
    return {
        "run": found.path.name,
        "state": "ended" if snapshot.ended else "running",
        "exit": snapshot.exit_text,
        "ranks": ranks,
        "quiet": [rank["rank"] for rank in ranks if rank["quiet"]],
    }
