"""What the probe `optimizer` sees."""

from typing import Any

from tdbg.core.events import Number, as_float, doc
from tdbg.core.observations import Evidence, Observed, format_number
from tdbg.core.observations._lasting import Lasting, lasting_row
from tdbg.core.tables import format_count

RESOLVED = {
    "held": "an optimizer now holds the parameters that parameters() does not reach",
    "changed": "the program itself updates the parameters that parameters() does not reach",
    "unfrozen held": "an optimizer now holds the parameters that were unfrozen",
}
Group = dict[str, Any]  # hyperparameters by name, whatever the optimizer keeps; parameters; elements

# A learning rate below this part of the highest one changes hardly any weight in float32. A cosine that ends at zero is below it
# for its last 6 steps of a million.
NO_RATE = 1e-10


class ParameterGroups(Observed):
    """The groups of an optimizer, at its first look and whenever a hyperparameter or a parameter count changes."""

    PROBE = "optimizer"
    PART = "GROUPS"
    EVIDENCE = Evidence.LOCATED

    optimizer: str = doc("class of the optimizer", "")
    groups: list[Group] = doc(
        "hyperparameters, parameters, elements, trainable parameters and the first names of each group, at most eight",
        factory=list,
    )
    group_count: int = doc("number of groups", 0)
    parameters: int = doc("parameters it holds", 0)
    elements: int = doc("number of elements of these parameters", 0)
    frozen: int = doc("number of these parameters that do not require a gradient", 0)
    decayed_vectors: int = doc("number of biases and scales (one-dimensional parameters) with weight decay", 0)
    changed: list[str] | None = doc("hyperparameters and parameter counts that changed since the last report")

    def text(self) -> str:
        """Each group with its rate and decay, and what changed."""
        said = "; ".join(map(_format_group, self.groups[:3])) + (" ..." if len(self.groups) > 3 else "")
        text = f"{self.optimizer}: {format_count(self.parameters, 'parameter')} in {format_count(self.group_count, 'group')}: {said}"
        return text + (f"; changed: {', '.join(self.changed)}" if self.changed else "")


class ParameterCoverage(Observed):
    """Trainable parameters that no optimizer holds, and those that two of them update."""

    PROBE = "optimizer"
    PART = "COVERAGE"
    EVIDENCE = Evidence.LOCATED

    trainable: int = doc("trainable parameters of the model", 0)
    left_out: list[str] | None = doc("trainable parameters of the model that no optimizer holds, at most eight")
    left_out_count: int = doc("number of these parameters", 0)
    left_out_graded: int = doc("number of these parameters that got a gradient", 0)
    forgotten: bool | None = doc("true if they look forgotten: they get gradients, and an optimizer holds most others")
    twice: list[str] | None = doc("parameters that two optimizers update, at most eight")
    twice_count: int | None = doc("number of parameters that two optimizers update")
    optimizers: list[str] | None = doc("the optimizers that update them")
    unregistered: list[str] | None = doc(
        "parameters with gradients in plain lists, tuples, sets or dicts of the model, which parameters() does not"
        " reach and nothing updates, at most eight"
    )
    unregistered_count: int | None = doc("number of these unregistered parameters")
    containers: list[str] | None = doc("where the unregistered parameters are: Class.attribute (list), at most eight")
    unfrozen: list[str] | None = doc(
        "parameters that were frozen earlier in the run and get gradients now, and that nothing updates, at most eight"
    )
    unfrozen_count: int | None = doc("number of these unfrozen parameters")
    unfrozen_since: int | None = doc("the first step in which their gradients were seen")
    resolved: str | None = doc(
        "why those reported before are no fault: of unregistered ones held (now by an optimizer) or changed (the program"
        " updates them itself), of unfrozen ones unfrozen held"
    )

    def text(self) -> str:
        """How many are left out, how many held twice, and how many are out of reach."""
        if self.resolved:
            return RESOLVED.get(self.resolved, self.resolved)
        parts = []
        if self.left_out or not (self.unregistered or self.twice or self.unfrozen):
            more = " ..." if self.left_out_count > 1 else ""
            names = (
                f" ({self.left_out[0]}{more}), {self.left_out_graded} of them get gradients" if self.left_out else ""
            )
            parts.append(
                f"{self.left_out_count} of {format_count(self.trainable, 'trainable parameter', 'is')} in no parameter group{names}"
            )
        if self.unregistered:
            where = ", ".join(self.containers or [])
            parts.append(
                f"{format_count(self.unregistered_count or 0, 'parameter')} with gradients in {where}, which parameters() does"
                " not reach"
            )
        if self.unfrozen:
            parts.append(
                f"{format_count(self.unfrozen_count or 0, 'parameter')} ({self.unfrozen[0]}) frozen before, with"
                f" gradients since step {self.unfrozen_since}, in no parameter group"
            )
        if self.twice:
            parts.append(
                f"{format_count(self.twice_count or 0, 'parameter', 'is')} updated by two optimizers ({self.twice[0]})"
            )
        return "; ".join(parts)


class ForgottenModel(Observed):
    """A model separate from the trained ones that gets gradients, is in no optimizer, and that nothing changes."""

    PROBE = "optimizer"
    PART = "SEPARATE"
    EVIDENCE = Evidence.LOCATED
    LEVEL = "I"
    NUMBERED = True

    root: str = doc("class of that model", "")
    number: int = doc("which such model of the run it is, from 0", 0)
    trained: list[str] = doc("classes of the models that optimizers update, at most eight", factory=list)
    since: int = doc("the first step in which its gradients were seen", 0)
    graded: int = doc("number of its parameters that have a gradient", 0)
    names: list[str] = doc("names of the first of these parameters, at most eight", factory=list)
    shape: list[int] = doc("shape of the first of them", factory=list)

    def text(self) -> str:
        """Whose gradients nobody uses."""
        example = f" ({self.names[0]} of shape {self.shape})" if self.names else ""
        whose = format_count(self.graded, "parameter") + f" of {self.root}" + example
        return f"{whose}: gradients since step {self.since}, in no parameter group"


class EmptyUpdates(Observed):
    """Updates in which nothing that the optimizer holds has a gradient, while other parameters have some."""

    PROBE = "optimizer"
    PART = "EMPTY"
    EVIDENCE = Evidence.LOCATED
    LEVEL = "W"

    optimizer: str = doc("class of the optimizer", "")
    root: str = doc("class of the model that has gradients; if `called`: of the optimizer's own model", "")
    since: int = doc("first step whose update changed nothing", 0)
    updates: int = doc("number of consecutive updates that were checked", 0)
    held: int = doc("parameters that the optimizer holds", 0)
    frozen: int = doc("number of these that do not require a gradient", 0)
    strangers: int = doc("number of these that are not in that model", 0)
    graded: int = doc("number of parameters of that model that have a gradient and no optimizer; 0: not counted", 0)
    names: list[str] = doc("names of the first of these parameters, at most eight", factory=list)
    called: bool | None = doc(
        "true if it holds the whole of that model, which was called with gradients enabled before each of these updates"
    )
    number: int | None = doc("if `called`: which such optimizer of the run it is, from 0")

    @property
    def level(self) -> str:
        """I where the loss of that model may begin later."""
        return "I" if self.called else self.LEVEL

    def text(self) -> str:
        """What it holds, and what has gradients."""
        if self.called:
            return (
                f"{self.optimizer} has updated nothing since step {self.since}: {self.root} was called with gradients enabled,"
                f" and none reached the {format_count(self.held, 'parameter')} of the optimizer"
            )
        text = f"{self.optimizer} has updated nothing since step {self.since}: of its {format_count(self.held, 'parameter')},"
        text += f" {self.frozen} are frozen and {self.strangers} are not in {self.root}"
        return text + (f", whose {', '.join(self.names[:3])} have gradients" if self.names else "")


class UpdateSizes(Observed):
    """How far an update moved the sampled weights, and the parameters that it passed over."""

    PROBE = "optimizer"
    EVIDENCE = Evidence.FROM_WEIGHTS

    optimizer: str = doc("class of the optimizer", "")
    sampled: int = doc("parameters in the sample", 0)
    ratio_median: Number | None = doc("median of |update| / |weight| over the sampled weights")
    ratio_largest: Number | None = doc("the largest ratio")
    ratio_largest_name: str | None = doc("name of the parameter with the largest ratio")
    ratio_smallest: Number | None = doc("the smallest ratio")
    ratio_smallest_name: str | None = doc("name of the parameter with the smallest ratio")
    unmoved_share: Number | None = doc(
        "share of the sampled elements with a gradient above rounding noise that did not change, 0 to 1"
    )
    without_gradient: list[str] | None = doc("trainable parameters whose grad is None, at most eight")
    without_gradient_count: int | None = doc("number of trainable parameters whose grad is None")
    state_mb: float | None = doc("size of the optimizer's state, measured every 64 sampled steps")
    lasting: dict[str, Lasting] | None = doc(
        "states that persist: none or stuck -> {names, count, looks, since (step), dtype, lr}; none also has other, the"
        " class of a model with the same shapes, whose gradients no optimizer uses"
    )

    compared: bool = False  # weights before and after: for the line alone

    def get_lasting_row(self, kind: str) -> Lasting | None:
        """Who has been in this state in consecutive sampled steps."""
        return lasting_row(self.lasting, kind)

    def text(self) -> str:
        """The ratios, what did not move, what has no gradient, and the state."""
        text = self.optimizer + self._format_ratios()
        names = self.without_gradient
        if names:
            text += f"; {self.without_gradient_count} without a gradient ({names[0]}{' ...' if names[1:] else ''})"
        return text + (f"; state {self.state_mb:.4g} MB" if self.state_mb is not None else "")

    def _format_ratios(self) -> str:
        if self.ratio_median is None:
            return ": no weights to compare" if self.compared else ""
        text = f": update/weight {format_number(self.ratio_median, 2)}, from {format_number(self.ratio_smallest, 2)}"
        text += f" ({self.ratio_smallest_name}) to {format_number(self.ratio_largest, 2)} ({self.ratio_largest_name})"
        unmoved = as_float(self.unmoved_share)
        return text + (f"; {100 * unmoved:.3g} % of the sampled elements did not change" if unmoved else "")


def _format_group(group: Group) -> str:
    texts = [f"{name} {group[name]:.4g}" for name in ("lr", "weight_decay") if isinstance(group.get(name), int | float)]
    return f"{group.get('parameters', 0)} with {', '.join(texts) or 'no learning rate'}"
