"""TD-K011: a metric that is not finite."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.tables import format_count
from tdbg.metrics.rows.run_summary import RunSummary
from tdbg.metrics.rows.series import Series
from tdbg.metrics.sanity import RULES, Rule, group_by_key, source_text, split_words
from tdbg.metrics.step_logger.averaging import NOT_FINITE

LEFT_OUT = f"{NOT_FINITE}_"  # of a metric whose samples were left out of a mean
SCALE = "train/loss_scale"


@RULES.add
class NotFinite(Rule):
    """Says that a metric was NaN or infinite: which, from which step, on which rank, and how often.

    What it does: It looks at every value of every series, and at train/not_finite_loss and its like, where a
    `StepMetricsLogger` says how many samples it left out of a mean. A best that is infinite is TD-K002's. Gradient
    norms are not judged in a run that scales its loss: there the first steps overflow by design.

    Why it matters: NaN enters no mean and no best, so that summaries look as if nothing had happened, and it compares
    as false: early stopping and the choice of a checkpoint go on with old values.

    Example:
        TD-K011 warning: train/loss was not finite 12 of 60 times, first nan at step 48

    What to do: `tdbg run` with the program, then `tdbg report`: TD-N001 names the module, the batch and the step of the
    first NaN. A score that nobody can compute (a class without a sample) is better left out than logged as NaN.

    Thresholds: One value.
    """

    code = "TD-K011"
    title = "a metric that is not finite"
    severity = "warning"
    lacks = "only tdbg's own metrics"

    def has_signal(self, seen: RunSummary) -> bool:
        """True for a metric that should be finite."""
        scaled = any(key == SCALE for key, _, _ in seen.tally.series)
        return any(_is_judged(key, scaled) for key, _, _ in seen.tally.series)

    def evaluate(self, seen: RunSummary) -> Iterable[Finding]:
        scaled = any(key == SCALE for key, _, _ in seen.tally.series)
        wild = [
            (_first_bad_step(one), one)
            for (key, _), those in group_by_key(seen).items()
            if _is_judged(key, scaled)
            for one in those
            if one.non_finite or LEFT_OUT in key
        ]
        if not wild:
            return
        wild.sort(key=lambda found: found[0])
        step, one = wild[0]
        others = len({(other.key, other.source) for _, other in wild}) - 1
        more = f", and {others} more metric{'s' if others > 1 else ''}" if others else ""
        yield self.make_finding(
            f"{_describe_series(one)}{source_text(one.source)}{more}",
            [f"rank {each.rank}: {_describe_series(each)}" for _, each in wild],
            rank=one.rank,
            first_step=step,
            phase=one.phase or "",
            cause="the model, the loss or the data gave NaN or Inf, or a mean was taken over no values",
            try_next="run it with `tdbg run`: its report names the origin of the first NaN",
        )


def _is_judged(key: str, scaled: bool) -> bool:
    words = split_words(key)
    return not key.startswith("core/") and "best" not in words and not (scaled and "grad" in words)


def _first_bad_step(one: Series) -> int:
    return one.first_step if one.first_wild is None else one.first_wild.step


def _describe_series(one: Series) -> str:
    if one.first_wild is None:  # the samples that were left out, as numbers
        name = one.key.replace(LEFT_OUT, "", 1)
        return f"{name} had samples that were not finite, first at step {one.first_step}, in {format_count(one.count, 'row')}"
    wild = f"first {one.first_wild.value:g} at step {one.first_wild.step}"
    return f"{one.key} was not finite {one.non_finite} of {format_count(one.count, 'time')}, {wild}"
