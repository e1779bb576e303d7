"""Which probes a level has and a flag wakes."""

from collections.abc import Iterable, Mapping
from typing import Any

from tdbg.core.flags import FLAGS
from tdbg.probes import BASIC, OPENING, PROBES, Probe


class ProbeCatalog:
    """The probes of tdbg and of third parties, as the dispatcher asks for them."""

    @property
    def broken(self) -> Mapping[str, BaseException]:
        """Files that could not be imported."""
        return PROBES.broken

    def load_probes(self, name: str) -> list[type[Probe]]:
        """The probes in the file of this name."""
        return PROBES.load_from_files([name])

    def select_probes(self, level: str, flags: dict[str, Any]) -> list[type[Probe]]:
        """The probes of a level, and those that flags wake; others are not imported at the default level (1 to 4 ms each)."""
        woken = {flag.probe for flag in FLAGS if flag.probe and flags.get(flag.name)}
        if level == "basic":  # a flag's probe stands in the file of its name
            ours = PROBES.load_from_files([*BASIC, *_list_files(woken)])
            companions = {name for probe in ours for name in probe.companions} - {probe.name for probe in ours}
            ours += PROBES.load_from_files(_list_files(companions))
            # Others read what these have put into a step's record, whichever of them was loaded first.
            places = {name: place for place, name in enumerate(BASIC)}
            ours.sort(key=lambda probe: places.get(probe.__module__.rpartition(".")[2], len(places)))
            return [*ours, *(probe for probe in PROBES.list_third_party() if level in probe.levels)]
        strangers = PROBES.list_third_party()
        own = [probe for probe in PROBES if probe not in strangers]
        woken |= {name for probe in own if probe.name in woken for name in probe.companions}
        ours = [probe for probe in own if level in probe.levels or probe.name in woken]
        return [*ours, *(probe for probe in strangers if level in probe.levels)]

    def load_inspection_probes(self) -> list[type[Probe]]:
        """The probes of the opening inspection."""
        return PROBES.load_from_files(OPENING)


def _list_files(probes: Iterable[str]) -> list[str]:
    return sorted(name.replace("-", "_") for name in probes)


CATALOG = ProbeCatalog()
