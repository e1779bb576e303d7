"""What the rules make of a watch that has no supervisor to judge it."""

import os
import sys
from pathlib import Path
from typing import Any

from tdbg.api.session import Session
from tdbg.core.events import End
from tdbg.core.redaction import redact_argv
from tdbg.core.rundir import ProcessDir, RunDir


class _Remembered(RunDir):
    """A run whose events are in memory: what the rules ask of its directory."""

    def __init__(self, session: Session) -> None:
        super().__init__(Path(session.run_dir or os.path.join(os.sep, "nonexistent", "tdbg")))
        self._about = {"command": redact_argv(sys.argv), "settings": session.monitor.settings.as_dict()}

    def read_info(self) -> dict[str, Any]:
        """What run.json would hold."""
        return self._about


def findings_of(session: Session) -> list[dict[str, Any]]:
    """The findings so far of one watch, as plain data, worst first; those about its end once it has ended.

    Rules that compare ranks are left out: of the other ranks nothing is known here, whatever they write elsewhere.
    Raises ImportError where msgspec is missing. Cost: 50 us an event.
    """
    from tdbg.rules.rule_engine import RuleEngine

    run = _Remembered(session)
    judge, ended = RuleEngine(run, compares_ranks=False), False
    process = ProcessDir(run, run.path / f"rank{session.monitor.rank:04d}")
    for event in session.collect_events():
        judge.feed(process, event)
        ended = ended or isinstance(event, End)
    found = judge.finish(0).findings if ended else judge.list_confirmed()
    return [finding.as_dict() for finding in found]
