"""TD-C008: parameters that are to be trained and cannot learn."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.model_build import StuckAtZero, UngradedParameters
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule


@RULES.add
class UnusedParameters(KindsRule):
    """Says which trainable parameters no forward pass uses, and which weights are stuck at zero.

    What it does: With the flag MODEL_BUILD (or at level extreme) it follows the gradients of the optimizer's
    parameters over the first MODEL_BUILD.unused_steps updates. It speaks of those that never had one, unless none
    had (then they are kept elsewhere), and of weight matrices that began at zero, are still zero and whose gradient
    is zero too. A last layer that starts at zero moves with the first update and is left alone.

    Why it matters: A layer that was built and never called looks trained in every listing, and is random in
    every checkpoint; under DDP it ends the run. A matrix between two zeros never leaves zero.

    Example:
        TD-C008 warning: 2 of 14 trainable parameters had no gradient in 8 updates: aux.weight, aux.bias, rank 0

    What to do: Call the module, remove it, or freeze it (`requires_grad_(False)`). With branches that are taken
    seldom, raise the bound: `--threshold MODEL_BUILD.unused_steps=200`.

    Thresholds: MODEL_BUILD.unused_steps, 8 updates.
    """

    code = "TD-C008"
    title = "parameters that cannot learn"
    severity = "warning"
    leads_to = ("TD-G003", "TD-G005", "TD-S007")
    observes = (UngradedParameters, StuckAtZero)

    def evaluate(self, process: ProcessDir, seen: UngradedParameters | StuckAtZero) -> Iterable[tuple[str, Finding]]:
        if isinstance(seen, UngradedParameters):
            return [("unused", self._make_unused_finding(process, seen))]
        return [("stuck", self._make_stuck_finding(process, seen))]

    def _make_unused_finding(self, process: ProcessDir, seen: UngradedParameters) -> Finding:
        names, count, updates = seen.unused, seen.parameter_count, seen.updates
        return self.make_finding(
            f"{format_count(count, 'trainable parameter')} had no gradient in {format_count(updates, 'update')}:"
            f" {join_limited(names, 3, count)}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="backward",
            module=names[0].rpartition(".")[0] if names else "",
            evidence=[f"the optimizer holds them: {join_limited(names, 8)}"],
            cause="the module is built and never called, or its output does not reach the loss",
            try_next="call it, remove it or freeze it; raise MODEL_BUILD.unused_steps if it is used seldom",
        )

    def _make_stuck_finding(self, process: ProcessDir, seen: StuckAtZero) -> Finding:
        names = seen.stuck
        is_or_are = "is" if len(names) == 1 else "are"
        return self.make_finding(
            f"{join_limited(names, 3)} {is_or_are} stuck at zero, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="backward",
            module=names[0].rpartition(".")[0] if names else "",
            evidence=[
                f"all elements zero since they were built, and a gradient of zero after"
                f" {format_count(seen.updates, 'update')}: {join_limited(names, 8)}"
            ],
            cause="two layers in a row that start at zero: neither passes a gradient to the other",
            try_next="start one of the two with random values",
        )
