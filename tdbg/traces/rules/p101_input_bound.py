"""TD-P101: the step waits for the loader."""

from statistics import mean

from tdbg.core.rule_base import Unarmed
from tdbg.traces.analyze import summary_figures
from tdbg.traces.parse import event_names
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View
from tdbg.traces.summary import Work

NO_LOADER = "no DataLoader was seen: waits are known only for a torch DataLoader used in the profiled steps"


@RULES.add
class InputBound(Rule):
    """The program waits for batches, although workers make them.

    Signal: the share of a step inside ``enumerate(DataLoader)#...__next__``; on an accelerator only the time in which
    it has nothing to do, since a wait that is hidden costs nothing. Below ``input_floor_ms`` a step (the longest wait left out) it is
    silent: to hand a batch over from a worker takes as long, so nothing that is advised here could make it shorter. Where most of
    the wait is for a loader without workers, TD-P102 speaks.
    What to do: more workers, persistent_workers=True, prefetch_factor=4; a cheaper ``__getitem__`` (does it read a
    whole file for each sample? decode once, map the file, cache it), cheaper transforms. A trace does not show what
    workers do: `tdbg run` names the line that takes their time (TD-P002).
    """

    code = "TD-P101"
    title = "waits for input"
    source = "TensorBoard profiler plugin; traceml; the floor is tdbg's"
    thresholds = {"input_notice": 0.05, "input_warning": 0.10, "input_critical": 0.20, "input_floor_ms": 1.0}

    def check_armed(self, given: View) -> Unarmed | None:
        return None if find_loaders(given) else Unarmed(NO_LOADER)

    def evaluate(self, view: View) -> Advice | Abstain | None:
        waits = find_loaders(view)
        severity, share = self.grade_waits(view)
        if severity is None or mostly_alone(waits):
            return None
        title = f"{share:.0%} of a step is spent waiting for input"
        hint = "more num_workers, or a cheaper __getitem__ (decode once, mmap, cache); persistent_workers=True, prefetch_factor=4"
        return self.advise(view, severity, title, describe_loader_waits(view, waits), hint, share)

    def grade_waits(self, view: View) -> tuple[str | None, float]:
        """How grave the waiting is, and its share of a step."""
        every = view.summary.steps  # several long ones are no border of an epoch: workers deliver in bursts
        steps = every if len(every) - len(view.steps) > 1 else view.steps
        whole = sum(step.length for step in steps)
        waits = sorted(step.bar.get(event_names.INPUT, 0) for step in steps)
        share = sum(waits) / whole if whole else 0.0
        small = mean(waits[:-1] if len(waits) > 2 else waits) < self.limit(view, "input_floor_ms") * 1e6
        return None if small else self.find_severity(view, share), share


def find_loaders(view: View) -> list[Work]:
    """The loaders that were waited for, longest first."""
    return [one for one in view.summary.regions if one.name.startswith(event_names.LOADER)]


def mostly_alone(waits: list[Work]) -> bool:
    """True if most of the wait is for loaders that have no workers."""
    return 2 * sum(one.total for one in waits if event_names.LOADER_ALONE in one.name) > sum(one.total for one in waits)


def describe_loader_waits(view: View, waits: list[Work]) -> list[str]:
    """The evidence."""
    loads = view.summary.loads[:1]
    count = len(view.summary.steps)
    lines = [f"asked for by {one.name}: {summary_figures.of_a_step(one, count)}" for one in loads]
    return lines + [f"{one.name}: {summary_figures.of_a_step(one, count)}" for one in waits[:3]]
