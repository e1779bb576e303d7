"""TD-P116: memory grows from step to step."""

from tdbg.tables import size
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View
from tdbg.traces.summary import Memory


@RULES.add
class MemoryGrows(Rule):
    """What is allocated at a step's end is more each time.

    Signal: the line of memory at the ends of the steps, in three steps or more: it rises at every one.
    What to do: keep numbers, not tensors with their graphs: `losses.append(loss.item())`, `.detach()`.
    """

    code = "TD-P116"
    title = "memory grows"
    source = "tdbg"
    thresholds = {"growth_warning": 0.02}

    def look(self, view: View) -> Advice | Abstain | None:
        steps = view.summary.steps
        if not view.summary.memory:
            return self.abstain("memory was not recorded: `tdbg profile --kind memory`")
        if len(steps) < 3:
            return self.abstain("it needs three steps")
        for memory in view.summary.memory:
            ends = [_at(memory, step.end) for step in steps]
            growth = [after - before for before, after in zip(ends, ends[1:], strict=False)]
            if min(growth) > self.limit(view, "growth_warning") * memory.peak:
                lines = [
                    f"{memory.device}: {' -> '.join(size(amount) for amount in ends[:6])} at the ends of the steps"
                ]
                lines += [f"{name[:60]} holds {size(amount)} at the peak" for name, amount in memory.holders.items()]
                title = f"memory of {memory.device} grows by {size(min(growth))} a step and more"
                hint = "keep numbers instead of tensors: .item(), .detach()"
                return self.advise(view, "warning", title, lines[:3], hint)
        return None


def _at(memory: Memory, time: int) -> int:
    """What was allocated at a time: the least of the points around it, since a point keeps the most of its interval."""
    before = [amount for at, amount in memory.line if at <= time]
    return before[-1] if before else memory.first
