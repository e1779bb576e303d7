"""Looks in a row, module by module, where a look may hold only those whose turn it is."""

from collections.abc import Iterable

from tdbg.core.observations._module_look import ModuleLook


class Streaks:
    """In how many consecutive sampled steps a module was found in some state, of the looks that held it."""

    def __init__(self) -> None:
        self.names: dict[int, list[str]] = {}  # turn -> the modules of its looks
        self.looks: dict[str, int] = {}
        self.since: dict[str, int] = {}  # the step of the first of them

    def add_sample(self, look: ModuleLook, found: Iterable[str]) -> None:
        """One look: ``found`` are the modules in that state."""
        turn = look.turn or 0
        self.names[turn] = look.modules if look.modules is not None else self.names.get(turn, [])
        held = set(found)
        for name in held.union(self.names[turn]):
            if name not in held:
                self.looks.pop(name, None)
            elif self.looks.setdefault(name, 0) == 0:
                self.since[name] = look.step
            if name in held:
                self.looks[name] += 1

    def find_lasting(self, count: int, among: Iterable[str]) -> list[str]:
        """Those found at least ``count`` times in a row."""
        return [name for name in among if self.looks.get(name, 0) >= count]
