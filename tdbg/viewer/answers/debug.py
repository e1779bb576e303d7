"""Summaries of a run under the addresses that monitoring asks for."""

from typing import Any

import msgspec

from tdbg.rules.debug_summary import DebugSummary, TrainingSummary
from tdbg.viewer.routes import ConflictError, route
from tdbg.viewer.run_library import Served


class WhichRun(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The run; the newest if it is left out."""

    run: str = ""


@route("GET", "/debug/summary")
def summarize_run(served: Served, query: WhichRun) -> DebugSummary:
    """The anomalies of the training, of diffusion and of everything else, as numbers."""
    found: DebugSummary = _get_whole_report(served, query)["debug_summary"]
    return found


@route("GET", "/debug/training/summary")
def summarize_training(served: Served, query: WhichRun) -> TrainingSummary:
    """Steps with an anomaly, by kind, and their rates."""
    found: TrainingSummary = _get_whole_report(served, query)["training_summary"]
    return found


def _get_whole_report(served: Served, query: WhichRun) -> dict[str, Any]:
    """The report with counts of all events. ConflictError until it is there: those of a sample would be taken for them."""
    drawing = served.drawings.get_drawing(served.runs.open_newest(query.run))
    if not drawing.is_whole:
        raise ConflictError("the records of this run are still being counted", "ask again in a while")
    return drawing.report
