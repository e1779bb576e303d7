"""TD-P114: communication that nothing hides."""

from tdbg.core.rule_base import Unarmed
from tdbg.core.tables import format_count
from tdbg.traces.analyze import summary_figures
from tdbg.traces.parse import event_names
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View

COLLECTIVE = ("collective", event_names.COMMUNICATION)


@RULES.add
class Communication(Rule):
    """Ranks exchange data while nothing is computed.

    Signal: the share of a step in which collectives run and no computation does. Where the traces of several ranks
    hold the same steps, of each step as much counts as the rank has that waits least: what the others have beyond is
    waiting for a late one, see TD-P115.
    What to do: larger DDP buckets, gradient_as_bucket_view, no_sync() while accumulating, overlap in FSDP.
    """

    code = "TD-P114"
    title = "communication not hidden"
    source = "TensorBoard profiler plugin; HTA for the overlap"
    thresholds = {"communication_warning": 0.10, "communication_critical": 0.30}

    def check_armed(self, given: View) -> Unarmed | None:
        return (
            None
            if any(step.spent.get(name) for step in given.summary.steps for name in COLLECTIVE)
            else Unarmed("no collective was seen in the trace")
        )

    def evaluate(self, view: View) -> Advice | Abstain | None:
        read = view.summary
        whole = sum(step.length for step in view.steps)
        least = _least_communication(view)
        exposed = sum(least.get(step.number, step.bar.get(event_names.COMMUNICATION, 0)) for step in view.steps)
        share = exposed / whole if whole else 0.0
        severity = self.find_severity(view, share)
        if severity is None:
            return None
        most = [one for one in read.kernels if one.kind == event_names.COMMUNICATION] or [
            one for one in read.regions if one.name.startswith(event_names.COLLECTIVES)
        ]
        lines = [f"{one.name[:80]}: {format_count(one.calls, 'call')}, {one.total / 1e6:.3g} ms" for one in most[:3]]
        names = (one.name for one in read.operators if one.name.startswith(event_names.COLLECTIVES))
        lines += summary_figures.asked_from(read, names)
        title = f"{share:.0%} of a step is exposed communication"
        return self.advise(view, severity, title, lines, "bucket_cap_mb, no_sync() while accumulating, overlap", share)


def _least_communication(view: View) -> dict[int | None, int]:
    """Step -> the least that any rank has of it, in nanoseconds; only steps that several ranks recorded."""
    found: dict[int | None, list[int]] = {}
    for read in view.ranks.values():
        for step in read.steps:
            if step.number is not None:
                found.setdefault(step.number, []).append(step.bar.get(event_names.COMMUNICATION, 0))
    return {number: min(times) for number, times in found.items() if len(times) > 1}
