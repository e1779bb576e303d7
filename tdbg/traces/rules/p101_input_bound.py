"""TD-P101: the step waits for the loader."""

from tdbg.traces import kinds
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View


@RULES.add
class InputBound(Rule):
    """The program waits for batches.

    Signal: the share of a step inside ``enumerate(DataLoader)#...__next__``; on an accelerator only the time in which
    it has nothing to do, since a wait that is hidden costs nothing.
    What to do: more workers, persistent_workers=True, prefetch_factor=4, cheaper transforms.
    """

    code = "TD-P101"
    title = "waits for input"
    source = "TensorBoard profiler plugin; traceml"
    thresholds = {"input_notice": 0.05, "input_warning": 0.10, "input_critical": 0.20}

    def look(self, view: View) -> Advice | Abstain | None:
        share = _share(view)
        if share is None:
            return self.abstain("no DataLoader was seen: a torch DataLoader inside the profiled steps marks its waits")
        severity = self.graded(view, share)
        if severity is None:
            return None
        waits = [one for one in view.summary.regions if one.name.startswith(kinds.LOADER)]
        lines = [f"{one.name}: {one.calls} calls, {one.total / 1e6:.3g} ms" for one in waits[:3]]
        title = f"{share:.0%} of a step is waiting for input"
        alone = any(kinds.LOADER_ALONE in one.name for one in waits)
        hint = "num_workers: it is 0 now" if alone else "more num_workers, or cheaper transforms"
        return self.advise(view, severity, title, lines, f"{hint}; persistent_workers=True, prefetch_factor=4", share)


def _share(view: View) -> float | None:
    if not any(one.name.startswith(kinds.LOADER) for one in view.summary.regions):
        return None
    whole = sum(step.length for step in view.steps)
    return sum(step.bar.get(kinds.INPUT, 0) for step in view.steps) / whole if whole else None
