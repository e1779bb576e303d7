"""TD-D009: a transform that never changes anything."""

from tdbg.core.events import Finding
from tdbg.core.observations.augmentation import TransformIdle
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, ObservingRule


@RULES.add
class IdleTransform(ObservingRule[set[str]]):
    """Says when a transform that should have changed images by now never did.

    What it does: With the flag AUGMENTATION (or at level extreme) it compares the image before and after each step
    on sampled calls: dtype, shape, and a sample of 1,024 values. A step with a probability `p` is told once it
    should have changed 40 images and changed none, one without after 200. Steps that rightly leave most images
    alone (resizing, cropping, padding, conversions, by their names) and constant images are left out.

    Why it matters: The augmentation that a run is named after may not be there: the image stands under a key that
    the library does not look at, or a parameter of zero switches it off.

    Example:
        TD-D009 info: transform ColorJitter changed none of 64 measured samples, rank 0

    What to do: Call it by hand on one image. In albumentations, images under other keys than `image` need
    `additional_targets`.

    Thresholds: 40 changes to be expected, or 200 samples.
    """

    code = "TD-D009"
    title = "a transform without effect"
    severity = "info"
    observes = (TransformIdle,)
    kept = set

    def evaluate(self, process: ProcessDir, state: set[str], seen: TransformIdle) -> Finding | None:
        return self.make_finding(
            f"transform {seen.step_name} changed none of {format_count(seen.count, 'measured sample')}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="input",
            evidence=[f"{seen.pipeline}, step {seen.pipeline_position}"],
            cause="a parameter disables it, or the image is under a key that it does not read",
            try_next="call it by hand on one image and compare",
        )
