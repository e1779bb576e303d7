"""TD-D008: a transform gets values of a range it was not made for."""

from tdbg.core.events import Finding
from tdbg.core.observations.augmentation import RangeMistaken
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, ObservingRule
from tdbg.rules.text import format_figure

CAUSES = {
    "normalised-twice": ("the dataset and the model's own preprocessing both normalise", "take one of them out"),
    "not-scaled": ("the mean and deviation are those of 0 to 1, the image has 0 to 255", "divide by 255 before it"),
    "scaled-twice": ("the image was divided by 255 already", "take one of the divisions out, or max_pixel_value=1"),
}


@RULES.add
class ValueRange(ObservingRule[set[str]]):
    """Says when an image is normalised or scaled twice, or not at all.

    What it does: With the flag AUGMENTATION (or at level extreme) it follows the range of the values through the
    pipeline on sampled calls, in DataLoader workers too. It speaks of three mistakes: a normalising step (by its
    name) that gets negative values from an earlier one; one that takes 0 to 255 for 0 to 1 (every image then
    reaches above 300) or 0 to 1 for 0 to 255 (their span then shrinks to less than half); and a pipeline whose
    images all end within 0.02 of zero.

    Why it matters: Nothing fails. Training is slower and ends worse, and a pretrained backbone sees inputs unlike
    those it was trained on.

    Example:
        TD-D008 warning: transform Normalize normalises values that Normalize has already normalised, rank 0

    What to do: Compare the ranges of each step in the debug log's PIPELINE line with what the step expects.

    Thresholds: 4 measured samples; the figures above.
    """

    code = "TD-D008"
    title = "value range of a transform"
    severity = "warning"
    observes = (RangeMistaken,)
    kept = set

    def evaluate(self, process: ProcessDir, state: set[str], seen: RangeMistaken) -> Finding | None:
        what = {
            "normalised-twice": f"normalises values that {seen.other} has already normalised",
            "not-scaled": "treats values from 0 to 255 as values from 0 to 1",
        }.get(seen.problem, "returns values that were scaled down twice")
        cause, try_next = CAUSES.get(seen.problem, CAUSES["scaled-twice"])
        low_in, high_in, low, high = map(format_figure, (seen.low_in, seen.high_in, seen.low_out, seen.high_out))
        return self.make_finding(
            f"transform {seen.step_name} {what}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="input",
            evidence=[
                f"{seen.pipeline}, step {seen.pipeline_position}: {low_in} to {high_in} becomes"
                f" {low} to {high}, over {format_count(seen.count, 'sample')}",
            ],
            cause=cause,
            try_next=try_next,
        )
