"""TD-C030: a model that predicts the next token sees it."""

from typing import Any

from tdbg.core.observations.preflight import LastTokenChanged
from tdbg.core.tables import format_count
from tdbg.rules import RULES
from tdbg.rules._trials import TrialRule, describe_layer


@RULES.add
class FutureTokens(TrialRule):
    """Says when outputs at earlier positions depend on a later token, in a model that is trained to predict it.

    What it does: `tdbg run --preflight` changes the last token of each sequence of the first batch, in eval
    mode. Where the targets of the cross-entropy are the input's next tokens, no output before the last position
    may change. Where one does, it names the first layer whose output changes.

    Why it matters: Without a causal mask the loss falls fast and far below what is possible, and the model is
    useless: when text is generated there is no next token to look at.

    Example:
        TD-C030 error: the model sees future tokens: changing the last token of x changes the outputs at 63 of
        63 earlier positions

    What to do: Pass `is_causal=True` or a causal mask to attention; look at the sign of the mask, and for
    convolutions at their padding on the left.

    Thresholds: The change must exceed 0.01 % of the change at the last position. Skipped: models whose targets
    are not the next tokens.
    """

    code = "TD-C030"
    title = "the model sees future tokens"
    severity = "error"
    observes = (LastTokenChanged,)

    def find_fault(self, seen: LastTokenChanged) -> dict[str, Any] | None:
        if not seen.leaking:
            return None
        at = describe_layer(seen)
        return {
            "title": f"the model sees future tokens: changing the last token of {seen.input} changes the outputs at"
            f" {seen.leaking} of {format_count(seen.positions, 'earlier position')}{at}",
            "module": seen.module or "",
            "evidence": [
                f"{seen.root} in eval mode: their largest change is {seen.ratio:g} of that at the last position",
                f"the targets of the loss are the next tokens of {seen.input}",
            ],
            "cause": "attention has no causal mask, or one that is inverted or not passed on",
            "try_next": "pass is_causal=True, or a causal mask, to attention",
        }
