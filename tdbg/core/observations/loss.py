"""What is wrong with losses: as `tdbg.probes.loss` finds it, and as torch's loss functions show it; see docs/loss.md."""

from typing import Self, TypedDict

from tdbg.core.events import Event, Observation, doc
from tdbg.core.observations import Evidence, Observed


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
    training: bool | None = doc("for null masking: true in training, false in validation")

    @classmethod
    def from_event(cls, event: Event) -> Self | None:
        """The report that an event carries, whatever its part: each diagnostic has its own."""
        if not isinstance(event, Observation) or event.probe != cls.PROBE or "faults" not in event.values:
            return None
        return cls(**cls.known_values(event.values), step=event.step)

    def text(self) -> str:
        """What is wrong."""
        return "; ".join(fault.get("title", "") for fault in self.faults)


class LossCallReport(LossReport):
    """What calls of torch's own loss functions show to be wrong."""

    PROBE = "loss-calls"
    EVIDENCE = Evidence.LOCATED


class _OfLossCalls(Observed):
    """Calls of torch's loss functions in one step."""

    PROBE = LossCallReport.PROBE
    EVIDENCE = Evidence.LOCATED

    line: str = doc("statistics of each loss function, as text", "")
    calls: int = doc("number of calls that were checked", 0)
    faults: list[LossFault] | None = doc("findings that are new in this process: code, title, what, evidence, cause")
    training: bool | None = doc("true in training, false in evaluation")

    @property
    def level(self) -> str:
        """A warning where something is wrong."""
        return "W" if self.faults else "D"

    def text(self) -> str:
        """The figures, and what is wrong."""
        wrong = [f"{fault.get('code')} {fault.get('severity')}: {fault.get('title')}" for fault in self.faults or ()]
        return "\n".join([self.line, *(f"  {line}" for line in wrong)])


class MaskedTargets(_OfLossCalls):
    """How many targets of a step the losses leave out: those of ignore_index, and those of weight 0."""

    PART = "TARGETS"

    targets: int = doc("targets", 0)
    ignored: int = doc("number of targets equal to ignore_index; for soft targets, all-zero rows", 0)
    zero_weight: int = doc("number of targets that are not ignored but have weight 0", 0)
    share: float | None = doc("share of the targets that are left out, 0 to 1")
    nulls: int | None = doc("targets equal to the configured null index")
    counted_nulls: int | None = doc("number of these null targets that are neither ignored nor weighted 0")


class WeightedClasses(_OfLossCalls):
    """Class weights, or the weights of positives, against the classes seen so far."""

    PART = "CLASSES"

    classes: int = doc("classes or labels that have a weight", 0)
    seen: int = doc("number of these with at least one sample so far", 0)
    samples: int = doc("number of samples so far that were not left out", 0)
    ratio: float | None = doc("ratio of the largest to the smallest nonzero weight of the classes seen")


class SmoothedRows(_OfLossCalls):
    """Label smoothing, and whether the rows of soft targets sum to 1."""

    PART = "ROWS"

    smoothing: float | None = doc("label_smoothing of the loss")
    rows: int | None = doc("rows of soft targets")
    bad_rows: int | None = doc("number of these that do not sum to 1 or have negative entries")
    least_sum: float | None = doc("smallest sum of a row that is not empty")
    largest_sum: float | None = doc("largest sum of a row")
