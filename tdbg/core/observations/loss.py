"""What the diagnostics of losses (`tdbg.probes.loss`) find wrong; the figures of each are its own, see docs/loss.md."""

from typing import Self, TypedDict

from tdbg.core.events import Event, Observation, doc
from tdbg.core.observations import Observed


class LossFault(TypedDict, total=False):
    """One thing that a diagnostic found wrong."""

    code: str
    severity: str
    title: str
    what: str  # the task, class or part that it is about
    evidence: list[str]
    cause: str
    try_next: str


class LossReport(Observed):
    """The last record of a call of a diagnostic, with the faults that are new in this process."""

    PROBE = "loss"

    faults: list[LossFault] = doc(
        "findings that are new in this process: code, title, what, evidence, cause", factory=list
    )
    training: bool | None = doc("null masking: training (True) or validation")

    @classmethod
    def of(cls, event: Event) -> Self | None:
        """The report that an event carries, whatever its part: each diagnostic has its own."""
        if not isinstance(event, Observation) or event.probe != cls.PROBE or "faults" not in event.values:
            return None
        return cls(**cls.known_values(event.values), step=event.step)

    def text(self) -> str:
        """What is wrong."""
        return "; ".join(fault.get("title", "") for fault in self.faults)
