"""What the probe `augmentation` sees."""

from abc import abstractmethod

from tdbg.core.events import Number, doc
from tdbg.core.observations import Evidence, Observed
from tdbg.core.tables import format_count

Range = list[Number | None]


class _OfPipeline(Observed):
    """What every observation of a pipeline has."""

    PROBE = "augmentation"

    pipeline: str = doc("class of the object that calls the transforms", "")
    order: list[int] = doc("positions of the transforms in their list, in the order of the last call", factory=list)
    low_in: Range = doc("smallest value before each transform, over the measured samples", factory=list)
    high_in: Range = doc("largest value before each transform", factory=list)
    low_out: Range = doc("smallest value after each transform", factory=list)
    high_out: Range = doc("largest value after each transform", factory=list)


class PipelineMeasured(_OfPipeline):
    """Each transform of a pipeline: time, dtypes, device, range before and after; an entry a transform."""

    PART = "PIPELINE"

    samples: int = doc("number of samples measured so far", 0)
    where: str = doc("where it runs: workers, process (the main one) or loop (called by the training loop)", "")
    steps: list[str] = doc("names of the transforms, in list order", factory=list)
    step_ms: list[float] = doc("median host time of each transform per sample", factory=list)
    dtypes: list[str] = doc("dtype (of a PIL image: mode) before and after each transform", factory=list)
    devices: list[str] = doc("device of each transform's output", factory=list)
    changed: list[float | None] = doc(
        "share of the samples that each transform changed, 0 to 1, judged by some of their values", factory=list
    )
    chance: list[float | None] = doc("probability p of each transform, if it has one", factory=list)
    fetch_ms: float = doc("median fetch time per sample: reading, transforms and collation", 0.0)

    described: tuple[str, ...] = ()  # each transform in words: for the line alone

    def text(self) -> str:
        """A few words of each transform."""
        return f"{self.pipeline}: {'; '.join(self.described)}; {format_count(self.samples, 'sample')}"


class _OfTransform(_OfPipeline):
    """Something that is wrong with one transform, told once a pipeline."""

    LEVEL = "W"

    step_name: str = doc("the transform it is about", "")

    @property
    def pipeline_position(self) -> int:
        """Which step of the pipeline it is, from 1."""
        return self.order[0] + 1 if self.order else 1

    def text(self) -> str:
        """Which step, and what is wrong."""
        return f"{self.pipeline}, step {self.pipeline_position} {self.step_name}: {self.describe_fault()}"

    @abstractmethod
    def describe_fault(self) -> str:
        """What is wrong, in words."""


class TransformMadeNan(_OfTransform):
    """A transform turned finite values into NaN or Inf."""

    PART = "NAN"
    EVIDENCE = Evidence.LOCATED

    count: int = doc("number of samples that became non-finite", 0)

    def describe_fault(self) -> str:
        """In how many samples."""
        return f"turns finite values into NaN or Inf ({format_count(self.count, 'measured sample')})"


class TransformIdle(_OfTransform):
    """A transform changed nothing."""

    PART = "NOEFFECT"
    EVIDENCE = Evidence.STATISTICAL

    count: int = doc("number of samples that were measured, none of them changed", 0)

    def describe_fault(self) -> str:
        """In how many samples."""
        return f"changed none of {format_count(self.count, 'measured sample')}"


class RangeMistaken(_OfTransform):
    """A transform got values of a range that it was not made for."""

    PART = "RANGE"
    EVIDENCE = Evidence.STATISTICAL

    problem: str = doc("what is wrong with a range: normalised-twice, not-scaled, scaled-twice", "")
    other: str = doc("the earlier transform that already did the same", "")
    count: int = doc("number of samples with this range", 0)

    def describe_fault(self) -> str:
        """Which of the three, and the ranges before and after."""
        what = {
            "normalised-twice": f"normalises values that {self.other} has already normalised",
            "not-scaled": "treats values from 0 to 255 as values from 0 to 1",
        }.get(self.problem, "returns values that were scaled down twice")
        return (
            f"{what}: {_format_range(self.low_in, self.high_in)} becomes {_format_range(self.low_out, self.high_out)}"
        )


class TransformSlow(_OfTransform):
    """A transform takes most of each fetch, while the program waits for data."""

    PART = "SLOW"
    EVIDENCE = Evidence.STATISTICAL

    slow: str = doc("the transform that takes most of the fetch time", "")
    slow_share: float = doc("its share of the fetch time, 0 to 1", 0.0)
    slow_ms: float = doc("its median time per sample", 0.0)
    samples: int = doc("number of samples measured so far", 0)
    wait_share: float = doc("share of the time between batches spent waiting for data, 0 to 1", 0.0)

    def describe_fault(self) -> str:
        """Its share, and its time a sample."""
        return f"takes {self.slow_share:.0%} of each fetch, {self.slow_ms:.2f} ms a sample"


def _format_range(low: Range, high: Range) -> str:
    return f"{low[0] if low else '-'} to {high[0] if high else '-'}"
