"""The report of a run as one HTML file that needs no network.

Every text of the program is JSON in which no ``<`` stands, and reaches the page as text, never as markup.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, TypedDict

from tdbg.core.events import Event, Finding
from tdbg.core.observations import Evidence
from tdbg.core.redaction import redact_text
from tdbg.core.rundir import ProcessDir, RunDir
from tdbg.core.tables import format_short, to_json_value
from tdbg.core.webpage import write_graphs
from tdbg.rules.finding_ids import build_finding_ids
from tdbg.rules.report_page.finding_traces import FindingTraces
from tdbg.rules.report_page.rank_lanes import KINDS, RunLanes
from tdbg.rules.report_page.run_curves import RunCurves
from tdbg.rules.report_page.run_tables import format_time, list_tables
from tdbg.rules.text import TRACEBACK
from tdbg.rules.verdict import Verdict
from tdbg.rules.view import read_info

TITLE_LETTERS = 400
LINE_LETTERS = 600
MAX_EVIDENCE = 40
MAX_TRACEBACK = 80
PACKAGE = "tdbg.rules.report_page"
Reader = Callable[[ProcessDir], Iterable[Event]]


class FindingData(TypedDict):
    """A finding as the page shows it. id: its name in addresses. trace: of its step, as a path in the run directory; empty for none."""

    id: str
    code: str
    severity: str
    title: str
    step: int | None
    rank: int | None
    module: str
    follows: bool
    where: list[str]
    evidence: list[str]
    traceback: list[str]
    grade: str
    cause: str
    try_next: str
    trace: str


def write_page(file: IO[bytes], run: RunDir, verdict: Verdict, notes: Sequence[Mapping[str, object]] = ()) -> None:
    """Write the page of a run. notes: what people kept with it. Raises TdbgError without plotly, OSError."""
    title = f"{format_short(run.path.resolve().name, 100)} - tdbg report"
    write_graphs(file, PACKAGE, title, to_json_value(describe_run(run, verdict, notes)), shared=("charts", "report"))


def describe_run(
    run: RunDir, verdict: Verdict, notes: Sequence[Mapping[str, object]] = (), read: Reader = ProcessDir.iter_events
) -> dict[str, object]:
    """All that the page shows, as plain data; the events are read once more, and streamed.

    read: the events of a process, all of them or some, in order.
    """
    info = read_info(run)
    processes = run.list_processes()
    stories = verdict.get_stories()
    findings = [finding for story in stories for finding in (story.first, *story.followers)]
    followers = {id(finding) for story in stories for finding in story.followers}
    curves, lanes = RunCurves(verdict, processes), RunLanes(verdict, processes, findings)
    traces, names = FindingTraces(findings), build_finding_ids([finding.as_dict() for finding in findings])
    for process in processes:
        for event in _read_events(process, read):
            curves.add_event(process, event)
            lanes.add_event(process, event)
            traces.add_event(process, event)
    first_t = lanes.find_first_t()
    start = info.get("start")
    start_t = float(start) if isinstance(start, int | float) and first_t and 0 < first_t - start < 1e8 else first_t or 0
    return {
        "headline": _clean_text(verdict.format_headline().removeprefix("verdict: "), TITLE_LETTERS),
        "severity": verdict.worst_severity or ("info" if verdict.level == "off" else "none"),
        "facts": [_clean_text(fact) for fact in _iter_facts(verdict, info)],
        "lines": [] if verdict.findings else [_clean_text(line) for line in verdict.format_summary()[1:]],
        "findings": [
            describe_finding(finding, names[number], follows=id(finding) in followers, trace=traces.get_file(number))
            for number, finding in enumerate(findings)
        ],
        "was_profiled": traces.has_any,
        "lanes": {
            "kinds": KINDS,
            "rows": lanes.build_lanes(start_t),
            "note": lanes.describe_left_out(),
        },
        "charts": curves.build_charts(),
        "clocks": curves.build_clocks(start_t),
        "heats": curves.build_heat_charts(),
        "tables": list_tables(verdict, info, notes),
    }


def describe_finding(finding: Finding, name: str = "", *, follows: bool = False, trace: str = "") -> FindingData:
    """A finding with its texts cut. name: in addresses. follows: from the one above it, or from what that follows from. trace: of its step."""
    evidence, traceback = list(finding.evidence), []
    if TRACEBACK in evidence:
        at = evidence.index(TRACEBACK)
        evidence, traceback = evidence[:at], evidence[at + 1 :]
    grades = {kind.grade_word: kind.value for kind in Evidence}
    return {
        "id": name,
        "code": _clean_text(finding.code, 40),
        "severity": finding.severity,
        "title": _clean_text(finding.title, TITLE_LETTERS),
        "step": finding.first_step,
        "rank": finding.rank,
        "module": _clean_text(finding.module, 200),
        "follows": follows,
        "where": [_clean_text(part, 200) for part in _iter_places(finding)],
        "evidence": [_clean_text(line) for line in evidence[:MAX_EVIDENCE]],
        "traceback": [_clean_text(line) for line in traceback[:MAX_TRACEBACK]],
        "grade": grades.get(finding.grade, ""),
        "cause": _clean_text(finding.cause),
        "try_next": _clean_text(finding.try_next),
        "trace": trace,
    }


def _iter_places(finding: Finding) -> Iterable[str]:
    if finding.first_step is not None:
        yield f"step {finding.first_step}"
    if finding.rank is not None:
        yield f"rank {finding.rank}"
    if finding.phase:
        yield finding.phase
    if finding.module:
        yield f"module {finding.module}"


def _iter_facts(verdict: Verdict, info: Mapping[str, object]) -> Iterable[str]:
    start, end = info.get("start"), info.get("end")
    if isinstance(start, int | float):
        yield f"started {format_time(start)}"
    if isinstance(start, int | float) and isinstance(end, int | float) and end >= start:
        yield f"took {_describe_length(end - start)}"
    if verdict.level:
        yield f"level {verdict.level}"
    if verdict.restarts:
        yield f"restarts: {verdict.restarts}"
    if verdict.capture_line:
        yield verdict.capture_line
    if verdict.profile_line:
        yield verdict.profile_line


def _describe_length(seconds: float) -> str:
    """``14.1 s``, ``3 min 20 s``, ``26 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def _clean_text(text: str, limit: int = LINE_LETTERS) -> str:
    """A text of the run: no secret, no control code, no end too far away."""
    return format_short(redact_text(text[: 4 * limit]), limit)


def _read_events(process: ProcessDir, read: Reader) -> Iterable[Event]:
    try:
        yield from read(process)
    except OSError:  # the file vanished or may not be read: the other ranks still speak
        return
