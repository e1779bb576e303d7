"""What was said while a run went on, against the verdict: each live finding is confirmed, or corrected in words."""

import contextlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from tdbg.core.events import Finding
from tdbg.core.files import read_tables
from tdbg.core.rundir import FINDINGS, RunDir

MAX_FINDINGS = 1000
PLACE = ("first_step", "rank", "phase", "module")  # what two findings of a code must have in common to agree


def correct_live_findings(run: RunDir, findings: Sequence[Finding]) -> list[str]:
    """Say in the finding itself where it differs from what was said live; returns notes on those that are gone."""
    notes = []
    for told in _live_findings(run):
        same = [finding for finding in findings if finding.code == told.get("code")]
        title = told.get("title", "")
        if not same:
            notes.append(f"reported during the run, but not confirmed at the end: {told.get('code')} {title}")
        elif not any(_agrees(finding, told) for finding in same):
            line = f'corrects what was reported during the run: "{title}"'
            if line not in same[0].evidence:
                same[0].evidence.append(line)
    return list(dict.fromkeys(notes))


def _agrees(finding: Finding, told: dict[str, Any]) -> bool:
    return finding.title == told.get("title") or all(getattr(finding, name) == told.get(name) for name in PLACE)


def _live_findings(run: RunDir) -> Iterable[dict[str, Any]]:
    with contextlib.suppress(OSError):
        yield from islice(read_tables(run.path / FINDINGS), MAX_FINDINGS)
