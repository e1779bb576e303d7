"""Looks of several ranks at the same thing, put side by side once every rank of the group has reported."""

from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from tdbg.core.events import Event, Start
from tdbg.core.rundir import ProcessDir
from tdbg.rules.view import get_launch_number

MAX_WAITING = 256  # steps of one group that wait for a rank

Seen = TypeVar("Seen")


class GroupKey(NamedTuple):
    """What was looked at: in which launch, on which ranks, and which module's it is."""

    launch: int
    ranks: tuple[int, ...]
    module: int


class RankLooks(Generic[Seen]):
    """Collects a look of each rank at a step. In whatever order ranks are read, steps come out in theirs."""

    def __init__(self, most_waiting: int = MAX_WAITING) -> None:
        self._most_waiting = most_waiting
        self._launches: dict[str, int] = {}
        self._waiting: dict[GroupKey, dict[int, dict[int, Seen]]] = {}

    def record_launch(self, process: ProcessDir, event: Event) -> None:
        """Remember which launch a process belongs to."""
        if isinstance(event, Start):
            self._launches[process.label] = get_launch_number(process, event)

    def collect_rank(
        self, process: ProcessDir, ranks: list[int], module: int, step: int, seen: Seen
    ) -> Iterator[tuple[GroupKey, int, dict[int, Seen]]]:
        """Take in a look; gives it with those of all other ranks of its group, if it is the last."""
        rank = process.rank
        if rank is None or not process.is_rank or len(ranks) < 2 or rank not in ranks:
            return
        key = GroupKey(self._launches.get(process.label, process.attempt), tuple(ranks), module)
        waiting = self._waiting.setdefault(key, {})
        if step not in waiting and len(waiting) >= self._most_waiting:
            del waiting[min(waiting)]
        looks = waiting.setdefault(step, {})
        looks[rank] = seen
        if len(looks) == len(ranks):
            yield key, step, waiting.pop(step)
