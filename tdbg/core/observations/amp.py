"""What the probe `amp` sees."""

from typing import TypedDict

from tdbg.core.events import Number, as_float, doc
from tdbg.core.observations import Evidence, Observed, format_number
from tdbg.core.tables import format_count

RANGES = {"float16": "range 6e-05 to 65504", "bfloat16": "float32's range, 8 bits of precision; needs no loss scale"}


class BadGradient(TypedDict):
    """A gradient that is not finite."""

    name: str
    kind: str
    count: int


class PrecisionLoss(Observed):
    """What half precision makes of the gradients, judged by a sample of their elements."""

    PROBE = "amp"
    EVIDENCE = Evidence.STATISTICAL

    autocast: str = doc("autocast dtype when the root was called; empty if autocast was off", "")
    dtype: str = doc("the half-precision dtype whose range the gradients were compared with", "")
    scaler: bool = doc("true if a GradScaler scales the loss", False)
    elements: int = doc("number of gradient elements sampled", 0)
    zero_share: Number | None = doc("share of the sampled elements that are exactly zero, 0 to 1")
    faint_share: Number | None = doc("share that are not zero but below the dtype's smallest normal number")
    huge_share: Number | None = doc("share that are above the dtype's largest number or not finite")
    largest: Number | None = doc("largest absolute value in the sample")
    lost_looks: int = doc("consecutive sampled steps in which half precision lost most of the gradients", 0)
    lost_since: int | None = doc("step of the first of these looks")
    scale: float | None = doc("the loss scale of the step")
    updates_skipped: int | None = doc("updates skipped so far")
    growths: int | None = doc("times the scale grew so far")
    backoffs: int | None = doc("times the scale was lowered so far")

    def text(self) -> str:
        """The dtype, the scale, and the shares that are lost at either end."""
        text = f"{'autocast' if self.autocast else 'gradients in'} {self.dtype} ({RANGES.get(self.dtype, 'unknown')})"
        if self.updates_skipped is not None:
            text += (
                f", scale {_format_exact(self.scale)}, {format_count(self.updates_skipped, 'update')} skipped so far"
            )
        return (
            f"{text}; {format_count(self.elements, 'gradient element')} sampled: {_format_percent(self.zero_share)} % zero,"
            f" {_format_percent(self.faint_share)} % below the normal range, {_format_percent(self.huge_share)} % above it"
        )


class UpdateSkipped(Observed):
    """An update that GradScaler skipped."""

    PROBE = "amp"
    PART = "SKIP"
    ALWAYS = ("scale",)
    LEVEL = "W"

    scale: float | None = doc("the loss scale of the step")
    updates_skipped: int = doc("updates skipped so far", 0)
    streak: int = doc("number of consecutive updates skipped", 0)
    loss: Number | None = doc("the step's loss, unscaled")
    real: str | None = doc("which is not finite at any scale: loss or gradient; absent if it may be an overflow")
    bad: list[BadGradient] | None = doc("name, kind and number of NaN or Inf elements per parameter, at most eight")
    bad_count: int | None = doc("parameters whose gradient is not finite")

    def text(self) -> str:
        """At which scale, how often, and what was not finite."""
        text = f"update skipped at scale {_format_exact(self.scale)}, {self.streak} in a row, {self.updates_skipped} so far"
        loss = as_float(self.loss)
        text += f"; loss {loss:.4g}" if loss is not None else ""
        if self.real:
            text += "; the loss itself is not finite" if self.real == "loss" else "; NaN at every scale"
        if self.bad:
            row = self.bad[0]
            text += f"; {format_count(self.bad_count or 0, 'gradient')} not finite ({row['name']}: {row['count']} {row['kind']})"
        return text


class SkipExplained(Observed):
    """Why an update was skipped, known a step late on an accelerator."""

    PROBE = "amp"
    PART = "CAUSE"
    ALWAYS = ("scale",)
    LEVEL = "W"

    loss: Number | None = doc("the step's loss, unscaled")
    real: str | None = doc("which is not finite at any scale: loss or gradient")
    scale: Number | None = doc("the loss scale of the step")

    def text(self) -> str:
        """The loss."""
        return f"update skipped, and the loss itself is not finite: {format_number(self.loss)}"


class ScaleChanged(Observed):
    """GradScaler changed the loss scale."""

    PROBE = "amp"
    PART = "SCALE"

    scale: float | None = doc("the loss scale of the step")
    before: float | None = doc("the loss scale before the change")
    growths: int = doc("times the scale grew so far", 0)
    backoffs: int = doc("times the scale was lowered so far", 0)

    def text(self) -> str:
        """Both scales."""
        grew = (self.scale or 0.0) > (self.before or 0.0)
        return f"scale {_format_exact(self.before)} -> {_format_exact(self.scale)} ({'grows' if grew else 'backs off'})"


def _format_exact(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"


def _format_percent(share: Number | None) -> str:
    found = as_float(share)
    return "unknown" if found is None else f"{100 * found:.3g}"
