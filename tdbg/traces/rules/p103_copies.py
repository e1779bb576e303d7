"""TD-P103: copies to the accelerator that nothing hides."""

from tdbg.core.rule_base import Needs
from tdbg.core.tables import format_count, format_size
from tdbg.traces.analyze import summary_figures
from tdbg.traces.parse import event_names
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View


@RULES.add
class CopyBound(Rule):
    """The accelerator waits while batches are copied to it.

    Signal: the share of a step in which copies from the host run and nothing else does; copies from pageable memory
    alone are a note.
    What to do: pin_memory=True in the loader, non_blocking=True in `.to(device)`.
    """

    code = "TD-P103"
    title = "copies to the device"
    source = "traceml"
    thresholds = {"copy_warning": 0.10, "copy_critical": 0.20, "pageable_notice": 0.01}
    needs = Needs(fields=("device",))

    def evaluate(self, view: View) -> Advice | Abstain | None:
        share = view.part(event_names.H2D)
        pageable = view.share("pageable") or 0.0
        limits = (("critical", share, "copy_critical"), ("warning", share, "copy_warning"))
        severity = next((name for name, value, limit in limits if value > self.limit(view, limit)), None)
        if severity is None and pageable > self.limit(view, "pageable_notice"):
            severity = "notice"
        if severity is None:
            return None
        copies = [one for one in view.summary.copies if one.kind == "HtoD"]
        lines = [
            f"{one.name}: {format_count(one.calls, 'copy')}, {format_size(one.nbytes)}, {one.total / 1e6:.3g} ms"
            for one in copies[:3]
        ]
        lines += summary_figures.asked_from(view.summary, ("aten::to", "aten::copy_"))
        title = f"{share:.0%} of a step is exposed copies to the device, {pageable:.0%} from pageable memory"
        return self.advise(view, severity, title, lines, "pin_memory=True, and .to(device, non_blocking=True)", share)
