"""What the probe `backward` sees."""

from typing import NotRequired, TypedDict

from tdbg.core.events import Number, doc
from tdbg.core.observations import Evidence, Observed, format_number
from tdbg.core.observations._module_look import ModuleLook
from tdbg.core.tables import format_count


class ModuleGradients(ModuleLook):
    """The gradients at the outputs of modules in one step."""

    PROBE = "backward"

    flow: list[Number | None] = doc(
        "L2 norm of the gradient at each module's output, unscaled; null where none arrived", factory=list
    )
    first: Number | None = doc("this norm at the first module that has one")
    last: Number | None = doc("this norm at the last module that has one")
    first_module: str = doc("path of that first module", "")
    last_module: str = doc("path of that last module", "")
    vanishes: bool | None = doc("true if the first norm is less than BACKWARD.ratio times the last")
    bad: list[str] | None = doc("modules whose gradient is not finite, at most eight")
    unreached: list[str] | None = doc("modules with trainable parameters that no gradient reached, at most eight")

    bad_count: int = 0  # for the line alone

    def text(self) -> str:
        """The flow at both ends, and the modules it did not reach."""
        text = f"gradient {format_number(self.last, 3)} at {self.last_module or 'the root'}"
        text += f", {format_number(self.first, 3)} at {self.first_module or 'the root'}; {self.bad_count} not finite"
        unreached = self.unreached or []
        if unreached:
            text += f"; no gradient at {', '.join(unreached[:3])}" + (" ..." if len(unreached) > 3 else "")
        return text


class GraphFault(TypedDict):
    """Something in the graph of a loss that cannot be meant.

    kind: twice (softmax or sigmoid), batch (softmax over the batch), probabilities (no logarithm), broadcast.
    """

    kind: str
    loss: str  # the operation that is given what it should not be
    given: str  # the operation before it
    shape: list[int]  # of what that puts out
    into: NotRequired[list[int]]  # the shape that broadcasting made of it
    certain: bool


class LossGraph(Observed):
    """What a loss is computed from, by the graph that it is sent backward with."""

    PROBE = "backward"
    PART = "LOSS"
    EVIDENCE = Evidence.LOCATED
    NUMBERED = True

    operations: list[str] = doc("the operations from the loss back to the model, at most eight", factory=list)
    classes: int | None = doc("number of classes, if the loss is a mean cross-entropy and nothing else")
    negated: bool | None = doc("true if that cross-entropy has its sign turned")
    faults: list[GraphFault] = doc(
        "kind (twice, batch, probabilities, broadcast); loss and given: the two operations; shape: output shape"
        " of given; into: that shape after broadcasting; certain: false if it may be intentional",
        factory=list,
    )

    @property
    def level(self) -> str:
        """W where something is wrong."""
        return "W" if self.faults else "D"

    def text(self) -> str:
        """The operations, and what is wrong with them."""
        text = f"the loss comes from {' <- '.join(self.operations) or 'unknown operations'}"
        sign = "negative " if self.negated else ""
        text += f"; {sign}cross-entropy over {format_count(self.classes, 'class')}" if self.classes else ""
        return text + "".join(f"; {fault['kind']}: {fault['loss']} <- {fault['given']}" for fault in self.faults)
