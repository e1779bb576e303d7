"""TD-K008: keys outside the grammar."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.tables import format_count
from tdbg.metrics.keys import Key, KeyGrammarError
from tdbg.metrics.rows.run_summary import RunSummary
from tdbg.metrics.sanity import RULES, Rule

JUDGED = ("tracker", "")  # what programs send to W&B or TensorBoard they may call as they like


@RULES.add
class OutsideGrammar(Rule):
    """Says that keys are not spelt as PHASE/METRIC, PHASE/METRIC_TASK or PHASE/SUBSET/METRIC.

    What it does: It reads each key that a tracker or another program wrote into metrics.jsonl by the one grammar
    (docs/metrics.md). What programs send to W&B, TensorBoard or their trainer they may call as they like.

    Why it matters: `show` cannot tell phase and task, `compare` pairs nothing, and a dashboard that groups by prefix
    leaves them out.

    Example:
        TD-K008 info: 2 keys are outside the grammar: gradnorm/gradnorm/loss, lossTotal

    What to do: Write keys with `tdbg.metrics.keys.Key`, or hand the phase and the metric to the tracker apart.

    Thresholds: One key.
    """

    code = "TD-K008"
    title = "keys outside the grammar"
    severity = "info"
    lacks = "checked only for rows of tdbg's metrics tracker: rows for W&B or TensorBoard may have any name"

    def has_signal(self, seen: RunSummary) -> bool:
        """True for a key that has to keep to the grammar."""
        return any(source in JUDGED for _, source, _ in seen.tally.series)

    def evaluate(self, seen: RunSummary) -> Iterable[Finding]:
        keys = {key: why for key, source, _ in sorted(seen.tally.series) if source in JUDGED and (why := _why_not(key))}
        if not keys:
            return
        shown = ", ".join(list(keys)[:3]) + (", ..." if len(keys) > 3 else "")
        count = "a key is" if len(keys) == 1 else f"{format_count(len(keys), 'key', 'is')}"
        yield self.make_finding(
            f"{count} outside the grammar: {shown}",
            list(keys.values()),
            rank=seen.rank,
            cause="the key is put together by hand",
            try_next="write PHASE/METRIC, PHASE/METRIC_TASK or PHASE/SUBSET/METRIC",
        )


def _why_not(key: str) -> str:
    try:
        Key.parse(key)
    except KeyGrammarError as error:
        return str(error)
    return ""
