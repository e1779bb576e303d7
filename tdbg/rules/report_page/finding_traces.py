"""Which profiler trace covers the step of a finding: that of its own rank, else of the first rank that has one."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from tdbg.core.events import Event, Finding, Step, Trace
from tdbg.core.rundir import ProcessDir

FILE = re.compile(r"traces/[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}", re.ASCII)  # what a rank writes; anything else is no link


class FindingTraces:
    """Finds the traces from the events of a run, in constant memory. findings: in the order of the page."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings = findings
        self._found: list[tuple[bool, str]] = [(False, "")] * len(findings)  # of its own rank; the file
        self._trained: set[str] = set()
        self.has_any = False

    def add_event(self, process: ProcessDir, event: Event) -> None:
        """Take an event; only traces count, and whether the process trains: its steps are not calls then."""
        if isinstance(event, Step) and event.phase != "eval":
            self._trained.add(process.label)
        elif isinstance(event, Trace) and FILE.fullmatch(event.file):
            self.has_any = True
            if event.phase != "eval" or process.label not in self._trained:
                self._add_trace(process, event)

    def _add_trace(self, process: ProcessDir, event: Trace) -> None:
        for number, finding in enumerate(self._findings):
            step, (is_own, file) = finding.first_step, self._found[number]
            if step is None or not 0 < event.first_step <= step < event.first_step + event.steps:
                continue
            if not file or (finding.rank == process.rank and not is_own):
                name = str(PurePosixPath(process.label) / event.file)
                self._found[number] = finding.rank == process.rank, name

    def get_file(self, number: int) -> str:
        """The trace of a finding by its number: its path in the run directory, empty for none."""
        return self._found[number][1]
