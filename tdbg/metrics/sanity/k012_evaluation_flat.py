"""TD-K012: an evaluation score that stays near chance while the training loss falls."""

import math
from collections.abc import Iterable, Iterator, Sequence

from tdbg.core.directions import EVALUATION_WORDS, TRAINING_WORDS, direction_of, words_of
from tdbg.core.events import Finding
from tdbg.core.observations import Evidence
from tdbg.core.tables import format_count
from tdbg.metrics.rows.row import READ_FROM_TEXT
from tdbg.metrics.rows.run_summary import RunSummary
from tdbg.metrics.rows.series import Series
from tdbg.metrics.sanity import RULES, Rule, source_text

LEAST = 4  # values, at different steps
NEAR_CHANCE = 0.2  # of all right
MAX_RISE = 1.5  # largest to smallest value
MAX_GAIN = 1.1  # last to first value
FALL = 0.5  # last to first training loss
ACCURACIES = {"acc", "accuracy", "top"}


@RULES.add
class EvaluationFlat(Rule):
    """Says that accuracy in evaluation stays near chance, although the training loss falls.

    What it does: It looks at accuracies of evaluation, logged anywhere or printed by the program (`val_acc 0.07`). It
    speaks where all values are below 20 %, the last is hardly above the first or the largest at most 1.5 times the
    smallest, and the training loss, as tdbg saw it or as it was printed, fell to half or less meanwhile (since one
    evaluation before the first score). What is read from text is a note and no more.

    Why it matters: The model learns something that evaluation does not ask for: labels are numbered in another
    order (classes sorted as text: 1, 10, 2), inputs are normalised in another way, or samples and labels are paired
    wrongly in one of the two sets. A training loss that falls hides it.

    Example:
        TD-K012 info: val_acc stays between 0.06 and 0.075 in 8 evaluations while train_loss falls from 1.91 to 0.266

    What to do: Evaluate on a few batches of the training data: if accuracy is high there, compare the two sets: order
    of classes, normalisation, the pairing of inputs and labels. If not, the score itself is computed wrongly.

    Thresholds: 4 values at 4 different steps, below 0.2 (or 20, in percent); loss at half of its first value or less.
    """

    code = "TD-K012"
    title = "an evaluation score that stays near chance"
    severity = "warning"
    grade = Evidence.STATISTICAL.grade_word
    lacks = "no rank logs both an evaluation accuracy and a training loss"

    def has_signal(self, seen: RunSummary) -> bool:
        """True for a score and a loss on one rank."""
        scored = {one.rank for one in _iter_scores(seen)}
        return any(one.rank in scored for one in _iter_losses(seen))

    def evaluate(self, seen: RunSummary) -> Iterable[Finding]:
        for one in _iter_scores(seen):
            if not _is_flat(one) or one.least is None or one.most is None:
                continue
            losses = [loss for loss in _iter_losses(seen) if loss.rank == one.rank]
            fallen = next((loss for loss in losses if _has_fallen(_list_meanwhile(loss, one))), None)
            if fallen is None:
                continue
            values = _list_meanwhile(fallen, one)
            is_certain = READ_FROM_TEXT not in (one.source, fallen.source)
            yield self.make_finding(
                f"{one.key} stays between {one.least.value:.3g} and {one.most.value:.3g} in {format_count(one.count, 'evaluation')} while "
                f"{fallen.key} falls from {values[0]:.3g} to {values[-1]:.3g}",
                [
                    f"{each.key}: {format_count(each.count, 'value')}, the last at step {each.last.step}{_describe_origin(each.source)}"
                    for each in (one, fallen)
                ],
                severity=self.severity if is_certain else "info",
                rank=one.rank,
                phase="val",
                cause="training and evaluation data differ (class order, normalisation, pairing) or the score is wrong",
                try_next="compute the same score on a few training batches: if it is high there, compare the two data sets",
            )
            return


def _describe_origin(source: str) -> str:
    return ", read from what the program printed" if source == READ_FROM_TEXT else source_text(source)


def _iter_scores(seen: RunSummary) -> Iterator[Series]:
    """Accuracies of evaluation, those that were logged first."""
    for tally in (seen.tally, seen.printed):
        for one in tally.series.values():
            words = words_of(one.key)
            if words & ACCURACIES and "best" not in words and (words & EVALUATION_WORDS or one.phase == "val"):
                yield one


def _iter_losses(seen: RunSummary) -> Iterator[Series]:
    """Losses of training."""
    for tally in (seen.tally, seen.printed):
        for one in tally.series.values():
            words = words_of(one.key)
            is_loss = "loss" in words and direction_of(one.key) is False
            if is_loss and not words & EVALUATION_WORDS and (one.phase != "val" or words & TRAINING_WORDS):
                yield one


def _is_flat(one: Series) -> bool:
    """True if no value is much better than another, and all are near chance."""
    if one.count < LEAST or one.non_finite or one.least is None or one.most is None:
        return False
    if one.last.step - one.first_step < LEAST - 1:
        return False
    low, high = one.least.value, one.most.value
    scale = 1.0 if high <= 1.0 else 100.0
    has_risen = one.last.value > MAX_GAIN * one.course.values[0] and high > MAX_RISE * low
    return 0.0 < high <= NEAR_CHANCE * scale and not has_risen


def _list_meanwhile(loss: Series, score: Series) -> list[float]:
    """The losses since one evaluation before the first score; the beginning of printed scores can be missing.

    A course has no steps: its values are taken to be evenly spaced.
    """
    interval = (score.last.step - score.first_step) / (score.count - 1)
    duration = max(loss.last.step - loss.first_step, 1)
    share = (score.first_step - interval - loss.first_step) / duration
    values = loss.course.values
    return values[max(int(share * len(values)), 0) :]


def _has_fallen(losses: Sequence[float]) -> bool:
    return len(losses) >= LEAST and math.isfinite(sum(losses)) and 0.0 < losses[-1] <= FALL * losses[0]
