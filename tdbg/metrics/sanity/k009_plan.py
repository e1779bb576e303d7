"""TD-K009: more epochs or steps than were planned."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.tables import format_count
from tdbg.metrics.rows.run_summary import RunSummary
from tdbg.metrics.sanity import RULES, Rule

STEPS, EPOCHS = "schedule/planned_steps", "schedule/planned_epochs"


@RULES.add
class BeyondPlan(Rule):
    """Says that a run did more steps, or more epochs, than its schedule or its trainer had planned.

    What it does: The planned length is in schedule/planned_steps and schedule/planned_epochs; a program may log these
    itself. tdbg compares planned steps with counted steps or, if only epochs are planned, planned epochs with passes
    over the training data.

    Why it matters: The length of an epoch was taken for something else (batches before accumulation, samples, the
    data of all ranks): learning rates, warm-up and the intervals in fractions of the run are all off by that factor.

    Example:
        TD-K009 warning: 16 epochs were run, and 10 were planned

    What to do: Take the number of steps from the loader that is used, ``len(loader)`` on this rank divided by the
    accumulation steps. TD-S005 and TD-R004 tell of schedules and runs that end too early.

    Thresholds: One step, or one whole epoch, beyond the plan.
    """

    code = "TD-K009"
    title = "more epochs or steps than planned"
    severity = "warning"
    lacks = f"no row says how much was planned ({EPOCHS}, {STEPS})"

    def has_signal(self, seen: RunSummary) -> bool:
        """True for a plan."""
        return any(key in (EPOCHS, STEPS) for key, _, _ in seen.tally.series)

    def evaluate(self, seen: RunSummary) -> Iterable[Finding]:
        for rank in sorted(seen.tally.last):
            own = seen.orders.get(("tdbg", rank))
            planned_epochs, planned_steps = _planned_amount(seen, EPOCHS, rank), _planned_amount(seen, STEPS, rank)
            last = own.last_step if own is not None else seen.tally.last[rank].step
            if planned_steps:  # exact, while one loader for training and validation is passed over more often
                if last > planned_steps:
                    yield self._make_plan_finding(
                        f"{format_count(last, 'step', 'was')} run, and {planned_steps:g} were planned", rank
                    )
                    return
            elif planned_epochs and own is not None and own.epochs:
                done = len(own.epochs)  # not the last less the first: a look at the training data counts as a pass too
                if done > planned_epochs:
                    yield self._make_plan_finding(
                        f"{format_count(done, 'epoch', 'was')} run, and {planned_epochs:g} were planned", rank
                    )
                    return

    def _make_plan_finding(self, title: str, rank: int) -> Finding:
        return self.make_finding(
            title,
            [],
            rank=rank,
            cause="the planned epoch length differs from the loader's",
            try_next="plan with len(loader) of this rank, divided by the accumulation steps",
        )


def _planned_amount(seen: RunSummary, key: str, rank: int) -> float:
    """What was planned: the most that anybody said; 0 if nobody did."""
    found = [
        one.most.value for (name, _, who), one in seen.tally.series.items() if (name, who) == (key, rank) and one.most
    ]
    return max(found, default=0.0)
