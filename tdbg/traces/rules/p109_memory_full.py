"""TD-P109: the device's memory is nearly used up."""

from tdbg.core.tables import format_size
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View


@RULES.add
class MemoryFull(Rule):
    """What the allocator holds comes near to what the device has.

    Signal: the most that was reserved, against the memory of the device; both have to be in the trace.
    What to do: smaller batches with accumulation, activation checkpointing, a sharded optimizer, lower precision.
    """

    code = "TD-P109"
    title = "memory nearly full"
    source = "TensorBoard profiler plugin; traceml"
    thresholds = {"full_notice": 0.90, "full_warning": 0.92, "full_critical": 0.97}

    def evaluate(self, view: View) -> Advice | Abstain | None:
        whole = view.summary.device_bytes
        devices = [one for one in view.summary.memory if one.device != "cpu"]
        if not devices or not whole:
            return self.abstain("a device's memory was not recorded: `tdbg profile --kind memory` on an accelerator")
        most = max(devices, key=lambda one: one.reserved)
        severity = self.find_severity(view, most.reserved / whole)
        if severity is None:
            return None
        lines = [
            f"{most.device}: {format_size(most.reserved)} reserved, {format_size(most.peak)} allocated, of {format_size(whole)}"
        ]
        lines += [
            f"{name[:60]} holds {format_size(amount)} at the peak" for name, amount in list(most.holders.items())[:2]
        ]
        title = f"{most.reserved / whole:.0%} of the memory of {most.device} is reserved"
        return self.advise(view, severity, title, lines, "smaller batches with accumulation; activation checkpointing")
