"""TD-K002: a best that is never updated."""

import re
from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.tables import format_count
from tdbg.metrics.rows.run_summary import RunSummary
from tdbg.metrics.rows.series import Series, resolve_direction
from tdbg.metrics.sanity import RULES, Rule, group_by_key, source_text

LEAST = 3
BEST = re.compile(r"(?i)(^|[/_.\-])best[_.\-/]?|[_.\-/]best(?=$|[_.\-/])")


@RULES.add
class BestStuck(Rule):
    """Says that a best value stood still while better values were logged, or was never one of the values at all.

    What it does: It pairs a series with ``best`` in its name (val/best_loss, best_acc1) with the series of the same
    name without it. It speaks where the best did not change over 3 values or more, and either the other series was
    better at some time, or the best is 0 or infinite and the series never had that value.

    Why it matters: The best began at 0 for a metric whose lower is better (or at infinity for one whose higher is),
    so nothing ever beats it: no checkpoint is kept as the best, early stopping stops too early, and the summary says 0.

    Example:
        TD-K002 error: val/best_loss stayed 0 while val/loss came down to 0.41

    What to do: Begin with None (or infinity with the right sign), and give each metric its direction:
    `Metric(name, higher_is_better=False)`.

    Thresholds: 3 values of each. Where the name does not say which direction is better, nothing is said.
    """

    code = "TD-K002"
    title = "a best value that is never updated"
    severity = "error"
    lacks = "no metric has a best value logged beside it (val/acc, val/best_acc)"

    def has_signal(self, seen: RunSummary) -> bool:
        """True for a metric and its best."""
        keys = {(key, source) for key, source, _ in seen.tally.series}
        return any((base := _strip_best(key)) != key and (base, source) in keys for key, source in keys)

    def evaluate(self, seen: RunSummary) -> Iterable[Finding]:
        every = group_by_key(seen)
        for (key, source), those in every.items():
            base = _strip_best(key)
            if base == key or (base, source) not in every:
                continue
            for best, plain in zip(those, every[base, source], strict=False):
                better = resolve_direction(base)
                text = _describe_progress(best, plain, better) if better is not None else ""
                if text:
                    yield self.make_finding(
                        f"{key} stayed {best.last.value:g} while {base} {text}{source_text(source)}",
                        [
                            f"{key}: {format_count(best.count, 'value')}, all {best.last.value:g}",
                            f"{base}: {format_count(plain.count, 'value')}",
                        ],
                        rank=best.rank,
                        first_step=best.last.step,
                        phase=best.phase or "",
                        cause="the best starts at a value that nothing beats, or is compared in the wrong direction",
                        try_next="start the best at None, and name the direction (min or max)",
                    )
                    break


def _strip_best(key: str) -> str:
    return BEST.sub(lambda found: found.group(1) or "", key)


def _describe_progress(best: Series, plain: Series, better: bool) -> str:
    """What the plain series did meanwhile; empty if the best is as it should be."""
    if best.count < LEAST or plain.count < LEAST or plain.least is None or plain.most is None:
        return ""
    if best.non_finite == best.count and best.non_finite:  # infinite from beginning to end
        return f"went from {plain.least.value:g} to {plain.most.value:g}"
    if best.least is None or best.most is None or best.least.value != best.most.value or best.non_finite:
        return ""
    value, peak = best.last.value, plain.most.value if better else plain.least.value
    if (peak > value) if better else (peak < value):
        return f"reached {peak:g}"
    if value == 0.0 and peak != value:
        return f"came down to {peak:g}" if not better else f"was never above {peak:g}"
    return ""
