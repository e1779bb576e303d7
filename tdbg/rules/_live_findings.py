"""What was said while a run went on, against the verdict: each live finding is confirmed, or corrected in words."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from tdbg.core.events import SEVERITIES, Finding
from tdbg.core.files import iter_json_lines
from tdbg.core.rundir import FINDINGS, RunDir
from tdbg.rules.text import TRACEBACK

MAX_FINDINGS = 1000
TEXTS = ("code", "severity", "title", "phase", "module")
PLACE = ("code", "first_step", "rank", "phase", "module")  # what two findings must have in common to agree


def correct_live_findings(run: RunDir, findings: Sequence[Finding]) -> list[str]:
    """Say in the finding itself where it differs from what was said live; returns notes on those that are gone."""
    notes = []
    for live in read_live_findings(run):
        same = [finding for finding in findings if finding.code == live.code]
        placed = [finding for finding in same if get_place(finding) == get_place(live)]
        if not same:
            notes.append(f"reported during the run, but not confirmed at the end: {live.code} {live.title}")
        elif not placed:
            _add_correction(same[0], f'"{live.title}"')
        elif live.severity in SEVERITIES and all(finding.severity != live.severity for finding in placed):
            _add_correction(placed[0], f"severity {live.severity}, now {placed[0].severity}")
    return list(dict.fromkeys(notes))


def get_place(finding: Finding) -> tuple[object, ...]:
    """What makes two findings one, however each is worded."""
    return tuple(getattr(finding, name) for name in PLACE)


def _add_correction(finding: Finding, reported: str) -> None:
    """Name what was reported, above the traceback where the evidence ends in one."""
    line = f"corrects what was reported during the run: {reported}"
    if line not in finding.evidence:
        at = finding.evidence.index(TRACEBACK) if TRACEBACK in finding.evidence else len(finding.evidence)
        finding.evidence.insert(at, line)


def read_live_findings(run: RunDir) -> Iterator[Finding]:
    """The findings that were told while the run went on, in that order; without evidence."""
    with contextlib.suppress(OSError):
        yield from map(_build_finding, islice(iter_json_lines(run.path / FINDINGS), MAX_FINDINGS))


def _build_finding(row: Mapping[str, object]) -> Finding:
    """A line of the file; what does not fit a field is left empty."""
    code, severity, title, phase, module = (str(row.get(name) or "") for name in TEXTS)
    step, rank = (value if isinstance(value := row.get(name), int) else None for name in ("first_step", "rank"))
    return Finding(code=code, severity=severity, title=title, phase=phase, module=module, first_step=step, rank=rank)
