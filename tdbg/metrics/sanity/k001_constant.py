"""TD-K001: a metric that never changes."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.tables import format_count
from tdbg.metrics.keys import OF_MACHINE
from tdbg.metrics.rows.run_summary import RunSummary
from tdbg.metrics.rows.series import Series, resolve_direction
from tdbg.metrics.sanity import RULES, Rule, group_by_key, source_text

LEAST = 10  # values, at different steps
CERTAIN = 4  # of a score of training that was 0 each time
PERFECT = (1.0, 100.0)


@RULES.add
class Constant(Rule):
    """Says that a result, such as a loss or an accuracy, had the same value each time.

    What it does: It looks at series whose name says that lower or higher is better (loss, accuracy, F1, ...). One with
    10 values or more that are all equal is told. Losses that tdbg saw itself are left to other rules. Rates,
    schedules, weights, times and sizes may stand still, and are not judged; neither is a score that is perfect, 1 or
    100, from beginning to end.

    Why it matters: The value does not come from the model: an update is called nowhere, so that 0 is divided and
    logged; a mask leaves nothing over; or the figure of the first epoch is logged again and again.

    Example:
        TD-K001 warning: train/acc1_taxa_L10 was 0 all 12 times

    What to do: Look for the call that should feed it each batch, and for the place that resets it. A loss that truly
    stands still goes with weights that do not move: see TD-S007.

    Thresholds: 10 values at 10 different steps; 4 of a score of training (accuracy, F1, ...) that is 0 each time.
    """

    code = "TD-K001"
    title = "a metric that never changes"
    severity = "warning"
    lacks = f"no loss, accuracy or the like has {LEAST} values"

    def has_signal(self, seen: RunSummary) -> bool:
        """True for a metric that can be better or worse, with enough values."""
        return any(
            one.count >= _least_values(key) and _get_direction(key) is not None
            for (key, source, _), one in seen.tally.series.items()
            if source != "tdbg" and not key.startswith("core/")
        )

    def evaluate(self, seen: RunSummary) -> Iterable[Finding]:
        still = [
            (key, source, those) for (key, source), those in group_by_key(seen).items() if all(map(_is_constant, those))
        ]
        still = [found for found in still if not found[0].startswith("core/") and found[1] != "tdbg"]
        if not still:
            return
        key, source, those = still[0]
        more = f", and {format_count(len(still) - 1, 'more metric')}" if len(still) > 1 else ""
        yield self.make_finding(
            f"{key} was {_last_value(those[0]):g} all {format_count(those[0].count, 'time')}{source_text(source)}{more}",
            [
                f"{name}: {_last_value(one[0]):g}, {format_count(one[0].count, 'value')}, the last at step {one[0].last.step}"
                for name, _, one in still
            ],
            rank=those[0].rank,
            phase=those[0].phase or "",
            cause="the update that should feed it is not called, or an old value is logged again",
            try_next="check where it is updated, and whether the reset comes before the value is read",
        )


def _last_value(one: Series) -> float:
    return one.last.value


def _get_direction(key: str) -> bool | None:
    return None if key.endswith(OF_MACHINE) else resolve_direction(key)


def _least_values(key: str) -> int:
    """How many values tell, where they are all 0 if that is fewer than otherwise."""
    return CERTAIN if _get_direction(key) and key.startswith("train/") else LEAST


def _is_constant(one: Series) -> bool:
    better = _get_direction(one.key)
    if better is None or one.non_finite or one.least is None or one.most is None:
        return False
    value = one.least.value
    is_certain = better and value == 0.0 and one.key.startswith("train/")
    least = CERTAIN if is_certain else LEAST
    if one.count < least or one.last.step - one.least.step < least - 1:
        return False
    if value != one.most.value or (better and value in PERFECT):
        return False
    return "best" not in one.key.lower()  # TD-K002 knows those
