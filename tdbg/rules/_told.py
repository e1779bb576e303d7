"""What was said while a run went on, against the verdict: each live finding is confirmed, or corrected in words."""

import contextlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from tdbg.core.events import SEVERITIES, Finding
from tdbg.core.files import read_tables
from tdbg.core.rundir import FINDINGS, RunDir
from tdbg.rules.text import TRACEBACK

MAX_FINDINGS = 1000
PLACE = ("first_step", "rank", "phase", "module")  # what two findings of a code must have in common to agree


def correct_live_findings(run: RunDir, findings: Sequence[Finding]) -> list[str]:
    """Say in the finding itself where it differs from what was said live; returns notes on those that are gone."""
    notes = []
    for told in _live_findings(run):
        same = [finding for finding in findings if finding.code == told.get("code")]
        placed = [finding for finding in same if finding.title == told.get("title")]
        placed = placed or [finding for finding in same if _is_in_place(finding, told)]
        title, severity = told.get("title", ""), told.get("severity")
        if not same:
            notes.append(f"reported during the run, but not confirmed at the end: {told.get('code')} {title}")
        elif not placed:
            _correct(same[0], f'"{title}"')
        elif severity in SEVERITIES and all(finding.severity != severity for finding in placed):
            _correct(placed[0], f"severity {severity}, now {placed[0].severity}")
    return list(dict.fromkeys(notes))


def _is_in_place(finding: Finding, told: dict[str, Any]) -> bool:
    return all(getattr(finding, name) == told.get(name) for name in PLACE)


def _correct(finding: Finding, reported: str) -> None:
    """Name what was reported, above the traceback where the evidence ends in one."""
    line = f"corrects what was reported during the run: {reported}"
    if line not in finding.evidence:
        at = finding.evidence.index(TRACEBACK) if TRACEBACK in finding.evidence else len(finding.evidence)
        finding.evidence.insert(at, line)


def _live_findings(run: RunDir) -> Iterable[dict[str, Any]]:
    with contextlib.suppress(OSError):
        yield from islice(read_tables(run.path / FINDINGS), MAX_FINDINGS)
