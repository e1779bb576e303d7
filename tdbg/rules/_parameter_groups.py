"""Which parameters the learning rates of a step's record belong to, as far as that is on record."""

from collections.abc import Collection, Sequence

from tdbg.core.observations.optimizer import Group, ParameterGroups
from tdbg.core.tables import format_count, join_limited
from tdbg.rules.view import to_finite

MAX_NAMES = 3


class KnownGroups:
    """The groups of all optimizers, of which a step's record lists the rates of one."""

    def __init__(self) -> None:
        self._seen: list[ParameterGroups] = []

    def add(self, seen: ParameterGroups) -> None:
        """An optimizer at its first look; or later, when something has changed."""
        same = next((at for at, one in enumerate(self._seen) if _is_same_optimizer(one, seen)), None)
        if same is None:
            self._seen.append(seen)
        else:
            self._seen[same] = seen

    def find_groups(self, first_rates: Sequence[float | None]) -> ParameterGroups | None:
        """The groups whose rates were first recorded as these; None where it could be those of two optimizers."""
        found = self._list_candidates(len(first_rates))
        if len(found) > 1:
            found = [seen for seen in found if _has_rates(seen, first_rates)]
        return found[0] if len(found) == 1 else None

    def is_trained(self, index: int, count: int) -> bool | None:
        """False if an optimizer with ``count`` groups has no trainable parameters in this one; None if it is not listed."""
        groups = [get_group(seen, index) for seen in self._list_candidates(count)]
        if not groups:
            return True
        listed = [group for group in groups if group is not None]
        return all(map(get_trainable_count, listed)) if listed else None

    def _list_candidates(self, count: int) -> list[ParameterGroups]:
        return [seen for seen in self._seen if seen.group_count == count]


def get_group(known: ParameterGroups | None, index: int) -> Group | None:
    """What is on record of a group; the first eight are."""
    return known.groups[index] if known is not None and index < len(known.groups) else None


def format_groups(known: ParameterGroups | None, indices: Sequence[int]) -> str:
    """``group 1 of AdamW``, or ``groups 1, 2 of AdamW``."""
    word = "group" if len(indices) == 1 else "groups"
    return f"{word} {join_limited(indices)}" + (f" of {known.optimizer}" if known is not None else "")


def format_members(known: ParameterGroups | None, indices: Collection[int]) -> str:
    """The first trainable parameters of these groups, and how many more there are; empty where they are not on record."""
    groups = [group for index in indices if (group := get_group(known, index)) is not None]
    names = [str(name) for group in groups for name in group.get("names", ())]
    count = sum(get_trainable_count(group) for group in groups)
    return join_limited(names, MAX_NAMES, count) if names else format_count(count, "parameter") if count else ""


def get_trainable_count(group: Group) -> int:
    """How many of its parameters want a gradient."""
    count = to_finite(group.get("trainable"))
    return int(count) if count is not None else 0


def _is_same_optimizer(one: ParameterGroups, other: ParameterGroups) -> bool:
    """True for two looks at an optimizer, between which parameters may have been frozen."""
    sizes = [(seen.optimizer, seen.group_count, seen.parameters, seen.elements) for seen in (one, other)]
    names = [(_get_names(a), _get_names(b)) for a, b in zip(one.groups, other.groups, strict=False)]
    return sizes[0] == sizes[1] and all(not a or not b or a & b for a, b in names)


def _get_names(group: Group) -> set[str]:
    return set(map(str, group.get("names", ())))


def _has_rates(seen: ParameterGroups, rates: Sequence[float | None]) -> bool:
    return all(group.get("lr") == rate for group, rate in zip(seen.groups, rates, strict=False))
