"""TD-K003: a metric that was finalised without a sample."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.metrics.rows.row import COUNT_0
from tdbg.metrics.rows.run_summary import RunSummary
from tdbg.metrics.sanity import RULES, Rule

EMPTY = f"/{COUNT_0}"  # how the key of the text ends that names them


@RULES.add
class CountZero(Rule):
    """Says that a phase was finalised although a metric of it had no sample.

    What it does: tdbg is told by every `MetricsTracker` when a phase is finalised, and so is a `StepMetricsLogger` that
    writes its summary. Metrics whose count was 0 then are named in metrics.jsonl, and in the dumps of DUMP_METRICS.
    Samples that were all NaN or infinite are TD-K011's.

    Why it matters: There is nothing to divide. The tracker keeps the value of the pass before, which is old; other
    code logs 0.

    Example:
        TD-K003 warning: train was finalised with count 0 at step 500: acc1_genus

    What to do: Call `update_train_batch` or `update_val_metrics` once a batch for each metric, before the phase is
    finalised; look for a reset (`start_val_phase`) in between. If all labels of a pass may be null, that is the cause.

    Thresholds: One pass.
    """

    code = "TD-K003"
    title = "a metric finalised with count 0"
    severity = "warning"
    lacks = "no rows of tdbg's metrics tracker"

    def has_signal(self, seen: RunSummary) -> bool:
        """True for rows of what says which metrics had no sample."""
        return bool(seen.empty_metrics) or any(source == "tracker" for source, _ in seen.orders)

    def evaluate(self, seen: RunSummary) -> Iterable[Finding]:
        unique = list(
            {(rank, step, key): (rank, step, key, text) for rank, step, key, text in seen.empty_metrics}.values()
        )
        if not unique:
            return
        rank, step, key, text = unique[0]
        phase = key.removesuffix(EMPTY)
        yield self.make_finding(
            f"{phase} was finalised with count 0 at step {step}: {text}",
            [f"step {at}, rank {who}, {one.removesuffix(EMPTY)}: {names}" for who, at, one, names in unique],
            rank=rank,
            first_step=step,
            phase=phase,
            cause="the update of these metrics was not called since the phase began",
            try_next="call update_train_batch or update_val_metrics for each batch",
        )
