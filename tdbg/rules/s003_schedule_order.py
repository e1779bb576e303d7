"""TD-S003: the scheduler steps before the optimizer."""

from tdbg.core.events import Finding
from tdbg.core.observations.schedule import OrderReversed
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, ObservingRule, Reported
from tdbg.rules.text import format_figure


@RULES.add
class ScheduleOrder(ObservingRule[Reported]):
    """Says when each step of the scheduler comes before the update it belongs to.

    What it does: With the flags LR or SCHEDULING it follows the calls of schedulers and optimizers. It speaks
    when a new scheduler steps exactly once before the first update, and from then on in turn with the updates, so
    that the first value of the schedule is never used. It is silent after a resume (the optimizer has state, or
    the scheduler is further on), for `step(epoch)`, and where the value left out is zero.

    Why it matters: Every rate comes one step, or one epoch, early, and the first one never. With a scheduler that
    steps once an epoch, the whole first epoch runs at the rate of the second.

    Example:
        TD-S003 warning: LinearLR steps before the optimizer: the rate 0.001 was never used, rank 0

    What to do: Call `optimizer.step()` first, then `scheduler.step()`. (A GradScaler that skips the first update
    makes torch warn of this too; such an update counts here.)

    Thresholds: None: the second step of the scheduler, after an update in between, makes the order certain.
    """

    code = "TD-S003"
    title = "scheduler steps before the optimizer"
    severity = "warning"
    observes = (OrderReversed,)
    kept = Reported

    def evaluate(self, process: ProcessDir, state: Reported, seen: OrderReversed) -> Finding | None:
        if state.is_reported:
            return None
        state.is_reported = True
        return self.make_finding(
            f"{seen.scheduler} steps before the optimizer: the rate {format_figure(seen.skipped_rate)}"
            f" was never used, {process.display_name}",
            first_step=1,
            rank=process.rank,
            phase="optimizer",
            evidence=[f"it stepped before the first update, and again after update {seen.updates}"],
            cause="scheduler.step() is called before optimizer.step()",
            try_next="call optimizer.step() first, then scheduler.step()",
        )
