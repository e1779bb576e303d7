"""TD-S006: parameters that no optimizer updates, or two do."""

from collections.abc import Iterable, Iterator

from tdbg.core.events import Finding
from tdbg.core.observations.optimizer import ForgottenModel, ParameterCoverage
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, add_grade, overwrite_finding
from tdbg.rules._kinds import KindsRule

SEPARATE = "separate"
CAUSES = {
    "forgotten": "the optimizer was built before the layer, or its parameter list leaves the layer out",
    "unfrozen": "requires_grad_(True) alone trains nothing: the optimizer was built without these parameters",
    "twice": "two optimizers were given the same parameters",
    SEPARATE: "this module is separate from the model, so model.parameters() does not include it; or it is not meant to"
    " be trained",
    "unregistered": "parameters() does not reach layers in a plain list, tuple, set or dict, nor do state_dict() and to()",
}
TRY = {
    "unfrozen": "call optimizer.add_param_group for them when they are unfrozen, or build the optimizer with all parameters",
    "forgotten": "build the optimizer last, or call add_param_group; freeze parameters that must not train with requires_grad_(False)",
    SEPARATE: "if it is to stay as it is, freeze it with requires_grad_(False); else add its parameters() to an optimizer",
    "unregistered": "hold them in nn.ModuleList, nn.ModuleDict or nn.ParameterList; freeze parameters that must not"
    " train with requires_grad_(False)",
}
HELD_LATER = "an optimizer held them only from step {step} on"
RESOLVED = {"held": HELD_LATER, "changed": "the program updates them itself", "unfrozen held": HELD_LATER}


@RULES.add
class LeftOut(KindsRule):
    """Says when trainable parameters of the model were forgotten in the optimizer, or stand in two at once.

    What it does: With the flag OPTIMIZER, or in the opening inspection and its later looks, it compares the
    trainable parameters of the trained model with what the optimizers hold. It speaks when some are held by
    none although they get gradients and most others are held; when layers in a plain Python list, tuple, set or
    dict of the model get gradients and nothing updates them; and when two optimizers that both step in turn
    hold the same parameters. Parameters that were frozen earlier in the run and get gradients now are meant to
    train, however many they are: it speaks when no optimizer holds them three steps later and nothing changes them.
    As a note, since it may be intended, it names a separate model (a value network, a projector, a loss with
    weights) that is called in training mode, gets gradients, is in no optimizer and does not change. One that an
    optimizer held earlier, or that was seen being loaded by `load_state_dict`, is left alone.

    Why it matters: A layer that was added after the optimizer was built, missed by a filter over names, or held in
    a plain list, which `parameters()` does not reach, keeps its random initial values for good, and backward
    computes gradients for nobody. Two optimizers on one parameter undo each other's momentum.

    Example:
        TD-S006 warning: 2 of 24 trainable parameters are in no parameter group: head2.weight, head2.bias, rank 0
        TD-S006 warning: 6 parameters in Net.layers (list) are in no parameter group: layers[0].weight,
        layers[0].bias, layers[1].weight, ..., rank 0
        TD-S006 warning: 12 unfrozen parameters are in no optimizer; gradients seen from step 201:
        backbone.0.weight, backbone.0.bias, backbone.2.weight, ..., rank 0
        TD-S006 info: 4 parameters of ValueNet, called beside Policy, are in no optimizer: net.0.weight,
        net.0.bias, net.2.weight, ..., rank 0

    What to do: Build the optimizer after the model is complete, or `add_param_group` what came later. Hold layers
    in `nn.ModuleList` or `nn.ModuleDict`, parameters in `nn.ParameterList`: what is in a plain list is not saved
    with the model either. What is not to be trained should say so: `requires_grad_(False)` saves its share of
    backward.

    Thresholds: The sixth step at the earliest. Fewer than half of the trainable parameters: where most are left
    out, as when only a new head is trained, it is assumed to be intended, unless the optimizer holds stale tensors
    of the same shapes without gradients: then the layers were replaced after it was built. Of layers in a list, and
    of a separate model, any share counts, once their gradients have been there for 5 steps and their values have
    stayed. A listed layer in eval mode inside a model in train mode is left alone, and so is a separate model in
    eval mode. If an optimizer holds them later, or the program updates layers of a
    list itself, the finding becomes a note. So does that of unfrozen parameters once optimizers hold all of them.
    """

    code = "TD-S006"
    title = "parameters left out of the optimizer, or held twice"
    severity = "warning"
    leads_to = ("TD-G003", "TD-G005", "TD-S007")
    observes = (ParameterCoverage, ForgottenModel)

    def evaluate(self, process: ProcessDir, seen: ParameterCoverage | ForgottenModel) -> Iterable[tuple[str, Finding]]:
        if isinstance(seen, ForgottenModel):
            yield from self._evaluate_separate(process, seen)
            return
        if seen.resolved in RESOLVED:
            self._resolve(process, seen)
        for kind, where, names, count in _list_faults(seen):
            is_news = self.is_news(process, kind)
            if not is_news and not (kind == "unfrozen" and self._is_resolved(process, kind)):
                continue
            found = self._make_kind(process, kind, f"{where}: {join_limited(names, 3, count)}", names, seen.text())
            found.first_step = (seen.unfrozen_since if kind == "unfrozen" else None) or seen.step
            if is_news:
                yield kind, found
            else:  # others than those that an optimizer holds by now
                overwrite_finding(self._given[kind][0], add_grade(found, seen))

    def _evaluate_separate(self, process: ProcessDir, seen: ForgottenModel) -> Iterable[tuple[str, Finding]]:
        kind = f"{SEPARATE} {seen.number}"  # a program may have several
        if self.is_news(process, kind):
            held = format_count(seen.graded, "parameter")
            beside = f", called beside {join_limited(seen.trained, 2)}," if seen.trained else ""
            verb = "is" if seen.graded == 1 else "are"
            where = f"{held} of {seen.root}{beside} {verb} in no optimizer"
            names = join_limited(seen.names, 3, seen.graded)
            found = self._make_kind(process, SEPARATE, f"{where}: {names}", seen.names, seen.text())
            found.first_step, found.severity = seen.since, "info"
            yield kind, found

    def _make_kind(self, process: ProcessDir, kind: str, what: str, names: list[str], evidence: str) -> Finding:
        return self.make_finding(
            f"{what}, {process.display_name}",
            rank=process.rank,
            phase="optimizer",
            module=names[0].rpartition(".")[0] if names else "",
            evidence=[evidence],
            cause=CAUSES[kind],
            try_next=TRY.get(kind, TRY["forgotten"]),
        )

    def _is_resolved(self, process: ProcessDir, kind: str) -> bool:
        """True if what this process told has become a note."""
        first = self._given[kind][0] if self._given[kind] else None
        return first is not None and first.severity == "info" and self._is_origin(first, process)

    def _resolve(self, process: ProcessDir, seen: ParameterCoverage) -> None:
        """What was found of the same rank is a note after all, and says why."""
        kind = "unfrozen" if seen.resolved == "unfrozen held" else "unregistered"
        for finding in self._given[kind]:
            if finding.rank == process.rank and finding.severity != "info":
                finding.severity = "info"
                finding.evidence.append(RESOLVED[seen.resolved or ""].format(step=seen.step))


def _list_faults(seen: ParameterCoverage) -> Iterator[tuple[str, str, list[str], int]]:
    """Kind, what is wrong, names and how many there are."""
    if seen.forgotten:
        where = (
            f"{seen.left_out_count} of {format_count(seen.trainable, 'trainable parameter')} are in no parameter group"
        )
        yield "forgotten", where, seen.left_out or [], seen.left_out_count
    if seen.unfrozen:
        count = seen.unfrozen_count or 0
        held = format_count(count, "unfrozen parameter", "is")
        where = f"{held} in no optimizer; gradients seen from step {seen.unfrozen_since}"
        yield "unfrozen", where, seen.unfrozen, count
    if seen.unregistered:
        count = seen.unregistered_count or 0
        verb = "is" if count == 1 else "are"
        where = f"{format_count(count, 'parameter')} in {join_limited(seen.containers or [], 2)} {verb} in no parameter group"
        yield "unregistered", where, seen.unregistered, count
    if seen.twice:
        count = seen.twice_count or 0
        yield "twice", f"{format_count(count, 'parameter')} updated by two optimizers", seen.twice, count
