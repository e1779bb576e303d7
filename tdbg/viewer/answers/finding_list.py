"""The findings of a run, each under a name that it keeps while others come."""

from typing import Any, Literal

import msgspec

from tdbg.core.events import SEVERITIES
from tdbg.core.ranges import in_ranges, parse_ranges
from tdbg.rules.finding_ids import build_finding_ids
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_answers import FindingsAnswer
from tdbg.viewer.run_library import Served


class FindingsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which findings. severity: the least; ranks and steps: such as 0,3-5 and 100:200."""

    code: str = ""
    severity: Literal["", "info", "warning", "error", "critical"] = ""
    ranks: str = ""
    steps: str = ""


@route("GET", f"{API}/runs/{{run}}/findings", answers=FindingsAnswer)
def list_findings(served: Served, run: str, query: FindingsQuery) -> dict[str, Any]:
    """The findings of the report by code, severity, rank and step; of a large run those known so far, while is_final is false."""
    ranks, steps = parse_ranges("ranks", query.ranks, "-"), parse_ranges("steps", query.steps, ":")
    drawing = served.drawings.get_drawing(served.runs.open_run(run))
    every = drawing.report["findings"]
    names = build_finding_ids(every)
    found = [
        {**finding, "id": name, "follows_from": _name_origin(finding, names)}
        for name, finding in zip(names, every, strict=True)
        if _is_wanted(finding, query) and _is_within(finding, ranks, steps)
    ]
    return {"total": len(every), "is_final": drawing.is_final, "findings": found}


def _name_origin(finding: dict[str, Any], names: list[str]) -> str | None:
    origin = finding["follows_from"]
    return None if origin is None else names[origin["finding"]]


def _is_wanted(finding: dict[str, Any], query: FindingsQuery) -> bool:
    grave = SEVERITIES[SEVERITIES.index(query.severity) :] if query.severity else SEVERITIES
    return finding["severity"] in grave and query.code.upper() in ("", finding["code"])


def _is_within(finding: dict[str, Any], ranks: list[tuple[float, float]], steps: list[tuple[float, float]]) -> bool:
    """True if rank and step are in the ranges; a finding without one is in none."""
    places = (finding["rank"], ranks), (finding["first_step"], steps)
    return all(not bounds or (value is not None and in_ranges(value, bounds)) for value, bounds in places)
