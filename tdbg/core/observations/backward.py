"""What the probe `backward` sees."""

from tdbg.core.events import Number, doc
from tdbg.core.observations import format_number
from tdbg.core.observations._module_look import ModuleLook


class ModuleGradients(ModuleLook):
    """The gradients at the outputs of modules in one step."""

    PROBE = "backward"

    flow: list[Number | None] = doc(
        "L2 norm of the gradient at each module's output, unscaled; null where none arrived", factory=list
    )
    first: Number | None = doc("the flow at the first module that has one")
    last: Number | None = doc("the flow at the last one")
    first_module: str = doc("the first module", "")
    last_module: str = doc("the last one", "")
    vanishes: bool | None = doc("true where the first flow is less than BACKWARD.ratio of the last")
    bad: list[str] | None = doc("modules whose gradient is not finite, at most eight")
    unreached: list[str] | None = doc("modules with trainable parameters that no gradient reached, at most eight")

    bad_count: int = 0  # for the line alone

    def text(self) -> str:
        """The flow at both ends, and the modules it did not reach."""
        text = f"gradient {format_number(self.last, 3)} at {self.last_module or 'the root'}"
        text += f", {format_number(self.first, 3)} at {self.first_module or 'the root'}; {self.bad_count} not finite"
        unreached = self.unreached or []
        if unreached:
            text += f"; none at {', '.join(unreached[:3])}" + (" ..." if len(unreached) > 3 else "")
        return text
