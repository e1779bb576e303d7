"""TD-D014: the model gets inputs of 0 to 255."""

from dataclasses import dataclass

from tdbg.core.events import Finding, as_float
from tdbg.core.observations.data_splits import InputRanges, InputRow
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, ObservingRule
from tdbg.rules.text import figure

LEAST_HIGH, MOST_HIGH = 200.0, 255.0
LEAST_STD = 20.0  # of a batch
LEAST_LOOKS = 2  # batches of training


@dataclass
class _State:
    said: bool = False


@RULES.add
class ByteInputs(ObservingRule[_State]):
    """Notes that float inputs reach the model with the values of bytes, 0 to 255.

    What it does: In the opening inspection it reads range and deviation of the float inputs that the model is
    called with in training. It speaks when none is below 0, the greatest lies from 200 to 255, and every batch
    has a deviation of 20 or more.

    Why it matters: A model trained on inputs a hundred times as large as its initial weights were made for
    starts with saturated units and gradients of another scale; it often learns slowly, and from few features.

    Example:
        TD-D014 info: input 0 reaches the model with values from 0 to 255 (deviation 73.5), rank 0

    What to do: Divide by 255, or normalise by the mean and deviation of the dataset. Where the model does that
    itself, or begins with a normalisation layer, all is well.

    Thresholds: 2 batches of training or more. Always info: the range alone does not tell what the model does.
    """

    code = "TD-D014"
    title = "inputs of 0 to 255"
    severity = "info"
    leads_to = ("TD-N004", "TD-S012")
    observes = (InputRanges,)
    kept = _State

    def evaluate(self, process: ProcessDir, state: _State, seen: InputRanges) -> Finding | None:
        rows = [row for row in seen.given if _has_values_of_bytes(row)]
        if state.said or seen.use != "training" or not rows:
            return None
        state.said, row = True, rows[0]
        return self.make_finding(
            f"input {row['name']} reaches the model with values from {figure(row['low'])} to {figure(row['high'])}"
            f" (deviation {figure(row['most_std'])}), rank {process.rank}",
            first_step=seen.step,
            rank=process.rank,
            phase="data",
            evidence=[seen.text()],
            cause="bytes that were converted to floats and not scaled",
            try_next="divide by 255, or normalise, unless the model does so itself",
        )


def _has_values_of_bytes(row: InputRow) -> bool:
    low, high, deviation = (as_float(row[name]) for name in ("low", "high", "least_std"))
    if low is None or high is None or deviation is None or row["looks"] < LEAST_LOOKS:
        return False
    return low >= 0.0 and LEAST_HIGH <= high <= MOST_HIGH and deviation >= LEAST_STD
