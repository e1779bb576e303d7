"""TD-K005: one metric in two units."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.metrics.keys import Key, KeyGrammarError, unit_of
from tdbg.metrics.rows.run_summary import OWN, RunSummary
from tdbg.metrics.rows.series import Series
from tdbg.metrics.sanity import RULES, Rule, group_by_key, source_text, split_words

SHARES = {"acc", "accuracy", "precision", "recall", "f1"}
LEAST = 3
ABOVE = 1.5  # no fraction is
BELOW = 1.0
ALIVE = 0.02  # the other one is more than a percentage near 0


@RULES.add
class MixedUnits(Rule):
    """Says that values of one kind are in percent here and in fractions of 1 there, or that a key has two units.

    What it does: It looks at the units that rows state: a key, or one metric in several phases and tasks, with two of
    them is told. Where none is stated it compares accuracies, precisions, recalls and F1 of one source: some above
    1.5, others between 0.02 and 1 from beginning to end.

    Why it matters: 0.8 and 80 stand in one table and one sorted list: the best is chosen by the unit.

    Example:
        TD-K005 warning: accuracies are in two units: val/acc1 goes up to 71.2, val/chain_accuracy to 0.43

    What to do: State one unit (`pct` or `frac`); where both are wanted let the name of the twin end in it:
    val/chain_acc and val/chain_acc_pct.

    Thresholds: 3 values of each series.
    """

    code = "TD-K005"
    title = "one metric in two units"
    severity = "warning"
    lacks = f"no metric states a unit, and there are no two accuracies with {LEAST} values"

    def has_signal(self, seen: RunSummary) -> bool:
        """True for units that are stated, or shares that can be compared."""
        compared = (len(those) > 1 for those in _list_shares(seen).values())
        return bool(seen.units) or any(compared)

    def evaluate(self, seen: RunSummary) -> Iterable[Finding]:
        twice = [(key, units) for key, units in sorted(seen.units.items()) if len(units) > 1]
        stated = _find_stated_units(seen)
        if twice or stated:
            name, units = (twice or stated)[0]
            yield self.make_finding(
                f"{name} is in two units: {' and '.join(sorted(units))}",
                [f"{one}: {', '.join(sorted(of))}" for one, of in [*twice, *stated]],
                rank=seen.rank,
                cause="two places that log it disagree about its unit",
                try_next="use one unit, or end the second metric's name in its own unit (_pct, _frac)",
            )
        yield from self._compare_sizes(seen)

    def _compare_sizes(self, seen: RunSummary) -> Iterable[Finding]:
        for source, every in _list_shares(seen).items():
            large = [one for one in every if one.most and one.most.value > ABOVE]
            small = [one for one in every if _is_fraction(one)]
            if not large or not small or (source not in OWN and not _share_a_word(large, small)):
                continue
            yield self.make_finding(
                f"accuracies are in two units: {large[0].key} goes up to {_peak_value(large[0]):g},"
                f" {small[0].key} to {_peak_value(small[0]):g}{source_text(source)}",
                [f"{one.key}: up to {_peak_value(one):g}" for one in [*large[:6], *small[:6]]],
                rank=large[0].rank,
                phase=large[0].phase or "",
                cause="some are in percent, others fractions of 1",
                try_next="use one unit, or let the names end in _pct and _frac",
            )


def _list_shares(seen: RunSummary) -> dict[str, list[Series]]:
    """Accuracies and the like with enough values whose unit nobody states, by source."""
    sources: dict[str, list[Series]] = {}
    for (key, source), those in group_by_key(seen).items():
        is_open = not key.startswith("core/") and not unit_of(key) and key not in seen.units
        if is_open and _is_share(key) and those[0].count >= LEAST:
            sources.setdefault(source, []).append(those[0])
    return sources


def _find_stated_units(seen: RunSummary) -> list[tuple[str, set[str]]]:
    """Metrics, whatever their phase, task or subset, of which keys state different units."""
    units: dict[str, set[str]] = {}
    for key, found in seen.units.items():
        try:
            metric = Key.parse(key).metric
        except KeyGrammarError:
            continue
        units.setdefault(metric, set()).update(found)
    return [(metric, found) for metric, found in sorted(units.items()) if len(found) > 1]


def _is_share(key: str) -> bool:
    return any(word.rstrip("0123456789") in SHARES or word in SHARES for word in split_words(key))


def _is_fraction(one: Series) -> bool:
    return one.least is not None and one.least.value >= 0.0 and ALIVE < _peak_value(one) <= BELOW


def _peak_value(one: Series) -> float:
    return one.most.value if one.most is not None else 0.0


def _share_a_word(large: list[Series], small: list[Series]) -> bool:
    """True if the two have a word in common: a program's own keys may mean anything."""
    return any(set(split_words(one.key)) & set(split_words(other.key)) & SHARES for one in large for other in small)
