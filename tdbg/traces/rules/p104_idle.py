"""TD-P104: the accelerator has nothing to do."""

from tdbg.core.rule_base import Needs
from tdbg.core.tables import format_count
from tdbg.traces.analyze import summary_figures
from tdbg.traces.parse import event_names
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View


@RULES.add
class Idle(Rule):
    """The accelerator stands still for a large part of the step.

    Signal: the share of a step in which no kernel and no copy runs, waiting for input left out (TD-P101 tells that).
    What to do: larger batches, torch.compile or CUDA graphs, fewer waits for single values, foreach or fused optimizers.
    """

    code = "TD-P104"
    title = "idle accelerator"
    source = "TensorBoard profiler plugin; traceml"
    thresholds = {"idle_notice": 0.30, "idle_warning": 0.50, "idle_critical": 0.70}
    causes = ("TD-P105", "TD-P106", "TD-P107")
    needs = Needs(fields=("device",))

    def evaluate(self, view: View) -> Advice | Abstain | None:
        device = view.summary.device
        assert device is not None  # `needs`
        share = view.part(event_names.IDLE)
        severity = self.find_severity(view, share)
        if severity is None:
            return None
        lines = [f"busy {view.share('busy') or 0.0:.0%} of a step, {format_count(device.launches, 'launch')} in all"]
        lines += summary_figures.format_launch_delays(device)
        lines += summary_figures.busiest_line(view.summary)
        lines += [f"{one.name}: {one.own / 1e6:.3g} ms on the host" for one in view.summary.operators[:3]]
        hint = "larger batches, torch.compile or CUDA graphs; TD-P105, TD-P106 and TD-P107 name causes"
        return self.advise(view, severity, f"the accelerator is idle for {share:.0%} of a step", lines, hint, share)
