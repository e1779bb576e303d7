"""What the probe `device` sees."""

from tdbg.core.events import doc
from tdbg.core.observations import Evidence, Observed
from tdbg.core.tables import format_count, join_limited


class StepPlaces(Observed):
    """Where the tensors of a step were, and what it moved, converted or waited for."""

    PROBE = "device"

    inputs: list[str] = doc("device and dtype of the root's inputs, at most eight", factory=list)
    output: str = doc("device and dtype of the root's first output", "")
    loss: str = doc("device and dtype of the loss", "")
    syncs: int | None = doc("number of calls that wait for the accelerator (on the CPU: that would wait on one)")
    copies: int | None = doc("tensors copied between devices")
    copied_mb: float | None = doc("size of these copies")
    conversions: int | None = doc("tensors converted to another dtype")
    lines: list[str] | None = doc("program lines that waited or copied most often, at most eight")
    over: list[str] | None = doc(
        "lines that waited or copied at least DEVICE.syncs times in the step (accelerator only)"
    )
    parameters: dict[str, int] | None = doc("number of parameters of each dtype and device; given when it changes")
    buffers: dict[str, int] | None = doc("the same for buffers")
    accelerator: bool | None = doc("the model is on an accelerator")
    accelerators: int | None = doc("number of accelerators visible to the process")

    kinds: str = ""  # of the parameters, whether they changed or not: for the line alone
    waits: bool = False  # on an accelerator

    @property
    def counts_by_line(self) -> dict[str, str]:
        """How often each of the lines in ``over`` did so."""
        return dict(line.rsplit(" x", 1) for line in self.over or () if " x" in line)

    def text(self) -> str:
        """Parameters, input, output and loss; waits, copies and conversions."""
        text = f"parameters {self.kinds}; input {', '.join(self.inputs[:2]) or '-'}; output {self.output or '-'}"
        text += f"; loss {self.loss or '-'}"
        if self.syncs is None:
            return text
        waits = "waits for the accelerator" if self.waits else "calls that would wait on an accelerator"
        text += f"; {self.syncs} {waits}, {format_count(self.copies or 0, 'copy')} ({self.copied_mb or 0.0:g} MB)"
        text += f", {format_count(self.conversions or 0, 'conversion')}"
        return text + (f"; most: {self.lines[0]}" if self.lines else "")


class _Warning(Observed):
    """Told once."""

    PROBE = "device"
    LEVEL = "W"


class MixedDtypes(_Warning):
    """Parameters or buffers of another dtype than the rest."""

    PART = "MIX_DTYPE"
    EVIDENCE = Evidence.LOCATED

    what: str = doc("dtype or device", "dtype")
    odd: list[str] = doc("the parameters and buffers that are unlike the rest, at most eight", factory=list)
    odd_count: int = doc("number of these parameters and buffers", 1)
    odd_kind: str = doc("their dtype or device", "")
    common_kind: str = doc("dtype or device of most parameters", "")
    effect: str = doc("what it led to, if that was observed", "")

    def text(self) -> str:
        """Which, what they are, and what the others are."""
        odd = join_limited(self.odd, len(self.odd), self.odd_count)
        effect = f"; {self.effect}" if self.effect else ""
        return f"{odd}: {self.odd_kind}, the other parameters {self.common_kind}{effect}"


class MixedDevices(MixedDtypes):
    """Parameters or buffers on another device than the rest."""

    PART = "MIX_DEVICE"

    what: str = doc("dtype or device", "device")


class AcceleratorIdle(_Warning):
    """The model trains on the CPU while an accelerator can be used."""

    PART = "IDLE"

    accelerators: int = doc("number of accelerators visible to the process", 1)

    def text(self) -> str:
        """How many there are."""
        return f"{format_count(self.accelerators, 'accelerator')} available, but the model trains on the CPU"
