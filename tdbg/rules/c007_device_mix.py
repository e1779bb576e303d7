"""TD-C007: a few tensors on another device or in another dtype than the model, or an accelerator left idle."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.device import AcceleratorIdle, MixedDevices, MixedDtypes
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule


@RULES.add
class DeviceMix(KindsRule):
    """Says which parameters or buffers are unlike the rest of the model in device or dtype.

    What it does: With the flag DEVICE (or at level extreme) it compares device and dtype of all parameters and
    buffers. It speaks of float64 among narrower parameters, of a float64 buffer that turned the output into
    float64, of tensors without data (`meta`) beside real ones, and of a few parameters (at most a tenth) left on
    the CPU by a model that is on an accelerator, unless accelerate's offloading put them there. A model spread
    over several accelerators, and bfloat16 beside float32, are left alone: that is usually meant. That an
    accelerator can be used while the model trains on the CPU is told as info.

    Why it matters: One float64 array from numpy makes everything after it run in double precision, many times
    slower on an accelerator; a tensor on another device is copied in every step; a meta tensor was never filled.

    Example:
        TD-C007 warning: head.scale is float64, the other parameters are float32, rank 0

    What to do: `torch.tensor(array, dtype=torch.float32)`; register buffers with `register_buffer`, so that
    `model.to(device)` takes them along; `to_empty` and then load or initialise what was built on `meta`.

    Thresholds: A tenth of the parameters; 8 steps before an idle accelerator is told.
    """

    code = "TD-C007"
    title = "tensors with another dtype or device than the model"
    severity = "warning"
    observes = (MixedDtypes, MixedDevices, AcceleratorIdle)

    def evaluate(self, process: ProcessDir, seen: MixedDtypes | AcceleratorIdle) -> Iterable[tuple[str, Finding]]:
        if isinstance(seen, AcceleratorIdle):
            return [("idle", self._make_idle_finding(process, seen))]
        names, count = seen.odd, seen.odd_count
        of = "on" if isinstance(seen, MixedDevices) else "in"
        is_or_are = "is" if count == 1 else "are"
        finding = self.make_finding(
            f"{join_limited(names, 3) if count <= len(names) else format_count(count, 'tensor')} {is_or_are} {of}"
            f" {seen.odd_kind}, the other parameters {of} {seen.common_kind}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="forward",
            module=names[0].rpartition(".")[0] if names else "",
            evidence=[
                f"{format_count(count, 'tensor')}: {join_limited(names, 8)}",
                *([seen.effect] if seen.effect else []),
            ],
            cause="an array keeps its own dtype, or a tensor is created after the model was moved",
            try_next="create it with the model's dtype and device; use register_buffer for a tensor that is not a parameter",
        )
        return [(seen.what, finding)]

    def _make_idle_finding(self, process: ProcessDir, seen: AcceleratorIdle) -> Finding:
        there = format_count(seen.accelerators, "accelerator")
        return self.make_finding(
            f"{there} available, but the model trains on the CPU, {process.display_name}",
            severity="info",
            first_step=seen.step,
            rank=process.rank,
            phase="train",
            evidence=[f"still on the CPU at step {seen.step}"],
            cause="the model was not moved, or a device option has its default",
            try_next="call model.to(device), and move each batch too, if the model is large enough to benefit",
        )
