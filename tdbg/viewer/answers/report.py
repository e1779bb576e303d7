"""The verdict of a run: as data, and as the overview shows it."""

from typing import Any

from tdbg.viewer.routes import API, route
from tdbg.viewer.run_answers import Overview, Report
from tdbg.viewer.run_library import Served


@route("GET", f"{API}/runs/{{run}}/report", answers=Report)
def show_report(served: Served, run: str) -> dict[str, Any]:
    """The verdict, as `tdbg report --json`; of a large run what is known so far, while is_final is false."""
    found = served.drawings.get_drawing(served.runs.open_run(run))
    return {**found.report, "is_final": found.is_final}


@route("GET", f"{API}/runs/{{run}}/overview", answers=Overview)
def show_overview(served: Served, run: str) -> dict[str, Any]:
    """The verdict in words, curves, lanes and tables, as `tdbg report --html` shows them."""
    found = served.drawings.get_drawing(served.runs.open_run(run))
    return {**found.overview, "is_final": found.is_final}
