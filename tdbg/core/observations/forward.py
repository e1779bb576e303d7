"""What the probe `forward` sees."""

from tdbg.core.events import Number, as_float, doc
from tdbg.core.observations import Evidence, Observed
from tdbg.core.observations._module_look import ModuleLook
from tdbg.core.tables import format_count, join_limited

Column = list[Number | None] | None
MAX_SHAPES = 24  # modules whose outputs are described in the line; the fields have all of them


class ModuleOutputs(ModuleLook):
    """The outputs of modules in one step."""

    PROBE = "forward"

    classes: list[str] | None = doc("their classes; given with the paths")
    shapes: list[list[int]] | None = doc("the shapes of their outputs; given with the paths")
    dtypes: list[str] | None = doc("the dtypes of their outputs; given with the paths")
    devices: list[str] | None = doc("the devices of their outputs; given with the paths")
    rms: list[Number | None] = doc("root mean square of each module's output", factory=list)
    mean: Column = doc("mean of a sample of each output's elements")
    std: Column = doc("standard deviation of the sample")
    min: Column = doc("smallest element of the sample")
    max: Column = doc("largest element of the sample")
    zero_share: Column = doc("share of the sample that is zero, 0 to 1")
    bad: list[str] | None = doc("modules whose output is not finite, at most eight")
    dead: list[str] | None = doc("leaf modules whose output is all zero, at most eight")
    loss: Number | None = doc("the step's loss")
    calls: int = doc("number of module calls in the step", 0)

    extremes: str = ""  # which outputs are smallest and largest: for the line alone
    bad_count: int = 0
    dead_count: int = 0

    def text(self) -> str:
        """The range of the outputs, what is wrong with them, the loss, and their shapes where these are new."""
        text = f"{format_count(len(self.rms), 'module')}{self.extremes}"
        text += f", {self.bad_count} not finite" + (f" (first: {self.bad[0]})" if self.bad else "")
        if self.dead:
            text += f", {self.dead_count} all zero (first: {self.dead[0]})"
        loss = as_float(self.loss)
        text += f", loss {loss:.6g}" if loss is not None else ""
        return text + self._format_outputs()

    def _format_outputs(self) -> str:
        """``; outputs: 0 (Linear) float32[32, 8], 2 (Linear) float32[32, 4]; on cpu``."""
        rows = list(zip(self.modules or (), self.classes or (), self.dtypes or (), self.shapes or (), strict=False))
        if not rows:
            return ""
        shown = [f"{path or 'root'} ({name}) {dtype}{shape}" for path, name, dtype, shape in rows]
        return f"; outputs: {join_limited(shown, MAX_SHAPES)}; on {', '.join(self.devices or ())}"


class AutocastIgnored(Observed):
    """Linear and convolution layers that all return float32, although their root was called inside autocast."""

    PROBE = "forward"
    PART = "AUTOCAST"
    EVIDENCE = Evidence.LOCATED
    LEVEL = "W"

    device: str = doc("device type for which autocast is on", "")
    dtype: str = doc("the dtype that it casts to", "")
    layers: list[str] = doc("layers that were checked, at most eight", factory=list)
    layer_count: int = doc("number of layers that were checked", 0)
    layer_device: str = doc("device type on which these layers ran", "")
    looks: int = doc("number of consecutive sampled steps that found this", 0)

    def text(self) -> str:
        """How many, and where."""
        return (
            f"{format_count(self.layer_count, 'linear and convolution layer')} on {self.layer_device} return float32 in"
            f" {format_count(self.looks, 'sampled step')}, inside autocast to {self.dtype} on {self.device}"
        )
