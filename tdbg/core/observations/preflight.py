"""What the probe `preflight` sees: one observation for each trial that `tdbg run --preflight` makes, or cannot make."""

from typing import ClassVar

from tdbg.core.events import doc
from tdbg.core.observations import Observed
from tdbg.core.tables import format_count, join_limited

SHOWN = 4


class Trial(Observed):
    """One trial before the first update."""

    PROBE = "preflight"
    TITLE: ClassVar[str] = ""  # in the verdict

    reason: str | None = doc("why the trial was not run; null if it was run")
    root: str = doc("class of the module that was called", "")

    @property
    def was_tried(self) -> bool:
        """True if the trial was made."""
        return self.reason is None

    def describe_outcome(self) -> str:
        """What came out of it, in a few words."""
        return "tried"

    def text(self) -> str:
        """The trial and its outcome, or why it was not made."""
        return (
            f"{self.TITLE}: {self.describe_outcome()}"
            if self.reason is None
            else f"{self.TITLE}: not tried, {self.reason}"
        )


class Refused(Trial):
    """The forward pass needs other ranks, so nothing was tried."""

    PART = "REFUSED"
    TITLE = "preflight"

    def text(self) -> str:
        """Why nothing was tried."""
        return f"preflight refused: {self.reason}"


class EvaluatedTwice(Trial):
    """The batch ran twice in eval mode, with the same random numbers and with others."""

    PART = "TWICE"
    TITLE = "evaluation twice"

    repeats: bool = doc("the same random numbers give the same output, bit for bit", True)
    drew: bool = doc("different random numbers give a different output", False)
    drawn_by: str | None = doc("the dropout function that drew them, if it was one")
    drawn_at: str | None = doc("file:line of the program that called it")

    def describe_outcome(self) -> str:
        """Whether the outputs are equal."""
        if not self.repeats:
            return "the output differs on each run"
        if not self.drew:
            return "the output is the same"
        return f"the output is random ({self.drawn_by})" if self.drawn_by else "the output is random"


class SampleChanged(Trial):
    """One sample of the batch was changed, in eval mode."""

    PART = "SAMPLE"
    TITLE = "one sample changed"

    samples: int = doc("samples in the batch", 0)
    from_loader: bool = doc("true if a batch of a DataLoader shows that dimension 0 is the batch dimension", False)
    mixed: int = doc("other samples whose outputs changed", 0)
    ratio: float = doc("largest change of these outputs, divided by the change of the changed sample's output", 0.0)
    pairs: bool = doc("true if the model compares samples in pairs by design, as attention over the batch does", False)
    module: str | None = doc("the first module whose output changed for the other samples")
    module_class: str | None = doc("its class")

    def describe_outcome(self) -> str:
        """How many others changed."""
        if not self.mixed:
            return "no other output changes"
        on_purpose = ", as the model compares samples in pairs" if self.pairs else ""
        return f"outputs of {self.mixed} of {format_count(self.samples - 1, 'other sample')} change{on_purpose}"


class LastTokenChanged(Trial):
    """The last token of each sequence was changed, in eval mode."""

    PART = "LAST_TOKEN"
    TITLE = "last token changed"

    input: str = doc("the input whose last token was changed", "")
    positions: int = doc("number of positions before the last token", 0)
    leaking: int = doc("earlier positions whose outputs changed", 0)
    ratio: float = doc("largest change of these outputs, divided by the change at the changed position", 0.0)
    module: str | None = doc("the first module whose output changed at earlier positions")
    module_class: str | None = doc("its class")

    def describe_outcome(self) -> str:
        """How many earlier outputs changed."""
        return (
            f"outputs at {self.leaking} of {format_count(self.positions, 'earlier position')} change"
            if self.leaking
            else "no earlier output changes"
        )


class InputsChanged(Trial):
    """Each input was shuffled over the batch or changed, in train mode with the same random numbers."""

    PART = "INPUTS"
    TITLE = "each input changed"

    inputs: list[str] = doc("the inputs that were changed, one at a time", factory=list)
    ignored: list[str] = doc("inputs without any effect on the output", factory=list)

    def describe_outcome(self) -> str:
        """Which are ignored."""
        return f"no effect: {join_limited(self.ignored, SHOWN)}" if self.ignored else "every input has an effect"


class PaddingChanged(Trial):
    """What stands at padded positions was changed, in eval mode."""

    PART = "PADDING"
    TITLE = "padding changed"

    input: str = doc("the input whose padding was changed", "")
    mask: str = doc("the mask input, which marks the padding", "")
    padded: int = doc("padded positions", 0)
    leaks: bool = doc("outputs of real positions changed with the padding", False)
    mask_works: bool = doc("a mask without padding gives a different output", True)

    def describe_outcome(self) -> str:
        """Whether the padding reaches the output."""
        if not self.leaks:
            return "no output of a real position changes"
        return "outputs change" + ("" if self.mask_works else f", and {self.mask} has no effect")


class CustomGradients(Trial):
    """The backward of each custom `autograd.Function` was compared with differences of its forward, in float64."""

    PART = "GRADIENTS"
    TITLE = "gradients of custom functions"

    checked: list[str] = doc("the functions whose gradients were compared", factory=list)
    intended: list[str] = doc(
        "functions not compared: forward is piecewise constant, or returns its input", factory=list
    )
    unchecked: list[str] = doc("functions that could not be compared, and why", factory=list)
    wrong: list[str] = doc("functions with a wrong gradient", factory=list)
    input: str = doc("of the first wrong function: the input whose gradient is wrong", "")
    backward: float = doc("its directional derivative from backward", 0.0)
    differences: float = doc("the same derivative from finite differences of forward", 0.0)
    defined_at: str = doc("file:line of the first wrong function's backward", "")

    def describe_outcome(self) -> str:
        """Which are wrong."""
        if self.wrong:
            return f"wrong in {join_limited(self.wrong, SHOWN)}"
        right = f"correct in {join_limited(self.checked, SHOWN)}" if self.checked else ""
        intended = f"no derivative to compare with in {join_limited(self.intended, SHOWN)}" if self.intended else ""
        return ", ".join(filter(None, (right, intended)))


class BatchOverfitted(Trial):
    """The batch was trained on alone, with another optimizer, on weights that are put back."""

    PART = "OVERFIT"
    TITLE = "one batch overfitted"

    loss: str = doc("the loss function", "")
    updates: int = doc("number of updates at the learning rate that reached the lowest loss", 0)
    rate: float = doc("that learning rate", 0.0)
    first: float = doc("the loss before the first of these updates", 0.0)
    last: float = doc("the lowest loss", 0.0)
    fell: bool = doc("the loss fell by at least a tenth", True)
    falls: bool = doc("the loss was still falling at one of the learning rates", False)
    cut: bool = doc("the loss gives no parameter a gradient, and neither does the program's own backward pass", False)

    def describe_outcome(self) -> str:
        """How far the loss fell."""
        if self.cut:
            return "no parameter receives a gradient"
        fell = "loss falls" if self.fell else "loss falls slowly" if self.falls else "loss does not fall"
        return f"{fell}: {self.loss} from {self.first:.3g} to {self.last:.3g} in {format_count(self.updates, 'update')}"


TRIALS: tuple[type[Trial], ...] = (
    Refused,
    EvaluatedTwice,
    SampleChanged,
    LastTokenChanged,
    PaddingChanged,
    InputsChanged,
    CustomGradients,
    BatchOverfitted,
)
