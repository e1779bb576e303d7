"""Step records of ranks: a range of steps, of many records some."""

from typing import Annotated, Any, Literal

import msgspec

from tdbg.core.errors import TdbgError
from tdbg.core.events import MAX_STEP
from tdbg.core.ranges import in_ranges, parse_ranges
from tdbg.core.rundir import ProcessDir, RunDir
from tdbg.core.tables import to_json_value
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_answers import StepsAnswer
from tdbg.viewer.run_library import Served
from tdbg.viewer.step_records import WHOLE_BYTES, WHOLE_RECORDS, Share, Wanted, describe_step, read_step_records

MAX_RECORDS = 4_000  # of all processes together: some 400 bytes each
LEAST_BYTES = 64 << 10  # that are read whole of a process, however many there are

StepNumber = Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP)]
Points = Annotated[int, msgspec.Meta(ge=2, le=MAX_RECORDS)]


class StepsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename={"first": "from", "last": "to"}):
    """Which records. from, to: the first and the last step; points: at most so many records of each process."""

    first: StepNumber = 0
    last: StepNumber = MAX_STEP
    points: Points = 500
    ranks: str = ""
    phase: Literal["", "train", "eval"] = ""


@route("GET", f"{API}/runs/{{run}}/steps", answers=StepsAnswer)
def list_steps(served: Served, run: str, query: StepsQuery) -> dict[str, Any]:
    """Step records of each rank in a range of steps: of many the extremes of the loss, of over 2 MB some anywhere."""
    if query.first > query.last:
        raise TdbgError(f"from={query.first} is behind to={query.last}", "give the smaller step as from")
    found = served.runs.open_run(run)
    processes = select_ranks(found, query.ranks)
    points = max(min(query.points, MAX_RECORDS // max(len(processes), 1)), 2)
    wanted = Wanted(query.first, query.last, points, query.phase)
    sharing = max(len(processes), 1)
    share = Share(max(WHOLE_BYTES // sharing, LEAST_BYTES), WHOLE_RECORDS // sharing)
    rows = [_describe_process(process, wanted, share) for process in processes]
    return {"run": found.path.name, "points": points, "processes": rows}


def select_ranks(run: RunDir, ranks: str) -> list[ProcessDir]:
    """The processes of these ranks, and for an empty text all that wrote events. Raises TdbgError for what is no range."""
    bounds = parse_ranges("ranks", ranks, "-")
    processes = run.list_processes()
    return [one for one in processes if not bounds or (one.rank is not None and in_ranges(one.rank, bounds))]


def _describe_process(process: ProcessDir, wanted: Wanted, share: Share) -> dict[str, Any]:
    found = read_step_records(process, wanted, share)
    return {
        "rank": process.rank,
        "attempt": process.attempt,
        "folder": process.label,
        "recorded": found.recorded,
        "records": [to_json_value(describe_step(step)) for step in found.records],
    }
