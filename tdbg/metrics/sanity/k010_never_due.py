"""TD-K010: something is scheduled for after the end of the run."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tdbg.core.events import Finding
from tdbg.core.rule_base import Needs
from tdbg.metrics.sanity import RULES, Rule

if TYPE_CHECKING:
    from tdbg.metrics.rows.run_summary import RunSummary

PLANNED = "schedule/planned_steps"
EVERY = re.compile(r"schedule/(?P<what>\w+)_every_steps")


@RULES.add
class NeverDue(Rule):
    """Says that validation, checkpoints or another part of the schedule are due less often than once in the run.

    What it does: A program may write what its schedule resolved to: ``schedule/planned_steps``, and for each operation
    its interval in steps, ``schedule/validation_every_steps``. An interval that is longer than the planned run is told.
    One of 0 is off, and meant so.

    Why it matters: The operation never takes place, and nothing fails: no validation figure, no checkpoint to go on
    from, no early stop. Often the interval was meant in steps and given in epochs, or the data is smaller than usual.

    Example:
        TD-K010 warning: validation is due every 5000 steps, but the run has only 480

    What to do: Shorten the interval, or give it as a fraction of the run (`OpsSchedule` takes ``{"fraction": 0.1}``);
    say 0 if it is not wanted.

    Thresholds: One step.
    """

    code = "TD-K010"
    title = "an operation that is never due"
    severity = "warning"
    needs = Needs(fields=(PLANNED,))

    def evaluate(self, seen: "RunSummary") -> Iterable[Finding]:
        last = {(key, rank): one.last.value for (key, _, rank), one in seen.tally.series.items()}
        late: dict[str, tuple[float, float, int]] = {}
        for (key, rank), every in sorted(last.items()):
            found, planned = EVERY.fullmatch(key), last.get((PLANNED, rank))
            if found and planned is not None and every > planned:
                late.setdefault(found["what"], (every, planned, rank))
        if not late:
            return
        what, (every, planned, rank) = next(iter(late.items()))
        more = f"; also never due: {', '.join(list(late)[1:])}" if len(late) > 1 else ""
        yield self.make_finding(
            f"{what} is due every {every:g} steps, but the run has only {planned:g}{more}",
            [f"{name}: every {own[0]:g} steps of {own[1]:g}" for name, own in late.items()],
            rank=rank,
            cause="the interval is longer than the run",
            try_next="shorten the interval, or give it as a fraction of the run; 0 switches it off",
        )
