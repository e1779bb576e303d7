"""The verdict of a run: as data, and as the overview shows it."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from tdbg.core.rundir import EVENTS, RunDir
from tdbg.core.tables import to_json_value
from tdbg.launch import metrics_findings
from tdbg.rules.kept_verdict import load_verdict
from tdbg.rules.report_page.document import describe_run
from tdbg.rules.rule_engine import judge_run
from tdbg.rules.verdict import Verdict
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_library import Served

MAX_KEPT = 16  # answers of runs

_lock = threading.Lock()
_kept: OrderedDict[tuple[str, str], tuple[object, dict[str, Any]]] = OrderedDict()


@route("GET", f"{API}/runs/{{run}}/report")
def show_report(served: Served, run: str) -> dict[str, Any]:
    """The verdict, as `tdbg report --json`."""
    return draw_verdict(served.runs.open_run(run))


@route("GET", f"{API}/runs/{{run}}/overview")
def show_overview(served: Served, run: str) -> dict[str, Any]:
    """The verdict in words, curves, lanes and tables, as `tdbg report --html` shows them."""
    return _answer_once("overview", served.runs.open_run(run), lambda found: describe_run(found, judge(found)))


def draw_verdict(run: RunDir) -> dict[str, Any]:
    """The verdict as plain data; drawn anew only if the run has gone on."""
    return _answer_once("report", run, lambda found: judge(found).as_dict())


def judge(run: RunDir) -> Verdict:
    """The verdict of a run, kept or drawn now."""
    return load_verdict(run) or metrics_findings.add_metrics_findings(judge_run(run), run)


def _answer_once(what: str, run: RunDir, make: Callable[[RunDir], object]) -> dict[str, Any]:
    """The answer, made anew only if the files have changed since."""
    key, stamp = (what, str(run.path)), _stamp(run)
    with _lock:
        if key in _kept and _kept[key][0] == stamp:
            _kept.move_to_end(key)
            return _kept[key][1]
        found: dict[str, Any] = to_json_value(make(run))
        _kept[key] = (stamp, found)
        while len(_kept) > MAX_KEPT:
            _kept.popitem(last=False)
    return found


def _stamp(run: RunDir) -> object:
    """What the verdict depends on: sizes and times of the event files and of run.json."""
    found = []
    for path in (run.path / "run.json", *(process.path / EVENTS for process in run.list_processes())):
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((str(path), status.st_size, status.st_mtime_ns))
    return found
