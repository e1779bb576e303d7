"""TD-S011: an optimizer that updates nothing of the model that runs."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.optimizer import EmptyUpdates, ParameterCoverage
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule

REPLACED, UNREACHED = "replaced", "unreached"


@RULES.add
class UpdatesNothing(KindsRule):
    """Says when no parameter that the optimizer holds gets a gradient, while other parameters get some.

    What it does: With the flag OPTIMIZER, or in the opening inspection and its later looks, it compares what
    the optimizer holds with the model that runs. It speaks when nothing in the optimizer has had a gradient in
    4 updates in a row, and parameters that no optimizer holds have some: every parameter it holds is frozen, or
    belongs to another instance of the model, or to a layer that was replaced. Where only some parameters are
    left out, TD-S006 speaks. As a note it also names an optimizer whose own model is called with gradients enabled,
    but no gradient reaches its parameters (a generator whose output is detached before the loss): the loss of that
    model may begin later.

    Why it matters: `optimizer.step()` passes over parameters without a gradient. The model keeps its initial
    weights, and nothing fails.

    Example:
        TD-S011 error: AdamW has updated nothing since step 1: its 4 parameters are not those of the Net that
        runs, rank 0
        TD-S011 info: Adam updated nothing in steps 1 to 12: no gradient reached the 6 parameters that it holds,
        though Generator was called in each step, rank 0

    What to do: Build the optimizer last: after the head is replaced, after `copy.deepcopy`, `from_pretrained`,
    wrapping, and after it is decided what is frozen. Compute the loss of a generator from its output itself,
    without `detach()`.

    Thresholds: 4 updates in a row; 2 where another instance of the model gets all the gradients; 12 steps in a row
    where the model of that optimizer is called. A program that moves gradients to copies of the parameters itself,
    or clears them while it updates, is left alone.
    """

    code = "TD-S011"
    title = "optimizer that updates nothing of the model"
    severity = "error"
    leads_to = ("TD-G003", "TD-G005", "TD-S007")
    observes = (EmptyUpdates, ParameterCoverage)

    def __init__(self) -> None:
        super().__init__()
        self._explained: set[str] = set()  # processes of which TD-S006 says more

    def evaluate(self, process: ProcessDir, seen: EmptyUpdates | ParameterCoverage) -> Iterable[tuple[str, Finding]]:
        if isinstance(seen, ParameterCoverage):
            if seen.forgotten:
                self._explained.add(process.label)
        elif seen.called:
            kind = f"{UNREACHED} {seen.number or 0}"  # a program may have several
            if self.is_news(process, kind):
                yield kind, self._make_unreached(process, seen)
        elif process.label not in self._explained and self.is_news(process, REPLACED):
            yield REPLACED, self._make_replaced(process, seen)

    def _make_unreached(self, process: ProcessDir, seen: EmptyUpdates) -> Finding:
        held = format_count(seen.held, "parameter")
        return self.make_finding(
            f"{seen.optimizer} updated nothing in steps {seen.since} to {seen.step}: no gradient reached the {held} that"
            f" it holds, though {seen.root} was called in each step, {process.display_name}",
            severity="info",
            first_step=seen.since,
            rank=process.rank,
            phase="optimizer",
            evidence=[
                f"no gradient in any of its {held} in {format_count(seen.updates, 'update')} in a row",
                f"{seen.root}, all of which it holds, was called with gradients enabled in each of these steps",
            ],
            cause=f"what {seen.root} returns is cut off from the loss (detach(), item(), numpy), or the loss does not use it",
            try_next="compute the loss from its output without detach(); where its loss begins later, step its optimizer from then on",
        )

    def _make_replaced(self, process: ProcessDir, seen: EmptyUpdates) -> Finding:
        what, cause, try_next = _explain_updates(seen)
        names = f": {join_limited(seen.names, 3)}" if seen.names else ""
        used = (
            f"{format_count(seen.graded, 'parameter')} of {seen.root}" if seen.graded else f"parameters of {seen.root}"
        )
        return self.make_finding(
            f"{seen.optimizer} has updated nothing since step {seen.since}: {what}, {process.display_name}",
            first_step=seen.since,
            rank=process.rank,
            phase="optimizer",
            evidence=[
                f"no gradient in any of its {format_count(seen.held, 'parameter')} in {format_count(seen.updates, 'update')} in a row",
                f"{used} have gradients that no optimizer uses{names}",
            ],
            cause=cause,
            try_next=try_next,
        )


def _explain_updates(seen: EmptyUpdates) -> tuple[str, str, str]:
    """What it holds instead, the cause, and what to try."""
    if seen.frozen == seen.held:
        return (
            f"all {format_count(seen.held, 'parameter')} that it holds are frozen",
            "the optimizer was given what requires_grad_(False) has frozen, and not what is to be trained",
            "give the optimizer the parameters with requires_grad, once all layers are in place",
        )
    if seen.strangers == seen.held:
        return (
            f"its {format_count(seen.held, 'parameter')} are not those of the {seen.root} that runs",
            "the optimizer was built on another instance of the model, or before its parameters were replaced",
            "build the optimizer from the model that is called: after copy.deepcopy, from_pretrained or wrapping",
        )
    return (
        f"of {format_count(seen.held, 'parameter')} {seen.frozen} are frozen, {seen.strangers} not in the {seen.root} that"
        " runs",
        "a layer was replaced after the optimizer was built, and the rest is frozen",
        "build the optimizer after the layer is replaced",
    )
