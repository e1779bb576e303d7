"""TD-P107: many kernels that are too short."""

from tdbg.traces.analyze import summary_figures
from tdbg.traces.parse import event_names
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View


@RULES.add
class SmallKernels(Rule):
    """Most kernels take less than it takes to launch them, and the accelerator is idle meanwhile.

    Signal: the share of kernels below 10 us, and the idle share of a step; both have to be high.
    What to do: torch.compile, CUDA graphs, fused or foreach optimizers, larger batches.
    """

    code = "TD-P107"
    title = "small kernels"
    source = "tdbg"
    thresholds = {"small_kernels": 0.50, "small_idle": 0.50}

    def evaluate(self, view: View) -> Advice | Abstain | None:
        kernels = view.summary.kernels
        calls = sum(one.calls for one in kernels)
        if view.summary.device is None or not calls:
            return self.abstain("a rule for accelerators: the trace has none")
        small = sum(one.short for one in kernels) / calls
        idle = view.part(event_names.IDLE)
        if small <= self.limit(view, "small_kernels") or idle <= self.limit(view, "small_idle"):
            return None
        most = sorted(kernels, key=lambda one: -one.short)[:3]
        lines = [f"{one.name[:80]}: {one.short:,} below 10 us" for one in most]
        lines += summary_figures.busiest_line(view.summary)
        title = f"{small:.0%} of {calls:,} kernels take less than 10 us; the accelerator is idle {idle:.0%} of a step"
        return self.advise(view, "warning", title, lines, "torch.compile or CUDA graphs; larger batches", idle)
