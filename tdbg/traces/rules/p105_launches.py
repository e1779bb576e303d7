"""TD-P105: the accelerator waits for the next launch."""

from tdbg.core.rule_base import Needs
from tdbg.traces.analyze import summary_figures
from tdbg.traces.parse import event_names
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View


@RULES.add
class LaunchBound(Rule):
    """The host cannot launch kernels as fast as the accelerator finishes them.

    Signal: the idle share of a step, and the median time from the end of a launch to the start of its kernel: where
    it is short no kernel had to queue, the accelerator stood there waiting. Both have to hold; where the host itself
    waits for values, TD-P106 tells the cause.
    What to do: torch.compile (mode="reduce-overhead"), CUDA graphs, larger batches, fused optimizers.
    """

    code = "TD-P105"
    title = "launch-bound"
    source = "HTA, whose outliers of the launch delay begin at 100 us; both limits are tdbg's"
    thresholds = {"launch_idle": 0.30, "launch_delay_us": 50.0}
    causes = ("TD-P107",)
    needs = Needs(fields=("device",))

    def evaluate(self, view: View) -> Advice | Abstain | None:
        device = view.summary.device
        assert device is not None  # `needs`
        if not device.launched:
            return self.abstain("kernels cannot be matched to their launches: the trace has no runtime calls")
        idle = view.part(event_names.IDLE)
        delay_us = device.delay / 1000
        if idle <= self.limit(view, "launch_idle") or delay_us >= self.limit(view, "launch_delay_us"):
            return None
        if (view.share("wait", "ask") or 0.0) > RULES["TD-P106"]().limit(view, "wait_warning"):
            return None
        steps = max(len(view.summary.steps), 1)
        lines = [f"{device.launches / steps:,.0f} launches a step; idle for {idle:.0%} of it"]
        lines += summary_figures.format_launch_delays(device)
        lines += summary_figures.busiest_line(view.summary)
        lines += [f"{one.name}: {one.own / 1e6:.3g} ms on the host" for one in view.summary.operators[:2]]
        title = f"the accelerator waits for launches: idle for {idle:.0%} of a step"
        hint = 'torch.compile(mode="reduce-overhead") or CUDA graphs; larger batches'
        return self.advise(view, "warning", title, lines, hint, idle)
