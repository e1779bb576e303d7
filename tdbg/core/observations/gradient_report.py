"""What the probe `gradient-report` sees."""

from typing import TypedDict

from tdbg.core.events import Number, doc
from tdbg.core.observations import Evidence, Observed, format_number
from tdbg.core.observations._lasting import Lasting, lasting_row
from tdbg.core.tables import format_count, join_limited

WORDS = {  # kind of trouble -> how the line names it
    "none": "without a gradient",
    "zero": "all zero",
    "vanishing": "vanishing",
    "exploding": "exploding",
    "jumped": "jumped",
}


class BadRow(TypedDict):
    """A gradient that is not finite."""

    name: str
    kind: str
    count: int
    numel: int


class GradientNorms(Observed):
    """The gradients of the main optimizer's parameters, and which of them are in trouble."""

    PROBE = "gradient-report"
    EVIDENCE = Evidence.AFTER_REDUCTION
    ALWAYS = ("total",)

    total: Number | None = doc("total L2 norm before clipping")
    total_after: Number | None = doc("total L2 norm after clipping, if it can be derived from the limit")
    clip_limit: float | None = doc("the limit given to clip_grad_norm_")
    clip_factor: Number | None = doc("factor by which clipping scaled every gradient")
    parameters: int = doc("number of parameters whose gradient norms were read", 0)
    largest: Number | None = doc("the largest gradient norm of a parameter")
    largest_name: str | None = doc("name of the parameter with the largest norm")
    smallest: Number | None = doc("the smallest norm above zero")
    smallest_name: str | None = doc("name of the parameter with the smallest norm")
    none: list[str] | None = doc("trainable parameters without a gradient, at most eight")
    none_count: int | None = doc("number of these trainable parameters")
    zero: list[str] | None = doc("parameters whose gradient is all zero, at most eight")
    zero_count: int | None = doc("number of parameters whose gradient is all zero")
    vanishing: list[str] | None = doc(
        "parameters whose norm is above zero and below GRADIENTS.vanishing, at most eight"
    )
    vanishing_count: int | None = doc("number of parameters with a vanishing gradient")
    exploding: list[str] | None = doc("parameters whose norm is above GRADIENTS.explosion, at most eight")
    exploding_count: int | None = doc("number of parameters with an exploding gradient")
    jumped: list[str] | None = doc("parameters whose norm is far above its running median, at most eight")
    jumped_count: int | None = doc("number of parameters whose norm jumped")
    lasting: dict[str, Lasting] | None = doc(
        "states above that persist: kind -> {names, count, looks, since (step), norm}; for none also other, as in"
        " the probe optimizer"
    )

    finite: bool = True  # for the line alone
    clipped_in_part: bool = False

    def get_lasting_row(self, kind: str) -> Lasting | None:
        """Who has been in this state in consecutive sampled steps."""
        return lasting_row(self.lasting, kind)

    def text(self) -> str:
        """The total, clipping, both ends, and the parameters in trouble."""
        if not self.finite:
            return "gradients are not finite"
        text = (
            f"{format_count(self.parameters, 'parameter')}, total {format_number(self.total)}{self._format_clipping()}"
        )
        if self.largest is not None:
            text += f", from {format_number(self.smallest, 3)} ({self.smallest_name})"
            text += f" to {format_number(self.largest, 3)} ({self.largest_name})"
        trouble = {
            "none": (self.none, self.none_count),
            "zero": (self.zero, self.zero_count),
            "vanishing": (self.vanishing, self.vanishing_count),
            "exploding": (self.exploding, self.exploding_count),
            "jumped": (self.jumped, self.jumped_count),
        }
        for kind, (names, count) in trouble.items():
            if names:
                text += f"; {count} {WORDS[kind]} ({names[0]}{' ...' if names[1:] else ''})"
        return text

    def _format_clipping(self) -> str:
        if self.clip_limit is None:
            return ""
        if self.total_after is not None:
            return f" (after clipping {format_number(self.total_after)})"
        return f" (partly clipped at {self.clip_limit:.4g})" if self.clipped_in_part else ""


class BadGradients(Observed):
    """Gradients that are not finite, counted at the only moment at which they can be."""

    PROBE = "gradient-report"
    PART = "NONFINITE"
    EVIDENCE = Evidence.AFTER_REDUCTION
    LEVEL = "E"

    bad: list[BadRow] = doc("name, kind (NaN or Inf), count and numel of each, at most eight", factory=list)
    bad_count: int = doc("parameters whose gradient is not finite", 0)

    def text(self) -> str:
        """The first of them."""
        rows = [f"{row['name']} {row['count']} of {row['numel']} ({row['kind']})" for row in self.bad]
        return f"gradients not finite in {format_count(self.bad_count, 'parameter')}: {join_limited(rows, 3, self.bad_count)}"
