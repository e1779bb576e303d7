"""TD-S006: parameters that no optimizer updates, or two do."""

from tdbg.core.events import Finding
from tdbg.core.observations.optimizer import ParameterCoverage
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import counted, joined
from tdbg.rules import RULES, ObservingRule, Reported


@RULES.add
class LeftOut(ObservingRule[Reported]):
    """Says when trainable parameters of the model were forgotten in the optimizer, or stand in two at once.

    What it does: With the flag OPTIMIZER it compares the trainable parameters of the trained model with what the
    optimizers hold. It speaks when some are held by none although they get gradients and most others are held;
    and when two optimizers that both step in turn hold the same parameters.

    Why it matters: A layer that was added after the optimizer was built, or missed by a filter over names, keeps
    its random initial values for good, and backward computes gradients for nobody. Two optimizers on one
    parameter undo each other's momentum.

    Example:
        TD-S006 warning: 2 of 24 trainable parameters are in no parameter group: head2.weight, head2.bias, rank 0

    What to do: Build the optimizer after the model is complete, or `add_param_group` what came later. What is not
    to be trained should say so: `requires_grad_(False)` saves its share of backward.

    Thresholds: The sixth step at the earliest. Fewer than half of the trainable parameters: where most are left
    out, as when only a new head is trained, it is assumed to be intended, unless the optimizer holds stale tensors
    of the same shapes without gradients: then the layers were replaced after it was built.
    """

    code = "TD-S006"
    title = "parameters left out of the optimizer, or held twice"
    severity = "warning"
    leads_to = ("TD-G003", "TD-G005", "TD-S007")
    observes = (ParameterCoverage,)
    kept = Reported

    def evaluate(self, process: ProcessDir, state: Reported, seen: ParameterCoverage) -> Finding | None:
        if state.said or not (seen.forgotten or seen.twice):
            return None
        state.said = True
        names = (seen.left_out if seen.forgotten else seen.twice) or []
        if seen.forgotten:
            what = (
                f"{seen.left_out_count} of {counted(seen.trainable, 'trainable parameter')}"
                f" are in no parameter group: {joined(names, 3)}"
            )
        else:
            what = f"{counted(seen.twice_count or 0, 'parameter')} updated by two optimizers: {joined(names, 3)}"
        return self.make_finding(
            f"{what}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="optimizer",
            module=names[0].rpartition(".")[0] if names else "",
            evidence=[seen.text()],
            cause="the optimizer was built before the layer, or its parameter list leaves the layer out"
            if seen.forgotten
            else "two optimizers were given the same parameters",
            try_next="build the optimizer last, or call add_param_group; freeze parameters that must not train with requires_grad_(False)",
        )
