"""What capturing (`--capture`) tells of itself."""

from tdbg.core.events import doc
from tdbg.core.observations import Evidence, Observed
from tdbg.core.tables import format_count


class _Capturing(Observed):
    PROBE = "capture"
    EVIDENCE = Evidence.LOCATED


class LayersChosen(_Capturing):
    """Once a root: what is captured of it."""

    PART = "LAYERS"
    LEVEL = "I"

    layers: list[str] = doc("paths of the layers that are captured, at most 64", factory=list)
    count: int = doc("number of layers that are captured", 0)
    root: str = doc("class of the root module", "")

    def text(self) -> str:
        """How many layers, and the first of them."""
        more = " ..." if self.layers[4:] else ""
        return f"capturing {format_count(self.count, 'layer')} of {self.root}: {', '.join(self.layers[:4])}{more}"


class LayersMissing(_Capturing):
    """A name that no layer matches."""

    PART = "MISSING"
    LEVEL = "W"

    pattern: str = doc("the requested pattern, which matches no layer", "")
    root: str = doc("class of the root module", "")
    hint: str = doc("the nearest layer names", "")
    why: str = doc("the reason in words", "")
    option: str = doc("the option that names it", "--capture")

    def text(self) -> str:
        """What does not match, and what would."""
        return f"{self.option}: {self.why}; {self.hint}"


class LayersPlaced(_Capturing):
    """A name that matches at one place below the root alone."""

    PART = "PLACE"
    LEVEL = "I"

    pattern: str = doc("the requested pattern", "")
    place: str = doc("path of the submodule in which the pattern matched; it matches nowhere else", "")
    root: str = doc("class of the root module", "")

    def text(self) -> str:
        """What the name is taken for."""
        whole = f"{self.place}.{self.pattern}"
        return f"--capture {self.pattern!r} matches no layer of {self.root}; using {whole!r}"


class CaptureOver(_Capturing):
    """The budget is used up: no fault, it is what was asked for."""

    PART = "OVER"
    LEVEL = "W"

    why: str = doc("the reason in words", "")

    def text(self) -> str:
        """Why it ended."""
        return f"capturing ended: {self.why}"


class CaptureFailed(CaptureOver):
    """The pages could not be written."""

    PART = "FAILED"
    LEVEL = "E"


class CaptureDone(_Capturing):
    """At the end: what became of all passes. ``why`` is there where nothing was captured."""

    PART = "DONE"
    LEVEL = "I"

    datapoints: int = doc("number of passes written", 0)
    bytes: int = doc("total size of their tensors in bytes", 0)
    dropped: dict[str, int] | None = doc("passes that were not captured: reason -> number of passes")
    skipped: dict[str, str] | None = doc(
        "layers whose tensors could not be captured or never appeared: path -> reason, at most eight"
    )
    skips: int | None = doc("number of such failures over all passes")
    not_executed: list[str] | None = doc("requested layers that ran in no captured pass, at most 64")
    waited_s: float | None = doc("how long the program waited for the disk")
    unscored: int | None = doc("passes of which all samples were kept: labels and prediction could not be compared")
    without_rows: int | None = doc("passes of which all samples were kept: the number of samples is unknown")
    without_batch: int | None = doc("passes that match no DataLoader batch: the call's arguments were kept instead")
    why: str | None = doc("the reason in words")

    def text(self) -> str:
        """Passes and bytes, and what is missing."""
        if self.why is not None:
            return f"captured nothing: {self.why}"
        text = f"captured {format_count(self.datapoints, 'pass')}, {self.bytes / 1e6:,.1f} MB"
        if self.dropped:
            text += f"; left out: {', '.join(f'{count:,} {reason}' for reason, count in self.dropped.items())}"
        if self.skipped:
            text += f"; not captured, {format_count(self.skips or 0, 'time')}: "
            text += ", ".join(f"{path} ({why})" for path, why in self.skipped.items())
        if self.not_executed:
            more = " ..." if len(self.not_executed) > 8 else ""
            text += f"; not executed: {', '.join(self.not_executed[:8])}{more}"
        return text
