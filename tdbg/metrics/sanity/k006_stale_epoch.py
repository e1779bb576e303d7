"""TD-K006: rows that keep the epoch of long ago."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.tables import format_count
from tdbg.metrics.rows.run_summary import RunSummary
from tdbg.metrics.sanity import RULES, Rule, source_text

PASSED = 3  # epochs that went by
LEAST = 3  # rows


@RULES.add
class StaleEpoch(Rule):
    """Says that rows name the same epoch while epochs go by, or that their epoch goes back.

    What it does: tdbg counts passes over the training data itself, and writes its own count beside each step. It
    compares the epoch that rows of another source name: if that stays the same while 3 epochs or more go by, or
    becomes lower than it was, it is told.

    Why it matters: All epochs of a chart lie on one point, the best epoch is always 0, and a resumed run cannot tell
    what it has done.

    Example:
        TD-K006 warning: rows still say epoch 0 at step 600, where tdbg counts epoch 5

    What to do: Stamp each row with the epoch of now (the tracker's update and finalise methods take ``epoch=``),
    rather than with one that is refreshed with the schedule's values every so many steps.

    Thresholds: 3 epochs by tdbg's own count, 3 rows. Without a DataLoader tdbg counts none and says nothing.
    """

    code = "TD-K006"
    title = "rows with a stale epoch"
    severity = "warning"
    lacks = f"no source has {LEAST} rows, some of them with an epoch"

    def has_signal(self, seen: RunSummary) -> bool:
        """True for enough rows that name an epoch."""
        return any(
            source != "tdbg" and order.rows >= LEAST and order.epochs for (source, _), order in seen.orders.items()
        )

    def evaluate(self, seen: RunSummary) -> Iterable[Finding]:
        for (source, rank), order in sorted(seen.orders.items()):
            if source == "tdbg" or order.rows < LEAST:
                continue
            if order.epoch_back is not None:
                before, after, step = order.epoch_back
                title = f"the epoch goes back from {before:g} to {after:g} at step {step}{source_text(source)}"
                yield self._make_stale_finding(title, [], rank, step)
                return
            first, last = order.first_clock, order.last_clock
            if first is None or last is None or last - first < PASSED or len(order.epochs) != 1:
                continue
            (epoch,) = order.epochs
            title = f"rows still say epoch {epoch:g} at step {order.last_step}, where tdbg counts epoch {last:g}"
            evidence = [f"{format_count(order.rows, 'row')} from step {order.first_step} to {order.last_step}"]
            yield self._make_stale_finding(f"{title}{source_text(source)}", evidence, rank, order.first_step)
            return

    def _make_stale_finding(self, title: str, evidence: list[str], rank: int, step: int) -> Finding:
        return self.make_finding(
            title,
            evidence,
            rank=rank,
            first_step=step,
            cause="the epoch is copied from a value that other code rarely updates",
            try_next="pass the current epoch to the call that writes the row",
        )
