"""TD-P112: gradients are set to zero instead of None."""

from tdbg.core.rule_base import Unarmed
from tdbg.traces.analyze import summary_figures
from tdbg.traces.analyze.cpu_timeline import ZEROING
from tdbg.traces.parse import event_names
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View


@RULES.add
class ZeroedGradients(Rule):
    """Gradients are filled with zeros in every step, and backward adds to them.

    Signal: the share of a step in which ``aten::zero_`` or ``aten::_foreach_zero_`` runs inside the optimizer's
    ``zero_grad``. It is a notice at most: the time is in the host's part, and the additions of backward are not in it.
    What to do: `optimizer.zero_grad()` as it is by default, that is with set_to_none=True.
    """

    code = "TD-P112"
    title = "gradients zeroed, not None"
    source = "torch.profiler._pattern_matcher; the share is tdbg's"
    thresholds = {"zeroing_notice": 0.03}

    def check_armed(self, given: View) -> Unarmed | None:
        return (
            None
            if any(one.name.startswith(event_names.OPTIMIZERS[1]) for one in given.summary.regions)
            else Unarmed("no optimizer.zero_grad() was seen in the trace; Module.zero_grad() is not marked in it")
        )

    def evaluate(self, view: View) -> Advice | Abstain | None:
        share = view.share("zeroing") or 0.0
        if share <= self.limit(view, "zeroing_notice"):
            return None
        steps = max(len(view.summary.steps), 1)
        zeroing = [one for one in summary_figures.by_name(view.summary.operators) if one.name in ZEROING]
        lines = [f"{one.name}: {one.calls / steps:.3g} a step, {one.total / 1e6:.3g} ms" for one in zeroing]
        lines += summary_figures.asked_from(view.summary, ZEROING)
        title = f"{share:.0%} of a step is spent filling gradients with zeros"
        return self.advise(view, "notice", title, lines, "optimizer.zero_grad(set_to_none=True), the default", share)
