"""TD-P116: memory grows from step to step."""

from itertools import pairwise
from statistics import median

from tdbg.core.rule_base import Unarmed
from tdbg.core.tables import format_size
from tdbg.traces.analyze import summary_figures
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View
from tdbg.traces.summary import Memory, Step

LEAST_STEPS = 3


@RULES.add
class MemoryGrows(Rule):
    """What stays allocated is more in each step than in the one before.

    Signal: the least that is allocated within a step, in three steps or more: it rises with every one, by a good part
    of what a step allocates and frees.
    What to do: keep numbers, not tensors with their graphs: `losses.append(loss.item())`, `.detach()`.
    """

    code = "TD-P116"
    title = "memory grows"
    source = "tdbg"
    thresholds = {"growth_warning": 0.02}

    def check_armed(self, given: View) -> Unarmed | None:
        if not given.summary.memory:
            return Unarmed("memory was not recorded: `tdbg profile --kind memory`")
        return None if len(given.summary.steps) >= LEAST_STEPS else Unarmed("it needs three steps")

    def evaluate(self, view: View) -> Advice | Abstain | None:
        steps = view.summary.steps
        for memory in view.summary.memory:
            floors = _step_floors(memory, steps)
            growth = [after - before for before, after in pairwise(floors)]
            if growth and min(growth) > self.limit(view, "growth_warning") * _median_swing(memory, steps):
                lines = [
                    f"{memory.device}: minimum per step {' -> '.join(format_size(amount) for amount in floors[:6])}"
                ]
                lines += [
                    f"{name[:60]} holds {format_size(amount)} at the peak" for name, amount in memory.holders.items()
                ]
                lines = lines[:3] + summary_figures.asked_from(view.summary, list(memory.holders)[:1])
                title = f"memory of {memory.device} grows by at least {format_size(min(growth))} a step"
                hint = "keep numbers instead of tensors: .item(), .detach()"
                return self.advise(view, "warning", title, lines, hint)
        return None


def _step_floors(memory: Memory, steps: list[Step]) -> list[int]:
    """The least that was allocated within each step; none where a step has no point of its own."""
    floors = []
    for step in steps:
        inside = [least for at, _, least in memory.line if step.start <= at < step.end]
        if not inside:
            return []
        floors.append(min(inside))
    return floors


def _median_swing(memory: Memory, steps: list[Step]) -> float:
    """How much memory goes up and down within a step: the median."""
    found = []
    for step in steps:
        inside = [(most, least) for at, most, least in memory.line if step.start <= at < step.end]
        found.append(max(most for most, _ in inside) - min(least for _, least in inside))
    return median(found)
