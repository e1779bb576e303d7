"""Rules about losses: what the diagnostics of `tdbg.probes.loss` found in a rank, told of the run once for each."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tdbg.core.events import SEVERITIES, Event, Finding, Observation
from tdbg.core.rundir import ProcessDir
from tdbg.rules import Rule


class LossRule(Rule):
    """A rule that hands on the faults of its code; each task, class or part that they are about once."""

    listens = (Observation,)

    def __init__(self) -> None:
        self._given: defaultdict[str, list[Finding]] = defaultdict(list)

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        """Hand on the faults that are new in this process."""
        if not isinstance(event, Observation) or event.probe != "loss":
            return ()
        faults = event.values.get("faults")
        if not isinstance(faults, list):
            return ()
        ours = [fault for fault in faults if isinstance(fault, dict) and fault.get("code") == self.code]
        return [given for fault in ours for given in self._tell(process, event, fault)]

    def _tell(self, process: ProcessDir, event: Observation, fault: dict[str, Any]) -> list[Finding]:
        what, severity = str(fault.get("what", "")), fault.get("severity")
        found = self.found(
            f"{fault.get('title') or self.title}, step {event.step}, rank {process.rank}",
            severity=severity if severity in SEVERITIES else self.severity,
            first_step=event.step,
            rank=process.rank,
            phase="eval" if event.values.get("training") is False else "train",
            evidence=[str(line) for line in fault.get("evidence", ())],
            cause=str(fault.get("cause", "")),
            try_next=str(fault.get("try_next", "")),
        )
        return self.once(self._given[what], found)
