"""TD-D011: evaluation on samples of the training data."""

from dataclasses import dataclass, field

from tdbg.core.events import Finding
from tdbg.core.observations.data_splits import SharedSamples
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, ObservingRule

SHARE = 0.5
WHOLE_SHARE = 0.95  # from here on all evaluated samples are training data
LEAST_SHARED = 8  # samples seen on both sides
LEAST_SAMPLES = 16  # compared


@dataclass
class _State:
    feeds: dict[int, bool] = field(default_factory=dict)  # number of an evaluated loader -> shares most of its samples
    given: Finding | None = None


@RULES.add
class EvaluationOnTrainingData(ObservingRule[_State]):
    """Says when most samples of an evaluated loader are samples of the training data.

    What it does: In the opening inspection and the first evaluation pass it takes a checksum of each sample of
    the batches looked at, and compares those of evaluation with those of training. As training was seen in part
    only, it works out how many of the evaluated ones would have been met if all were training data. Subsets of
    one dataset are compared by their indices, all of them. It speaks above half.

    Why it matters: The metric measures memory. It rises with overfitting, early stopping keeps the worst
    weights, and the number is wrong in every table it enters.

    Example:
        TD-D011 warning: evaluation on training data: 80 of 80 indices of Subset of TensorDataset (80) looked at
        are also in the training data, rank 0

    What to do: Split before anything is shuffled, augmented or windowed, with a fixed generator
    (`random_split(data, lengths, generator=...)`, once), and keep the indices.

    Thresholds: Above half; 8 samples found on both sides, of 16 compared. It is a note where accuracy on
    training data may be meant: both loaders read the same dataset object, another loader is evaluated as well
    that shares nothing, or all evaluated samples are training data and no subset was split off. Samples that
    are augmented are not recognised, and data in which samples of one pass are equal is left out.
    """

    code = "TD-D011"
    title = "evaluation on training data"
    severity = "warning"
    observes = (SharedSamples,)
    kept = _State

    def evaluate(self, process: ProcessDir, state: _State, seen: SharedSamples) -> Finding | None:
        share, what = _estimate_share(seen)
        state.feeds[seen.feed] = share > SHARE
        has_clean = not all(state.feeds.values())
        if state.given is not None:
            if has_clean:
                state.given.severity = "info"
            return None
        if share <= SHARE:
            return None
        is_whole = share >= WHOLE_SHARE and not seen.indices  # nothing was split
        state.given = self.make_finding(
            f"evaluation on training data: {what} of {seen.dataset} looked at are also in the training data,"
            f" {process.display_name}",
            severity="info" if seen.is_same or has_clean or is_whole else self.severity,
            first_step=seen.step,
            rank=process.rank,
            phase="eval",
            evidence=[
                f"{format_count(seen.trained_samples, 'different sample')} of {seen.trained} were seen in training"
                + (f", of {seen.trained_length}: about {share:.0%} are training data" if seen.trained_length else ""),
                *(["both loaders read the same dataset object"] if seen.is_same else []),
            ],
            cause="both loaders use one dataset, or the split was drawn twice",
            try_next="split once with a fixed generator, and compare the indices of the parts",
            grade="located" if seen.indices else "",
        )
        return state.given


def _estimate_share(seen: SharedSamples) -> tuple[float, str]:
    """The part of the evaluated samples that is training data, and what it rests on."""
    if seen.indices and seen.indices >= LEAST_SAMPLES:
        shared = seen.shared_indices or 0
        return shared / seen.indices, f"{shared} of {format_count(seen.indices, 'index')}"
    if seen.samples < LEAST_SAMPLES or seen.shared < LEAST_SHARED:
        return 0.0, ""
    coverage = min(max(seen.trained_samples, 1) / seen.trained_length, 1.0) if seen.trained_length else 1.0
    return min(seen.shared / (seen.samples * coverage), 1.0), f"{seen.shared} of {format_count(seen.samples, 'sample')}"
