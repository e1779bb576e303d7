"""TD-P111: the optimizer goes through the parameters one by one."""

from tdbg.traces import figures, kinds
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View

FOREACH = ("aten::_foreach_", "aten::_fused_")
ELEMENTWISE = (
    "aten::add_",
    "aten::mul_",
    "aten::addcmul_",
    "aten::addcdiv_",
    "aten::lerp_",
    "aten::sqrt",
    "aten::sub_",
)


@RULES.add
class OptimizerLoop(Rule):
    """The optimizer updates its parameters in a Python loop.

    Signal: the optimizer's share of a step, and that no foreach or fused operator was called while in-place arithmetic
    was, many times a step.
    What to do: foreach=True or fused=True where the optimizer has them; torch._foreach_* in one's own.
    """

    code = "TD-P111"
    title = "optimizer in a loop"
    source = "torch.profiler._pattern_matcher; the share is tdbg's"
    thresholds = {"optimizer_warning": 0.10, "loop_calls": 50.0}

    def look(self, view: View) -> Advice | Abstain | None:
        share = view.share(kinds.OPTIMIZER)
        if not any(one.name.startswith(kinds.OPTIMIZERS[0]) for one in view.summary.regions) or share is None:
            return self.abstain("no optimizer step was seen in the trace")
        found = figures.by_name(view.summary.operators)
        if share <= self.limit(view, "optimizer_warning") or any(one.name.startswith(FOREACH) for one in found):
            return None
        loops = sorted((one for one in found if one.name in ELEMENTWISE), key=lambda one: -one.calls)
        calls = sum(one.calls for one in loops) / max(len(view.summary.steps), 1)
        if calls <= self.limit(view, "loop_calls"):
            return None
        lines = [f"{one.name}: {one.calls:,} calls, {one.total / 1e6:.3g} ms" for one in loops[:3]]
        title = f"the optimizer takes {share:.0%} of a step, in {calls:.0f} small operations"
        return self.advise(
            view, "warning", title, lines, "foreach=True or fused=True; torch._foreach_* in your own", share
        )
