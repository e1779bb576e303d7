"""TD-G003: trainable parameters get no gradient."""

from collections.abc import Iterable

from tdbg.core.events import Event, Finding, Observation, Step
from tdbg.core.observations._lasting import Lasting
from tdbg.core.observations.gradient_report import GradientNorms
from tdbg.core.observations.model_build import UngradedParameters
from tdbg.core.observations.optimizer import UpdateSizes
from tdbg.core.rule_base import Needs
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, Rule, add_grade

KINDS = {
    "none": (
        "got no gradient",
        "the loss does not depend on them: an unused branch, detach(), no_grad, or a forward pass that skips them",
        "use them in the loss, or leave them out of the optimizer (requires_grad_(False))",
    ),
    "zero": (
        "got a gradient of zeros",
        "dead units, a mask or a clamp that stops every gradient, an input of zeros, or a part of the loss with a weight of 0",
        "check the activations with --flag FORWARD; look for clamp, where, round or argmax after them",
    ),
}
NOUNS = {"none": "parameter", "zero": "weight matrix"}
NO_LOSS = (
    "the loss is exactly 0, so all gradients are 0: a satisfied margin, a clamp, or a mask that removes every term",
    "print the terms of the loss; if 0 is expected, training is finished",
)
ELSEWHERE = (
    "the optimizer holds parameters of another instance: the {other} that is called has gradients that no optimizer"
    " uses, in parameters of the same shapes",
    "build the optimizer from the model that is called: after the last copy.deepcopy, from_pretrained or wrapping",
)


@RULES.add
class NoGradient(Rule):
    """Says when parameters that the optimizer holds get no gradient, or one of zeros, for a long time.

    What it does: In the opening inspection and its later looks, and at any step with the flags GRADIENTS or
    OPTIMIZER, it follows the trainable parameters of the optimizer whose ``grad`` is None, and the weight
    matrices whose gradient is zero all over. It speaks when one has been so in 10 consecutive sampled steps,
    over at least 12 steps. Frozen parameters do not count, nor do those that TD-C008 names already. Where
    another model gets gradients that no optimizer uses, and its parameters have the same shapes, it says that
    the optimizer was built on another instance.

    Why it matters: Optimizers pass over such parameters without a word. A branch that was never wired up,
    or was detached, looks like a model that learns a little worse than it should. Under DDP it ends in an
    error.

    Example:
        TD-G003 warning: 2 parameters got no gradient in 10 sampled steps: aux.weight, aux.bias, rank 0

    What to do: Find out where the way from the loss ends: `detach()`, `no_grad`, `argmax`, an output the
    loss does not use. If it is meant, freeze the parameters: that saves their optimizer state as well.
    Where the optimizer holds another instance, build it from the model that is called.

    Thresholds: 10 sampled steps, over at least 12 steps: heads that take turns, experts that are not
    chosen in every step and adapters that begin at zero get their gradient within that time.

    """

    code = "TD-G003"
    title = "parameters without a gradient"
    severity = "warning"
    leads_to = ("TD-G005",)  # one gap, seen at the parameters and at the outputs of their modules
    listens = (Observation, Step)
    observes = (UngradedParameters, GradientNorms, UpdateSizes)
    needs = Needs(observations=(GradientNorms, UpdateSizes))

    def __init__(self) -> None:
        self._given: dict[str, list[Finding]] = {kind: [] for kind in KINDS}
        self._reported: set[tuple[str, str]] = set()
        self._has_loss: dict[str, bool] = {}  # process -> its last loss on record was not 0
        self._unused: dict[str, tuple[set[str], int]] = {}  # names and count of what TD-C008 tells of, by process

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if isinstance(event, Step) and event.phase == "train" and event.loss is not None:
            self._has_loss[process.label] = event.loss != 0.0
        if not isinstance(event, Observation):
            return ()
        unused = UngradedParameters.from_event(event)
        if unused is not None:
            self._unused[process.label] = set(unused.unused), unused.parameter_count
        seen = GradientNorms.from_event(event) or UpdateSizes.from_event(event)
        if seen is None:
            return ()
        found: list[Finding] = []
        for kind in KINDS:
            lasting = seen.get_lasting_row(kind)
            if kind == "none" and lasting and self._is_reported(process, lasting):
                continue
            if lasting and (process.label, kind) not in self._reported:
                self._reported.add((process.label, kind))
                new = self._make_gap_finding(process, seen.step, kind, lasting)
                found += self.report_from(process, self._given[kind], add_grade(new, seen))
        return found

    def _is_reported(self, process: ProcessDir, lasting: Lasting) -> bool:
        """True if TD-C008 says the same of the same parameters; another instance of the model is more than it knows."""
        names, count = self._unused.get(process.label, (set(), 0))
        return not lasting.get("other") and lasting["count"] == count and names == set(lasting["names"])

    def _make_gap_finding(self, process: ProcessDir, step: int, kind: str, lasting: Lasting) -> Finding:
        what, cause, try_next = KINDS[kind]
        names, other = lasting["names"], lasting.get("other")
        if other:
            cause, try_next = ELSEWHERE[0].format(other=other), ELSEWHERE[1]
        elif kind == "zero" and not self._has_loss.get(process.label, True):
            cause, try_next = NO_LOSS
        return self.make_finding(
            f"{format_count(lasting['count'], NOUNS[kind])} {what} in {format_count(lasting['looks'], 'sampled step')}:"
            f" {join_limited(names, 3)}, {process.display_name}",
            first_step=lasting["since"],
            rank=process.rank,
            phase="gradient",
            module=names[0].rpartition(".")[0],
            evidence=[f"from step {lasting['since']} to {step}: {join_limited(names, 8)}"],
            cause=cause,
            try_next=try_next,
        )
