"""TD-C031: a mask of padding that has no effect."""

from typing import Any

from tdbg.core.observations.preflight import PaddingChanged
from tdbg.core.tables import format_count
from tdbg.rules import RULES
from tdbg.rules._trials import TrialRule


@RULES.add
class MaskIgnored(TrialRule):
    """Says when padding reaches the outputs of real positions because the mask that the model is given does
    nothing.

    What it does: `tdbg run --preflight` puts other values at the padded positions of the first batch, in eval
    mode, and then runs it with a mask that says that nothing is padding. A warning needs both: outputs of real
    positions change with the padding, and the mask changes nothing. Where the mask has an effect and padding is
    still seen (a convolution, the backward direction of an LSTM), it is a note.

    Why it matters: The output of a sample then depends on how long the others of its batch are.

    Example:
        TD-C031 warning: mask has no effect: changing 212 padded positions of x changes outputs at real
        positions

    What to do: Pass the mask on to attention (`key_padding_mask`, `attn_mask`), to the pooling and to packing;
    look at its sign: True means padding in `nn.MultiheadAttention`, and a real token in Hugging Face's models.

    Thresholds: The change must exceed 0.01 % of the largest output. Skipped: models without an input that says
    what is padding, and sequences that are padded at the front.
    """

    code = "TD-C031"
    title = "a padding mask has no effect"
    severity = "warning"
    leads_to = ("TD-C032",)
    observes = (PaddingChanged,)

    def find_fault(self, seen: PaddingChanged) -> dict[str, Any] | None:
        if not seen.leaks:
            return None
        positions = format_count(seen.padded, "padded position")
        what = (
            f"changing {positions} of {seen.input} changes outputs at real positions, although {seen.mask} has an effect"
            if seen.mask_works
            else f"{seen.mask} has no effect: changing {positions} of {seen.input} changes outputs at real positions"
        )
        return {
            "title": what,
            "severity": "info" if seen.mask_works else self.severity,
            "evidence": [f"{seen.root} in eval mode, with other values at the padded positions"],
            "cause": "" if seen.mask_works else f"{seen.mask} is not passed on, or is applied where it changes nothing",
            "try_next": "apply the mask in attention, in pooling and in packing",
        }
