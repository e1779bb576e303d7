"""TD-D013: training takes the samples in the order of their labels."""

from tdbg.core.events import Finding
from tdbg.core.observations.data_splits import LabelOrder
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, ObservingRule


@RULES.add
class SortedByLabel(ObservingRule[set[str]]):
    """Says when a loader trains on sorted data without shuffling.

    What it does: In the opening inspection and its later looks it follows the class labels of a loader that
    takes a map-style dataset in its stored order. It speaks when the labels of 4 batches in a row or more rise
    (or fall) all the way through 3 classes or more, or when each of these batches holds a single label, of two
    or more in all.

    Why it matters: Each update sees one class and pushes the model to it; batch normalisation learns the
    statistics of one class at a time. The loss looks low within a class and jumps at its end, and accuracy
    stays poor.

    Example:
        TD-D013 warning: training takes the samples in the order of their labels: 20 batches in a row, 4
        classes, sorted, rank 0

    What to do: `DataLoader(..., shuffle=True)`, or a `DistributedSampler` with shuffle. A stream needs a
    shuffle buffer.

    Thresholds: 4 batches; labels that repeat 4 times on the mean. Streams, samplers of the program's own and
    targets of several numbers a sample are left out.
    """

    code = "TD-D013"
    title = "samples in the order of their labels"
    severity = "warning"
    leads_to = ("TD-N004",)
    observes = (LabelOrder,)
    kept = set

    def evaluate(self, process: ProcessDir, state: set[str], seen: LabelOrder) -> Finding | None:
        how = "sorted" if seen.is_sorted else "one class in each batch"
        return self.make_finding(
            f"training takes the samples in the order of their labels: {format_count(seen.batches, 'batch')} in a row,"
            f" {format_count(seen.classes, 'class')}, {how}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="input",
            evidence=[
                f"{seen.dataset}, labels {seen.label}: {seen.samples} in {format_count(seen.batches, 'batch')}, {seen.single} of them"
                " with one class only"
            ],
            cause="the data is stored by class, and the loader does not shuffle",
            try_next="DataLoader(..., shuffle=True)",
        )
