"""TD-D007: a transform makes NaN or Inf."""

from tdbg.core.events import Finding
from tdbg.core.observations.augmentation import TransformMadeNan
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, ObservingRule
from tdbg.rules.text import format_figure


@RULES.add
class TransformMakesNan(ObservingRule[set[str]]):
    """Names the transform that turned a finite image into one with NaN or Inf.

    What it does: With the flag AUGMENTATION (or at level extreme) the image is looked at before and after each step
    of a sampled call of the pipeline, in DataLoader workers too. It speaks when the image was finite before a step
    and not after it. Images that hold NaN from the start accuse nobody.

    Why it matters: One such image ruins the weights. Which of a dozen random transforms made it is hard to find
    afterwards, since the next pass draws other random numbers.

    Example:
        TD-D007 error: transform Normalize turned a finite image into NaN or Inf, rank 0

    What to do: Look at the range before the step: a division by the image's own deviation or maximum fails on a
    constant image, a logarithm or root on zero or below. Clamp, or add a small constant.

    Thresholds: One image is enough.
    """

    code = "TD-D007"
    title = "a transform makes NaN"
    severity = "error"
    leads_to = (Link("TD-D001", least=0, most=50), Link("TD-N001", least=0, most=50))
    observes = (TransformMadeNan,)
    kept = set

    def evaluate(self, process: ProcessDir, state: set[str], seen: TransformMadeNan) -> Finding | None:
        span = f"{format_figure(seen.low_in)} to {format_figure(seen.high_in)}"
        return self.make_finding(
            f"transform {seen.step_name} turned a finite image into NaN or Inf, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="input",
            evidence=[
                f"{seen.pipeline}, step {seen.pipeline_position}: finite values before, in {seen.count} of the measured samples",
                f"range before, over the samples that stayed finite: {span}",
            ],
            cause="a division by a deviation or maximum of zero, or a logarithm or root of zero or less",
            try_next="clamp the divisor, or add a small constant to it",
        )
