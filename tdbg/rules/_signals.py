"""What a run was watched by: which rules could see what they are there for, and what would arm the others."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from tdbg.core.flags import FLAGS, LEVELS, covers
from tdbg.core.rule_base import Unarmed
from tdbg.core.tables import format_count

LOSSES = "loss"  # diagnostics that the program calls: every flag under LOSS. wakes one


class Signals(NamedTuple):
    """What could be seen of a run."""

    level: str = "basic"  # the highest it had
    flags: frozenset[str] = frozenset()  # those that were on
    probes: frozenset[str] = frozenset()  # those whose observations came
    unavailable: Mapping[str, str] = MappingProxyType({})  # probe -> why it saw nothing, or was switched off
    has_trained: bool = True
    ranks: int = 1

    def is_watching(self, probe: str) -> bool:
        """True if the probe told something, or was there to tell it."""
        if probe in self.probes:
            return True
        return probe not in self.unavailable and _find_needed(probe).is_met(self)

    def find_unarmed(self, probes: Sequence[str], ranks: int, *, needs_training: bool) -> Unarmed | None:
        """Why a rule that needs this has no signal in the run: level, ranks, flag, probe or phase; None if it has one."""
        if self.level == "off":
            return Unarmed("level off", level="basic")
        if ranks > self.ranks:
            return Unarmed(f"needs {format_count(ranks, 'rank')}")
        if probes:
            return self.find_unwatched(probes)
        return Unarmed("no training step was recorded") if needs_training and not self.has_trained else None

    def find_unwatched(self, probes: Iterable[str]) -> Unarmed | None:
        """What it takes for one of these probes to watch; None if one does."""
        if any(map(self.is_watching, probes)):
            return None
        said = next((self.unavailable[probe] for probe in probes if probe in self.unavailable), "")
        if said:
            return Unarmed(said)
        nearest = min(map(_find_needed, probes), key=lambda needed: LEVELS.index(needed.level or LEVELS[-1]))
        level = f" or --level {nearest.level}" if nearest.level else ""
        return Unarmed(f"needs --flag {nearest.flags[0]}{level}", nearest.flags[0], nearest.level)


class _Needed(NamedTuple):
    """What wakes a probe: one of several flags, or a level."""

    flags: tuple[str, ...]
    level: str

    def is_met(self, signals: Signals) -> bool:
        if not self.flags:  # a probe that no flag wakes: nothing is known against it
            return True
        if any(covers(flag, on) for flag in self.flags for on in signals.flags):
            return True
        return bool(self.level) and LEVELS.index(signals.level) >= LEVELS.index(self.level)


def _find_needed(probe: str) -> _Needed:
    if probe == LOSSES:
        return _Needed(("LOSS",), "")
    flags = [flag for flag in FLAGS if flag.probe == probe]
    return _Needed(tuple(flag.name for flag in flags), next((flag.level for flag in flags if flag.level), ""))
