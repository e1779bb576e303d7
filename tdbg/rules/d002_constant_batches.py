"""TD-D002: batches whose samples are all the same."""

from tdbg.core.events import Finding
from tdbg.core.observations.dataloader import ConstantInput
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, ObservingRule
from tdbg.rules.text import format_figure


@RULES.add
class ConstantBatches(ObservingRule[set[str]]):
    """Says when the inputs of batch after batch are constant, or one sample over and over.

    What it does: With the flag DATALOADER (or at level advanced) it looks at the main input of sampled batches:
    the largest tensor with floats, else with integers, masks and labels left out. It speaks when that tensor
    holds one value all over, or equal samples, in at least 3 batches of a pass and three quarters of those looked
    at. It is silent where another input of the batch varies and this one may be its mask (all 1, of a shape that
    fits) or its companion (coordinates, positions: not four times as large).

    Why it matters: The model can only learn the mean of the labels. The loss falls a little and stays there, which
    looks like a hard problem rather than like missing data.

    Example:
        TD-D002 warning: input 0 is 0 all over in 6 of 6 batches looked at, rank 0

    What to do: Fetch two samples by hand and compare them. Common sources: a `__getitem__` that ignores its index,
    a file that could not be read and became zeros, a transform that clips everything to one value.

    Thresholds: 3 batches, 75 %.
    """

    code = "TD-D002"
    title = "constant batches"
    severity = "warning"
    leads_to = ("TD-G003", "TD-G005", "TD-S007")
    observes = (ConstantInput,)
    kept = set

    def evaluate(self, process: ProcessDir, state: set[str], seen: ConstantInput) -> Finding | None:
        what = "holds one sample over and over"
        if seen.constant:
            what = f"is {format_figure(seen.constant_value)} all over"
        return self.make_finding(
            f"input {seen.tensor} {what} in {seen.count} of {format_count(seen.looked, 'batch')} looked at, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="input",
            evidence=[
                f"{seen.dataset}, up to batch {seen.batch}",
                *([f"dataset indices of the last one: {seen.indices}"] if seen.indices else []),
            ],
            cause="the dataset ignores the index, or data could not be read and was replaced by a constant",
            try_next="compare dataset[0] with dataset[1]",
        )
