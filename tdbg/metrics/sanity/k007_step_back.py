"""TD-K007: steps that go backwards."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.tables import format_count
from tdbg.metrics.rows.run_summary import RunSummary
from tdbg.metrics.sanity import RULES, Rule

JUDGED = ("tracker", "")  # values on a device come a step late to the others


@RULES.add
class StepBack(Rule):
    """Says that a row has a lower step than the row before it, in one attempt of one rank.

    What it does: It follows the steps of the rows that a tracker or another program wrote. A resumed run begins with
    a header of its own and may go back: the rows that it makes again replace the older ones.

    Why it matters: Curves run back over themselves, W&B drops what comes for a step that has passed, and the last row
    is not the latest.

    Example:
        TD-K007 warning: the step goes back from 500 to 12, 3 times

    What to do: Count optimizer steps in one place and hand that number to every call: an epoch, or a batch number
    within the epoch, given as ``step`` is the usual cause. After a resume go on from the checkpoint's step.

    Thresholds: One row.
    """

    code = "TD-K007"
    title = "steps that go backwards"
    severity = "warning"
    lacks = "checked only for rows of tdbg's metrics tracker: rows for W&B or TensorBoard may count steps otherwise"

    def has_signal(self, seen: RunSummary) -> bool:
        """True for rows that are judged, two at least of one rank."""
        return any(source in JUDGED and order.rows > 1 for (source, _), order in seen.orders.items())

    def evaluate(self, seen: RunSummary) -> Iterable[Finding]:
        found = [(source, rank, order) for (source, rank), order in sorted(seen.orders.items())]
        back = [(rank, order) for source, rank, order in found if source in JUDGED and order.back]
        if not back:
            return
        rank, order = back[0]
        assert order.back is not None
        before, step = order.back
        times = f", {format_count(order.backs, 'time')}" if order.backs > 1 else ""
        yield self.make_finding(
            f"the step goes back from {before} to {step}{times}",
            [
                f"rank {who}: from {one.back[0]} to {one.back[1]}, {format_count(one.backs, 'time')}"
                for who, one in back
                if one.back
            ],
            rank=rank,
            first_step=step,
            cause="two counters are logged as step, or a resumed run starts at 0 again",
            try_next="log the same counter of optimizer steps in all calls",
        )
