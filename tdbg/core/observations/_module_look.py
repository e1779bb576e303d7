"""What observations of a look at all modules, or at some of them in turn, have in common."""

from tdbg.core.events import doc
from tdbg.core.observations import Observed


class ModuleLook(Observed):
    """A look at the modules of a step; each list has an entry a module."""

    turn: int | None = doc(
        "which part of the modules this look was at; names are given once a turn. Absent: all of them"
    )
    turns: int | None = doc("how many parts there are")
    modules: list[str] | None = doc("paths of the modules, in the order of the forward pass; given when they change")
