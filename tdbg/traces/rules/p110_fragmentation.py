"""TD-P110: far more memory is reserved than allocated."""

from tdbg.core.tables import format_size
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View


@RULES.add
class Fragmentation(Rule):
    """The allocator holds much more of the device's memory than tensors take at their peak.

    Signal: the most that was reserved against the most that was allocated, where it is a good part of the device.
    What to do: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; inputs of fewer different sizes.
    """

    code = "TD-P110"
    title = "fragmented memory"
    source = "traceml"
    thresholds = {"reserved_times": 2.0, "reserved_share": 0.30}

    def evaluate(self, view: View) -> Advice | Abstain | None:
        whole = view.summary.device_bytes
        devices = [one for one in view.summary.memory if one.device != "cpu" and one.peak]
        if not devices or not whole:
            return self.abstain("a device's memory was not recorded: `tdbg profile --kind memory` on an accelerator")
        worst = max(devices, key=lambda one: one.reserved / one.peak)
        times = worst.reserved / worst.peak
        large = worst.reserved / whole >= self.limit(view, "reserved_share")
        if times < self.limit(view, "reserved_times") or not large:
            return None
        lines = [
            f"{worst.device}: {format_size(worst.reserved)} reserved, {format_size(worst.peak)} allocated at the peak"
        ]
        title = f"{times:.1f} times as much memory is reserved as is ever allocated"
        hint = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; fewer different sizes of inputs"
        return self.advise(view, "warning", title, lines, hint)
