"""TD-S009: an early stopper does not go by its metric."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.early_stopping import StoppingCheck
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule
from tdbg.rules.text import format_figure

CAUSES = {
    "ignores": (
        "min and max are mixed up, or the best value starts where it can never be beaten",
        "mode='{better}' for {metric}; start the best value at None or at the worst there is",
    ),
    "follows": (
        "min and max are mixed up: what gets worse counts as better",
        "mode='{better}' for {metric} (greater_is_better={greater} with Hugging Face's Trainer)",
    ),
    "nan": (
        "comparisons with NaN are false, so the check takes neither branch, or the wrong one",
        "stop at a metric that is not finite; and find out where it comes from",
    ),
}


@RULES.add
class EarlyStoppingAstray(KindsRule):
    """Says when an early stopper counts improvements as none, takes worse values for better ones, or NaN for fine.

    What it does: With the flag EARLY_STOPPING (or from level advanced) it follows the checks of early stoppers, and
    where the metric's name says which way is better (loss, error, mae; accuracy, f1, auc) compares. It speaks when
    values better than all before are counted as no improvement, 3 checks in a row or all those that made it stop;
    when worse values become the best one, for more checks than its patience; and when the metric is NaN in 2 checks
    in a row and neither stops the run nor counts against patience.

    Why it matters: The run ends in the middle of its best progress, keeps the worst checkpoint as the best, or
    never ends.

    Example:
        TD-S009 warning: early stopping counts an improving val_loss as no improvement (from 0.9 to 0.4), at
        step 60, rank 0

    What to do: Say which way is better: `mode="min"` for losses and errors, `mode="max"` for accuracies. With
    Hugging Face's Trainer set `greater_is_better` for every metric that is not called loss.

    Thresholds: 3 checks; changes within the stopper's delta or one part in a hundred do not count, and improvements
    that small do not end a row. Names that say nothing (`score`, `metric`) and negative values are left alone.
    """

    code = "TD-S009"
    title = "early stopping does not follow its metric"
    severity = "warning"
    observes = (StoppingCheck,)

    def evaluate(self, process: ProcessDir, seen: StoppingCheck) -> Iterable[tuple[str, Finding]]:
        if seen.fault not in CAUSES or not self.is_news(process, seen.fault):
            return ()
        cause, try_next = CAUSES[seen.fault]
        words = {"better": seen.better, "metric": seen.metric or "the metric", "greater": seen.better == "max"}
        found = self.make_finding(
            f"{self._format_title(seen)}, at step {seen.step}, {process.display_name}",
            first_step=seen.since,
            rank=process.rank,
            phase="eval",
            evidence=[seen.text()],
            cause=cause,
            try_next=try_next.format(**words),
        )
        return [(seen.fault, found)]

    def _format_title(self, seen: StoppingCheck) -> str:
        metric = seen.metric or "its metric"
        span = f"from {format_figure(seen.first)} to {format_figure(seen.value)}"
        if seen.fault == "nan":
            return f"early stopping does not count {metric} = NaN and goes on"
        if seen.fault == "follows":
            return f"early stopping takes a worse {metric} for a better one ({span})"
        return f"early stopping counts an improving {metric} as no improvement ({span})"
