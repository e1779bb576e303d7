"""TD-P102: batches are made in the program itself, which waits for them."""

from statistics import median, median_low

from tdbg.core.rule_base import Unarmed
from tdbg.traces.parse import event_names
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View
from tdbg.traces.rules.p101_input_bound import NO_LOADER, InputBound, describe_loader_waits, find_loaders, mostly_alone


@RULES.add
class NoWorkers(Rule):
    """The loader has no workers (num_workers=0), and making batches is a good part of the step.

    Signal: the median wait and its share of the median step, with the thresholds of TD-P101 and ``alone_notice`` besides,
    where most of the wait is inside ``_SingleProcessDataLoaderIter``. Such a loader makes a batch in each step and delivers
    nothing in bursts, so a few long waits are hiccups of the machine. num_workers=0 by itself is no fault: where batches
    cost little, workers cost more.
    What to do: num_workers=2 and more with persistent_workers=True; or do once, ahead, what is done for every sample.
    """

    code = "TD-P102"
    title = "no DataLoader workers"
    source = "torch.profiler._pattern_matcher; the share as TD-P101"
    thresholds = {"alone_notice": 0.05}

    def check_armed(self, given: View) -> Unarmed | None:
        return None if find_loaders(given) else Unarmed(NO_LOADER)

    def evaluate(self, view: View) -> Advice | Abstain | None:
        waits = find_loaders(view)
        wait_ns, share = typical_wait(view)
        bound = InputBound()
        severity = bound.find_severity(view, share)
        if wait_ns < bound.limit(view, "input_floor_ms") * 1e6 or severity is None:
            return None
        if share <= self.limit(view, "alone_notice") or not mostly_alone(waits):
            return None
        title = f"{share:.0%} of a step is spent loading batches, in a DataLoader with num_workers=0"
        hint = "num_workers=2 or more, persistent_workers=True; or do the work once, before training"
        return self.advise(view, severity, title, describe_loader_waits(view, waits), hint, share)


def typical_wait(view: View) -> tuple[float, float]:
    """The median wait of a step in nanoseconds, the lower of two in the middle, and its share of the median step."""
    steps = view.summary.steps
    wait = median_low(step.bar.get(event_names.INPUT, 0) for step in steps) if steps else 0
    whole = median(step.length for step in steps) if steps else 0
    return wait, wait / whole if whole else 0.0
