"""TD-D014: unscaled byte inputs."""

from dataclasses import dataclass

from tdbg.core.events import Finding, as_float
from tdbg.core.observations.data_splits import InputRanges, InputRow
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, ObservingRule
from tdbg.rules.text import format_figure

LEAST_HIGH, MOST_HIGH = 200.0, 255.0
LEAST_STD = 20.0  # of a batch
LEAST_LOOKS = 2  # batches of training


@dataclass
class _State:
    is_reported: bool = False


@RULES.add
class ByteInputs(ObservingRule[_State]):
    """Notes that float inputs of the model have the values of bytes, 0 to 255.

    What it does: In the opening inspection and its later looks it reads the range and standard deviation of the
    float inputs of the model in training; it reports when no value is below 0, the maximum is between 200 and
    255, and every batch has a standard deviation of at least 20.

    Why it matters: Default initialisation expects inputs of about unit scale. Inputs up to 255 saturate units,
    inflate gradients and often slow down learning.

    Example:
        TD-D014 info: input 0 is not scaled: values from 0 to 255, standard deviation 73.5, rank 0

    What to do: Divide by 255, or subtract the mean of the dataset and divide by its standard deviation. Ignore
    this if the model normalises its inputs itself.

    Thresholds: At least 2 batches of training. Always info: the range alone does not show what the model does.
    """

    code = "TD-D014"
    title = "unscaled byte inputs (0 to 255)"
    severity = "info"
    leads_to = ("TD-N004", "TD-S012")
    observes = (InputRanges,)
    kept = _State

    def evaluate(self, process: ProcessDir, state: _State, seen: InputRanges) -> Finding | None:
        rows = [row for row in seen.given if _has_values_of_bytes(row)]
        if state.is_reported or seen.use != "training" or not rows:
            return None
        state.is_reported, row = True, rows[0]
        return self.make_finding(
            f"input {row['name']} is not scaled: values from {format_figure(row['low'])} to {format_figure(row['high'])}, standard"
            f" deviation {format_figure(row['most_std'])}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="data",
            evidence=[seen.text()],
            cause="bytes were converted to floats without scaling",
            try_next="divide by 255, or normalise, unless the model does so itself",
        )


def _has_values_of_bytes(row: InputRow) -> bool:
    low, high, deviation = (as_float(row[name]) for name in ("low", "high", "least_std"))
    if low is None or high is None or deviation is None or row["looks"] < LEAST_LOOKS:
        return False
    return low >= 0.0 and LEAST_HIGH <= high <= MOST_HIGH and deviation >= LEAST_STD
