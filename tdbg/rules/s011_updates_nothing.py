"""TD-S011: an optimizer that updates nothing of the model that runs."""

from tdbg.core.events import Finding
from tdbg.core.observations.optimizer import EmptyUpdates, ParameterCoverage
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, ObservingRule, Reported


class _Told(Reported):
    """What was said of a process."""

    found: Finding | None = None


@RULES.add
class UpdatesNothing(ObservingRule[_Told]):
    """Says when no parameter that the optimizer holds gets a gradient, while the model has gradients nobody uses.

    What it does: With the flag OPTIMIZER, or in the opening inspection and its later looks, it compares what
    the optimizer holds with the model that runs. It speaks when nothing in the optimizer has had a gradient in
    4 updates in a row, and parameters that no optimizer holds have some: every parameter it holds is frozen, or
    belongs to another instance of the model, or to a layer that was replaced. Where only some parameters are
    left out, TD-S006 speaks. Beside other optimizers, it also speaks of one whose own model is called with
    gradients on while none reaches it: a generator whose output is detached before the loss.

    Why it matters: `optimizer.step()` passes over parameters without a gradient. The model keeps its initial
    weights, and nothing fails.

    Example:
        TD-S011 error: AdamW has updated nothing since step 1: its 4 parameters are not those of the Net that
        runs, rank 0
        TD-S011 warning: Adam has updated nothing since step 1: no gradient reaches the 6 parameters of Generator,
        which is called in every step, rank 0

    What to do: Build the optimizer last: after the head is replaced, after `copy.deepcopy`, `from_pretrained`,
    wrapping, and after it is decided what is frozen. Compute the loss of a generator from its output itself,
    without `detach()`.

    Thresholds: 4 updates in a row; 12 where the model of that optimizer is called, as its loss may begin some steps
    later: that is a warning, and becomes a note when a gradient comes. A program that moves gradients to copies of
    the parameters itself is left alone.
    """

    code = "TD-S011"
    title = "optimizer that updates nothing of the model"
    severity = "error"
    leads_to = ("TD-G003", "TD-G005", "TD-S007")
    observes = (EmptyUpdates, ParameterCoverage)
    kept = _Told

    def evaluate(self, process: ProcessDir, state: _Told, seen: EmptyUpdates | ParameterCoverage) -> Finding | None:
        if isinstance(seen, ParameterCoverage):
            state.said = state.said or bool(seen.forgotten)  # TD-S006 says more of those
            return None
        if seen.resolved:
            self._resolve(state, seen)
            return None
        if state.said:
            return None
        state.said = True
        if seen.called:
            state.found = self._make_unreached(process, seen)
        else:
            state.found = self._make_replaced(process, seen)
        return state.found

    def _resolve(self, state: _Told, seen: EmptyUpdates) -> None:
        """A gradient has come after all: its loss began later."""
        found = state.found
        if found is not None and found.severity == "warning" and found.first_step == seen.since:
            found.severity = "info"
            found.evidence.append(f"it has gradients from step {seen.step} on")

    def _make_unreached(self, process: ProcessDir, seen: EmptyUpdates) -> Finding:
        held = format_count(seen.held, "parameter")
        return self.make_finding(
            f"{seen.optimizer} has updated nothing since step {seen.since}: no gradient reaches the {held} of"
            f" {seen.root}, which is called in every step, {process.display_name}",
            severity="warning",
            first_step=seen.since,
            rank=process.rank,
            phase="optimizer",
            evidence=[
                f"no gradient in any of its {held} in {format_count(seen.updates, 'update')} in a row",
                f"{seen.root} was called with gradients on before each of them",
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
