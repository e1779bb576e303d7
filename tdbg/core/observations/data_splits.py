"""What the probe `data-splits` sees."""

from typing import TypedDict

from tdbg.core.events import Number, doc
from tdbg.core.observations import Evidence, Observed, format_number
from tdbg.core.tables import format_count


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
    looks: int = doc("number of batches checked", 0)
    loaded: list[InputRow] = doc(
        "per float input from the loader: least and greatest element, mean and standard deviation of a batch",
        factory=list,
    )
    given: list[InputRow] = doc("the same for the inputs that the model is called with", factory=list)

    def text(self) -> str:
        """The range and the deviation of each input."""
        rows = (
            f"{row['name'] or 'input'} {format_number(row['low'])} to {format_number(row['high'])},"
            f" standard deviation {format_number(row['least_std'])} to {format_number(row['most_std'])}"
            for row in self.loaded
        )
        return f"{self.dataset}, {self.use}, {format_count(self.looks, 'batch')}: {'; '.join(rows)}"


class SharedSamples(Observed):
    """What an evaluated loader shares with the loaders that train, at the end of the first pass."""

    PROBE = "data-splits"
    PART = "SHARED"
    EVIDENCE = Evidence.STATISTICAL

    dataset: str = doc("class of the dataset", "")
    feed: int = doc("number of the loader, from 1 in the order of their first batches", 0)
    trained: str = doc("class of the dataset of the loader that trains", "")
    is_same: bool = doc("both loaders read the same dataset object", False)
    indices: int | None = doc("number of evaluation indices compared, if both loaders read subsets of one dataset")
    shared_indices: int | None = doc("number of these that the training subset also has")
    samples: int = doc("number of evaluation samples compared by a checksum of their content", 0)
    shared: int = doc("number of these that were also seen in training", 0)
    trained_samples: int = doc("number of distinct training samples seen so far", 0)
    trained_length: int | None = doc("length of the training dataset, if it has one")

    def text(self) -> str:
        """How many samples are shared."""
        trained = format_count(self.trained_samples, "training sample")
        text = f"{self.dataset}: {self.shared} of {format_count(self.samples, 'sample', 'was')} among {trained}"
        if self.is_same:
            text += "; it is the training dataset"
        if self.indices:
            text += f"; {self.shared_indices} of {format_count(self.indices, 'index', 'is')} also in training"
        return text


class LabelOrder(Observed):
    """A loader that trains on its samples in the order of their labels."""

    PROBE = "data-splits"
    PART = "ORDER"
    EVIDENCE = Evidence.LOCAL
    LEVEL = "W"

    dataset: str = doc("class of the dataset", "")
    label: str = doc("path of the labels", "")
    batches: int = doc("number of consecutive batches checked", 0)
    samples: int = doc("number of labels in these batches", 0)
    classes: int = doc("number of distinct labels among them", 0)
    single: int = doc("number of batches that hold a single label", 0)
    is_sorted: bool = doc("the labels rise, or fall, from the first to the last", False)

    def text(self) -> str:
        """How the labels are ordered."""
        how = "sorted" if self.is_sorted else f"one class in {format_count(self.single, 'batch')}"
        return f"{self.dataset}: labels {self.label} of {format_count(self.batches, 'batch')} in a row: {how}, {format_count(self.classes, 'class')}"
