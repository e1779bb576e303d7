"""TD-G006: a custom autograd.Function whose backward is not the derivative of its forward."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.preflight import CustomGradients
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import join_limited
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule


@RULES.add
class CustomGradientWrong(KindsRule):
    """Says when the backward of a custom `autograd.Function` is not the derivative of its forward.

    What it does: `tdbg run --preflight` keeps the inputs of the first call of each custom function, and runs it
    in float64: the derivative by `backward`, in a random direction for each input, must be the one by
    differences of `forward`. Two step sizes must agree first, or the forward is not smooth there and nothing is
    said.

    Why it matters: A forgotten factor, a missing term or two gradients in the wrong order raise nothing. The
    model trains in a wrong direction, more slowly or to a worse end.

    Example:
        TD-G006 warning: backward of Swish is wrong for input x: 0.312, finite differences give 0.547

    What to do: Run `torch.autograd.gradcheck(Swish.apply, inputs)` with float64 inputs, and derive the term for
    that input once more. A backward must also multiply by the gradient that it is given.

    Thresholds: Both must differ by more than 1 %. Skipped: functions that change gradients on purpose, with a
    forward that is constant in pieces (straight-through and surrogate gradients) or that returns its input
    (reversal, scaling, clipping); torch's own; those that refuse float64 or compute in another precision.
    """

    code = "TD-G006"
    title = "custom gradient is wrong"
    severity = "warning"
    leads_to = ("TD-L022",)
    observes = (CustomGradients,)

    def evaluate(self, process: ProcessDir, seen: CustomGradients) -> Iterable[tuple[str, Finding]]:
        if not seen.was_tried or not seen.wrong or not self.is_news(process, "wrong"):
            return ()
        others = seen.wrong[1:]
        found = self.make_finding(
            f"backward of {seen.wrong[0]} is wrong for input {seen.input}: {seen.backward:.4g},"
            f" finite differences give {seen.differences:.4g}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="backward",
            evidence=[
                "in float64, in one random direction, at the inputs of its first call",
                *([f"its backward: {seen.defined_at}"] if seen.defined_at else []),
                *([f"wrong as well: {join_limited(others, 4)}"] if others else []),
            ],
            cause="a factor or a term is missing, gradients are in the wrong order, or the given gradient is ignored",
            try_next=f"torch.autograd.gradcheck({seen.wrong[0]}.apply, inputs) with float64 inputs",
        )
        return [("wrong", found)]
