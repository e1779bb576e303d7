"""Summaries of a run under the addresses that monitoring asks for."""

import msgspec

from tdbg.rules.debug_summary import DebugSummary, TrainingSummary
from tdbg.viewer.routes import route
from tdbg.viewer.run_library import Served


class WhichRun(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The run; the newest if it is left out."""

    run: str = ""


@route("GET", "/debug/summary")
def summarize_run(served: Served, query: WhichRun) -> DebugSummary:
    """The anomalies of the training, of diffusion and of everything else, as numbers."""
    found: DebugSummary = served.drawings.get_drawing(served.runs.open_newest(query.run)).report["debug_summary"]
    return found


@route("GET", "/debug/training/summary")
def summarize_training(served: Served, query: WhichRun) -> TrainingSummary:
    """Steps with an anomaly, by kind, and their rates."""
    found: TrainingSummary = served.drawings.get_drawing(served.runs.open_newest(query.run)).report["training_summary"]
    return found
