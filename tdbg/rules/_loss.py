"""Rules about losses: what the diagnostics of `tdbg.probes.loss` found in a rank, told of the run once for each."""

from collections import defaultdict
from collections.abc import Iterable
from typing import ClassVar

from tdbg.core.events import SEVERITIES, Event, Finding, Observation
from tdbg.core.observations import Observed
from tdbg.core.observations.loss import LossCallReport, LossFault, LossReport
from tdbg.core.rundir import ProcessDir
from tdbg.rules import Rule, add_grade, read_observations


class LossRule(Rule):
    """A rule that hands on the faults of its code; each task, class or part that they are about once."""

    listens = (Observation,)
    observes: ClassVar[tuple[type[Observed], ...]] = (LossReport, LossCallReport)

    def __init__(self) -> None:
        self._given: defaultdict[str, list[Finding]] = defaultdict(list)

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        """Hand on the faults that are new in this process."""
        given: list[Finding] = []
        for report in read_observations(event, self.observes):
            assert isinstance(report, LossReport)
            for fault in report.faults:
                if fault.get("code") == self.code:
                    given += self._report_fault(process, report, fault)
        return given

    def _report_fault(self, process: ProcessDir, report: LossReport, fault: LossFault) -> list[Finding]:
        severity = fault.get("severity", "")
        finding = self.make_finding(
            f"{fault.get('title') or self.title}, step {report.step}, {process.display_name}",
            severity=severity if severity in SEVERITIES else self.severity,
            first_step=report.step,
            rank=process.rank,
            phase="eval" if report.training is False else "train",
            evidence=list(fault.get("evidence", ())),
            cause=fault.get("cause", ""),
            try_next=fault.get("try_next", ""),
        )
        return self.report_from(process, self._given[fault.get("what", "")], add_grade(finding, report))
