"""TD-P106: the host waits for the accelerator."""

from tdbg.core.rule_base import Needs
from tdbg.traces.analyze import summary_figures
from tdbg.traces.analyze.cpu_timeline import WAITING
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View


@RULES.add
class Waits(Rule):
    """The program asks the accelerator for values, and waits for them.

    Signal: the share of a step inside synchronising calls or inside ``aten::item`` and its like, whichever is larger,
    and no more of it than the accelerator is without work: a wait for one that is busy all the time costs nothing.
    The profiler's own synchronisation at its end is never counted. On a CPU such a call is a read, and no fault.
    What to do: collect on the device and read once every n steps; build no `if` on a tensor.
    """

    code = "TD-P106"
    title = "waits for the device"
    source = "tdbg"
    thresholds = {"wait_warning": 0.05, "wait_critical": 0.20}
    needs = Needs(fields=("device",))

    def evaluate(self, view: View) -> Advice | Abstain | None:
        waited = view.share("wait", "ask") or 0.0
        share = min(waited, 1 - (view.share("busy") or 0.0))
        severity = self.find_severity(view, share)
        if severity is None:
            return None
        steps = max(len(view.summary.steps), 1)
        waits = [f"{one.name}: {one.calls / steps:.3g} a step, {one.total / 1e6:.3g} ms" for one in view.summary.waits]
        asked = [one for one in summary_figures.by_name(view.summary.operators) if one.name in WAITING[:2]]
        lines, rest = [], waits
        for one in asked:
            line = summary_figures.called_from(one)
            said = f"{one.name}: {one.calls / steps:.3g} a step"
            if line:
                lines.append(f"{said}, most from {line}")
            else:
                rest.append(said)
        lines += rest
        title = f"the host waits for the accelerator for {waited:.0%} of a step, up to {share:.0%} with no work queued"
        return self.advise(view, severity, title, lines[:3], "read values once every n steps, not in every one", share)
