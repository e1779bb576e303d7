"""TD-C032: an input of the model that has no effect."""

from typing import Any

from tdbg.core.observations.preflight import InputsChanged
from tdbg.core.tables import join_limited
from tdbg.rules import RULES
from tdbg.rules._trials import TrialRule


@RULES.add
class InputIgnored(TrialRule):
    """Says when an input that the model is given changes nothing that it returns.

    What it does: `tdbg run --preflight` shuffles each input of the first batch over the batch, one at a time,
    in train mode with the same random numbers. If everything that the model returns stays the same bit for bit,
    the input is ignored. Weights that are zero at the beginning (gates, last layers) have small random values
    meanwhile.

    Why it matters: A condition, a time step or a second view that is dropped on the way raises nothing, and the
    model learns what it can without it.

    Example:
        TD-C032 warning: input t has no effect on the model's output

    What to do: Follow the input through `forward`: an overwritten name, a branch that is not taken, a detached
    or multiplied-by-zero path.

    Thresholds: The output must stay the same bit for bit. Skipped: inputs whose rows are equal, labels, targets
    and indices.
    """

    code = "TD-C032"
    title = "an input has no effect"
    severity = "warning"
    observes = (InputsChanged,)

    def find_fault(self, seen: InputsChanged) -> dict[str, Any] | None:
        if not seen.ignored:
            return None
        names = join_limited(seen.ignored, 4)
        named = f"input {names} has" if len(seen.ignored) == 1 else f"inputs {names} have"
        everything = len(seen.ignored) == len(seen.inputs)
        return {
            "title": f"{named} no effect on the model's output",
            "evidence": [f"{seen.root} in train mode, the same random numbers: the output is equal bit for bit"],
            "cause": "the output is constant" if everything else "the input is overwritten, or its branch is not taken",
            "try_next": "follow the input through forward",
        }
