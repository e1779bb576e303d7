"""TD-D010: the inputs of evaluation are scaled otherwise than those of training."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tdbg.core.events import Finding, as_float
from tdbg.core.observations.data_splits import InputRanges, InputRow
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, ObservingRule
from tdbg.rules.text import format_figure

FACTOR = 8.0
LEAST_LOOKS = 2  # batches of training
EVEN = 2.0  # times the least deviation: the most that batches of one loader may have where ranges are compared

Row = dict[str, float]


@dataclass
class _State:
    training: dict[int, InputRanges] = field(default_factory=dict)  # by the loader's number
    evaluation: dict[int, InputRanges] = field(default_factory=dict)
    is_reported: bool = False


@RULES.add
class InputsScaledOtherwise(ObservingRule[_State]):
    """Says when the model gets inputs of another scale in evaluation than in training.

    What it does: In the opening inspection and the first evaluation pass it reads range and deviation of the
    float inputs of each loader, as the loader gives them and as the model is called with them. It compares
    inputs of one place (or name) and dtype. It speaks when every batch of evaluation has 8 times the deviation
    of every batch of training, or an eighth of it; or when the ranges do not overlap and the means are 8
    deviations apart. Both must be so at the loader and at the model's call, and against every loader that
    trains.

    Why it matters: The model is judged on inputs unlike those it has learned from: the metric stays at chance
    while the loss falls, and people look for overfitting. Early stopping and the choice of a checkpoint go by
    noise.

    Example:
        TD-D010 warning: input 0 is scaled differently in evaluation: 0.01 to 255 (deviation 73.5), in
        training -1.67 to 1.67 (deviation 0.96), rank 0

    What to do: Give both datasets the same normalisation. Common sources: a `Normalize` in one of two
    transforms, images as 0 to 255 on one side, statistics of training that are not applied to the validation
    set.

    Thresholds: A factor of 8, in 2 batches of training or more. Integer inputs, targets, masks and constant
    inputs are left out.
    """

    code = "TD-D010"
    title = "evaluation inputs are scaled differently"
    severity = "warning"
    leads_to = ("TD-N004",)
    observes = (InputRanges,)
    kept = _State

    def evaluate(self, process: ProcessDir, state: _State, seen: InputRanges) -> Finding | None:
        (state.training if seen.use == "training" else state.evaluation)[seen.feed] = seen
        if state.is_reported:
            return None
        for evaluated in state.evaluation.values():
            for row in evaluated.loaded:
                trained = list(_iter_training_rows(state, row))
                if trained and all(_is_scaled_otherwise(evaluated, row, other, theirs) for other, theirs in trained):
                    state.is_reported = True
                    return self._make_range_finding(process, evaluated, row, *trained[0])
        return None

    def _make_range_finding(
        self, process: ProcessDir, evaluated: InputRanges, row: InputRow, trained: InputRanges, theirs: InputRow
    ) -> Finding:
        return self.make_finding(
            f"input {row['name']} is scaled differently in evaluation: {_format_range(row)}, in training {_format_range(theirs)},"
            f" {process.display_name}",
            first_step=evaluated.step,
            rank=process.rank,
            phase="eval",
            evidence=[
                f"{evaluated.dataset} in evaluation, {format_count(row['looks'], 'batch')}: {_format_spread(row)}",
                f"{trained.dataset} in training, {format_count(theirs['looks'], 'batch')}: {_format_spread(theirs)}",
            ],
            cause="only one of the two datasets is normalised",
            try_next="print the range of a batch of both loaders, and give both the same transform",
        )


def _iter_training_rows(state: _State, row: InputRow) -> Iterator[tuple[InputRanges, InputRow]]:
    """The same input of each loader that trains."""
    for trained in state.training.values():
        for other in trained.loaded:
            if (other["name"], other["dtype"]) == (row["name"], row["dtype"]) and other["looks"] >= LEAST_LOOKS:
                yield trained, other


def _is_scaled_otherwise(evaluated: InputRanges, row: InputRow, trained: InputRanges, other: InputRow) -> bool:
    """True if the two differ as the loaders give them, and in the same way as the model gets them."""
    given = {one["name"]: one for one in evaluated.given}.get(row["name"])
    theirs = {one["name"]: one for one in trained.given}.get(other["name"])
    if given is None or theirs is None:
        return False
    difference = _compare_ranges(_read_finite_values(row), _read_finite_values(other))
    return bool(difference) and difference == _compare_ranges(_read_finite_values(given), _read_finite_values(theirs))


def _read_finite_values(row: InputRow) -> Row:
    """The figures that are finite; of others nothing is known."""
    found = {name: as_float(row[name]) for name in ("low", "high", "least_mean", "most_mean", "least_std", "most_std")}
    return {name: value for name, value in found.items() if value is not None and abs(value) < float("inf")}


def _compare_ranges(one: Row, other: Row) -> str:
    """wider, narrower or apart: how the first differs; empty if it does not, or nothing can be said."""
    if len(one) < 6 or len(other) < 6 or not (one["least_std"] > 0 and other["least_std"] > 0):
        return ""
    if one["least_std"] >= FACTOR * other["most_std"]:
        return "wider"
    if other["least_std"] >= FACTOR * one["most_std"]:
        return "narrower"
    if any(row["most_std"] > EVEN * row["least_std"] for row in (one, other)):
        return ""
    distance = max(one["least_mean"] - other["most_mean"], other["least_mean"] - one["most_mean"])
    are_disjoint = one["low"] > other["high"] or other["low"] > one["high"]
    return "apart" if are_disjoint and distance >= FACTOR * max(one["most_std"], other["most_std"]) else ""


def _format_range(row: InputRow) -> str:
    return f"{format_figure(row['low'])} to {format_figure(row['high'])} (deviation {format_figure(row['most_std'])})"


def _format_spread(row: InputRow) -> str:
    return (
        f"mean {format_figure(row['least_mean'])} to {format_figure(row['most_mean'])}, deviation {format_figure(row['least_std'])} to"
        f" {format_figure(row['most_std'])} of a batch"
    )
