"""Rules that tell several kinds of faults under one code, each once a run."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, ClassVar

from tdbg.core.events import Event, Finding, Observation
from tdbg.core.rundir import ProcessDir
from tdbg.rules import Rule, add_grade, find_gravest, overwrite_finding, read_observations


class KindsRule(Rule, ABC):
    """A rule that reads what probes see, and gives out one finding of each kind."""

    listens: ClassVar[tuple[type[Event], ...]] = (Observation,)
    keeps_latest: ClassVar[bool] = False  # a later observation counts on: it takes the place of what was told

    def __init__(self) -> None:
        self._given: defaultdict[str, list[Finding]] = defaultdict(list)
        self._reported: set[tuple[str, str]] = set()  # process, kind

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        """Hand each observation of a class in ``observes`` to `evaluate`."""
        found: list[Finding] = []
        for seen in read_observations(event, self.observes):
            for kind, finding in self.evaluate(process, seen):
                finding = add_grade(finding, seen)
                if self.keeps_latest and not self.is_news(process, kind):
                    self._amend_given(process, kind, finding)
                else:
                    found += self.report_from(process, self._given[kind], finding)
        return found

    def _amend_given(self, process: ProcessDir, kind: str, new: Finding) -> None:
        """Put what a process counts by now in the place of what it told; of another process its line stays."""
        first = self._given[kind][0]
        if not self._is_origin(first, process):
            return
        new.first_step, new.severity = first.first_step, find_gravest(first.severity, new.severity)
        new.evidence += [line for line in first.evidence if line.startswith("also ")]
        overwrite_finding(first, new)

    def is_news(self, process: ProcessDir, kind: str) -> bool:
        """True the first time that this is asked of a process and a kind: a fault that lasts is told of once."""
        news = (process.label, kind) not in self._reported
        self._reported.add((process.label, kind))
        return news

    @abstractmethod
    def evaluate(self, process: ProcessDir, seen: Any) -> Iterable[tuple[str, Finding]]:
        """Evaluate one observation; return (kind, finding) of what is certain now."""
