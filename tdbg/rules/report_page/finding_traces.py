"""Which profiler trace covers the step of a finding: that of its own rank, else of the first rank that has one."""

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from tdbg.core.events import Event, Finding, Step, Trace
from tdbg.core.rundir import ProcessDir

FILE = re.compile(r"traces/[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}", re.ASCII)  # what a rank writes; anything else is no link
Candidates = dict[int, tuple[bool, str]]  # by the number of a finding: whether the trace is of its own rank; the file


class FindingTraces:
    """Finds the traces from the events of a run, in little memory. findings: in the order of the page."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings = findings
        self._of_steps: Candidates = {}
        self._of_calls: dict[str, Candidates] = {}  # of processes that have not trained yet: calls are their steps
        self._trained: set[str] = set()
        self.has_any = False

    def add_event(self, process: ProcessDir, event: Event) -> None:
        """Take an event; only traces count, and whether the process trains: its steps are not calls then."""
        if isinstance(event, Step) and event.phase != "eval":
            self._trained.add(process.label)
            self._of_calls.pop(process.label, None)
        elif isinstance(event, Trace) and FILE.fullmatch(event.file):
            self.has_any = True
            if event.phase != "eval":
                self._add_trace(self._of_steps, process, event)
            elif process.label not in self._trained:
                self._add_trace(self._of_calls.setdefault(process.label, {}), process, event)

    def _add_trace(self, found: Candidates, process: ProcessDir, event: Trace) -> None:
        for number, finding in enumerate(self._findings):
            step, is_own = finding.first_step, finding.rank == process.rank
            if step is None or not 0 < event.first_step <= step < event.first_step + event.steps:
                continue
            if number not in found or (is_own and not found[number][0]):
                found[number] = is_own, str(PurePosixPath(process.label) / event.file)

    def get_file(self, number: int) -> str:
        """The trace of a finding by its number: its path in the run directory, empty for none."""
        candidates = list(self._iter_candidates(number))
        return next((file for is_own, file in candidates if is_own), candidates[0][1] if candidates else "")

    def _iter_candidates(self, number: int) -> Iterator[tuple[bool, str]]:
        for found in (self._of_steps, *self._of_calls.values()):
            if number in found:
                yield found[number]
