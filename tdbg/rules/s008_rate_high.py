"""TD-S008: a learning rate above 1 with an optimizer of the Adam family."""

from tdbg.core.events import Finding
from tdbg.core.observations.schedule import RateAboveBound
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, ObservingRule, Reported
from tdbg.rules.text import format_figure


@RULES.add
class RateHigh(ObservingRule[Reported]):
    """Says when Adam or one of its family is given a learning rate above 1.

    What it does: With the flags LR or SCHEDULING it looks at the rate of each recorded step. It speaks at the
    third in a row above LR.high, when the optimizer is Adam, AdamW, NAdam, RAdam, Adamax or derived from one.
    Optimizers whose rate is a factor (DAdaptAdam, Prodigy) do not count.

    Why it matters: Adam divides the gradient by its own size, so each update moves every weight by about the
    rate, however small the gradient is. Usual rates lie between 1e-5 and 1e-2; one above 1 throws the weights
    away.

    Example:
        TD-S008 warning: learning rate 3 with AdamW at step 3, rank 0

    What to do: Look for a rate written without its exponent (3 for 3e-4), one meant for SGD, or a scale by the
    batch size or the number of ranks that was applied twice.

    Thresholds: LR.high, 1.0 by default; 3 recorded steps.
    """

    code = "TD-S008"
    title = "learning rate above 1 with Adam"
    severity = "warning"
    leads_to = ("TD-G001", "TD-G004", "TD-N004", Link("TD-N001", least=0))  # weights thrown away
    observes = (RateAboveBound,)
    kept = Reported

    def evaluate(self, process: ProcessDir, state: Reported, seen: RateAboveBound) -> Finding | None:
        if state.is_reported:
            return None
        state.is_reported = True
        return self.make_finding(
            f"learning rate {format_figure(float(seen.highest_rate))} with {seen.optimizer} at step"
            f" {seen.step}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="optimizer",
            evidence=[f"above {format_figure(seen.above)} in 3 recorded steps; {seen.text()}"],
            cause="a rate written without its exponent, intended for SGD, or scaled twice",
            try_next="use a rate from 1e-5 to 1e-2, as is usual",
        )
