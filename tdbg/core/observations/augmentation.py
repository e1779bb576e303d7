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
    order: list[int] = doc("places in that list, in the order of the last call", factory=list)
    low_in: Range = doc("smallest value before each, over the measured samples", factory=list)
    high_in: Range = doc("largest value before it", factory=list)
    low_out: Range = doc("smallest value after it", factory=list)
    high_out: Range = doc("largest value after it", factory=list)


class PipelineMeasured(_OfPipeline):
    """Each transform of a pipeline: time, dtypes, device, range before and after; an entry a transform."""

    PART = "PIPELINE"

    samples: int = doc("measured samples so far", 0)
    where: str = doc("where it runs: workers, the process itself, or called by the training loop", "")
    steps: list[str] = doc("the transforms, in their order in the list", factory=list)
    step_ms: list[float] = doc("median time of each, host time", factory=list)
    dtypes: list[str] = doc("dtype, or mode of a PIL image, before and after each", factory=list)
    devices: list[str] = doc("device of what each returned", factory=list)
    changed: list[float | None] = doc(
        "part of the samples that each changed; of a sample of their values", factory=list
    )
    chance: list[float | None] = doc("the probability that each says it has", factory=list)
    fetch_ms: float = doc("median time of a fetch for one sample: reading, transforms and collation", 0.0)

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

    count: int = doc("samples in which it was so", 0)

    def describe_fault(self) -> str:
        """In how many samples."""
        return f"turns finite values into NaN or Inf ({format_count(self.count, 'measured sample')})"


class TransformIdle(_OfTransform):
    """A transform changed nothing."""

    PART = "NOEFFECT"
    EVIDENCE = Evidence.STATISTICAL

    count: int = doc("samples in which it was so", 0)

    def describe_fault(self) -> str:
        """In how many samples."""
        return f"changed none of {format_count(self.count, 'measured sample')}"


class RangeMistaken(_OfTransform):
    """A transform got values of a range that it was not made for."""

    PART = "RANGE"
    EVIDENCE = Evidence.STATISTICAL

    problem: str = doc("what is wrong with a range: normalised-twice, not-scaled, scaled-twice", "")
    other: str = doc("the transform that did the same before", "")
    count: int = doc("samples in which it was so", 0)

    def describe_fault(self) -> str:
        """Which of the three, and the ranges before and after."""
        what = {
            "normalised-twice": f"normalises what {self.other} has normalised before",
            "not-scaled": "takes values of 0 to 255 as if they were 0 to 1",
        }.get(self.problem, "gives values that were scaled down twice")
        return (
            f"{what}: {_format_range(self.low_in, self.high_in)} becomes {_format_range(self.low_out, self.high_out)}"
        )


class TransformSlow(_OfTransform):
    """A transform takes most of each fetch, while the program waits for data."""

    PART = "SLOW"
    EVIDENCE = Evidence.STATISTICAL

    slow: str = doc("the transform that takes most of it", "")
    slow_share: float = doc("its part of the fetch", 0.0)
    slow_ms: float = doc("its median time", 0.0)
    samples: int = doc("measured samples so far", 0)
    wait_share: float = doc("part of the time between batches that went into waiting", 0.0)

    def describe_fault(self) -> str:
        """Its share, and its time a sample."""
        return f"takes {self.slow_share:.0%} of each fetch, {self.slow_ms:.2f} ms a sample"


def _format_range(low: Range, high: Range) -> str:
    return f"{low[0] if low else '-'} to {high[0] if high else '-'}"
