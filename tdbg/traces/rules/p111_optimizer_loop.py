"""TD-P111: the optimizer goes through the parameters one by one."""

from tdbg.traces.analyze import summary_figures
from tdbg.traces.parse import event_names
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View


@RULES.add
class OptimizerLoop(Rule):
    """The optimizer updates its parameters in a Python loop.

    Signal: the optimizer's share of a step, and that inside of its ``step`` no foreach or fused operator was called
    while in-place arithmetic was, many times. An accelerator that is busy meanwhile hides the loop: no more of the
    share counts than it is idle.
    What to do: foreach=True or fused=True where the optimizer has them; torch._foreach_* in one's own.
    """

    code = "TD-P111"
    title = "optimizer in a loop"
    source = "torch.profiler._pattern_matcher; the share is tdbg's"
    thresholds = {"optimizer_warning": 0.10, "loop_calls": 50.0}

    def evaluate(self, view: View) -> Advice | Abstain | None:
        share = view.share(event_names.OPTIMIZER)
        if not any(one.name.startswith(event_names.OPTIMIZERS[0]) for one in view.summary.regions) or share is None:
            return self.abstain("no optimizer step was seen in the trace")
        share = min(share, 1 - (view.share("busy") or 0.0))
        updates = view.summary.updates
        if share <= self.limit(view, "optimizer_warning") or any(one.kind == "together" for one in updates):
            return None
        count = max(len(view.summary.steps), 1)
        calls = sum(one.calls for one in updates) / count
        if calls <= self.limit(view, "loop_calls"):
            return None
        most = sorted(updates, key=lambda one: -one.calls)[:3]
        lines = [f"{one.name}: {summary_figures.of_a_step(one, count)}" for one in most]
        lines += summary_figures.asked_from(view.summary, (one.name for one in updates))
        title = f"the optimizer takes {share:.0%} of a step, in {calls:.0f} small operations"
        return self.advise(
            view, "warning", title, lines, "foreach=True or fused=True; torch._foreach_* in your own optimizer", share
        )
