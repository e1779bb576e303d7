"""What the probe `data-splits` sees."""

from typing import TypedDict

from tdbg.core.events import Number, doc
from tdbg.core.observations import Evidence, Observed, format_number


class InputRow(TypedDict):
    """The figures of one input over all batches looked at."""

    name: str
    dtype: str
    looks: int
    low: Number | None
    high: Number | None
    least_mean: Number | None
    most_mean: Number | None
    least_std: Number | None
    most_std: Number | None


class InputRanges(Observed):
    """Range and spread of the inputs that one loader gives, for training or for evaluation."""

    PROBE = "data-splits"
    PART = "RANGES"
    EVIDENCE = Evidence.LOCAL

    dataset: str = doc("class of the dataset", "")
    feed: int = doc("number of the loader, from 1 in the order of their first batches", 0)
    use: str = doc("training or evaluation", "")
    looks: int = doc("batches looked at", 0)
    loaded: list[InputRow] = doc(
        "figures of each float input as the loader gives it: least and greatest element, mean and deviation of a batch",
        factory=list,
    )
    given: list[InputRow] = doc("the same of what the model is called with", factory=list)

    def text(self) -> str:
        """The range and the deviation of each input."""
        rows = (
            f"{row['name'] or 'input'} {format_number(row['low'])} to {format_number(row['high'])},"
            f" deviation {format_number(row['least_std'])} to {format_number(row['most_std'])}"
            for row in self.loaded
        )
        return f"{self.dataset}, {self.use}, {self.looks} batches: {'; '.join(rows)}"
