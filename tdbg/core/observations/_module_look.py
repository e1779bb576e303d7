"""What observations of a look at all modules, or at some of them in turn, have in common."""

from tdbg.core.events import doc
from tdbg.core.observations import Observed


class ModuleLook(Observed):
    """A look at the modules of a step; each list has an entry a module."""

    turn: int | None = doc("number of the group of modules sampled in this step; absent if all modules were sampled")
    turns: int | None = doc("number of groups into which the modules are split")
    modules: list[str] | None = doc("paths of the modules, in the order of the forward pass; given when they change")
