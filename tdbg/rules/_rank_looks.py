"""Looks of several ranks at the same thing, put side by side once every rank of the group has reported."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from tdbg.core.events import Event, Start
from tdbg.core.rundir import ProcessDir
from tdbg.rules.view import get_launch_number

MAX_WAITING = 256  # steps of one group that wait for a rank
ALWAYS_KEPT = 64  # the first steps are never thinned out

Seen = TypeVar("Seen")


class GroupKey(NamedTuple):
    """What was looked at: in which launch, on which ranks, and which module's it is."""

    launch: int
    ranks: Sequence[int]  # a tuple, or the range of a whole world, whose hash is found at once
    module: int


def limit_steps(looks: int, ranks: int) -> int:
    """Of how many steps the looks of so many ranks are kept."""
    return max(looks // ranks, 2 * ALWAYS_KEPT)


class StepSample:
    """Which steps are kept of a long run: all, then every second, every fourth and so on; and always the first ones."""

    def __init__(self) -> None:
        self._stride = 1

    def has_step(self, step: int) -> bool:
        """True if this step is kept."""
        if step <= ALWAYS_KEPT or self._stride == 1:
            return True
        return (step * 2654435761) % 2**32 < 2**32 // self._stride  # spread: what comes every Nth step is met as often

    def thin_out(self) -> None:
        """Keep half as many from now on."""
        self._stride *= 2


class RankLooks(Generic[Seen]):
    """Collects a look of each rank at a step. In whatever order ranks are read, steps come out in theirs.

    most_looks: of all ranks together, that wait for others. Offline a whole rank is read before the next one: of a run with
    more of them an even sample is kept. Without it the newest steps are.
    """

    def __init__(self, most_looks: int = 0) -> None:
        self._most_looks = most_looks
        self._samples: defaultdict[GroupKey, StepSample] = defaultdict(StepSample)
        self._launches: dict[str, int] = {}
        self._waiting: dict[GroupKey, dict[int, dict[int, Seen]]] = {}

    def record_launch(self, process: ProcessDir, event: Event) -> None:
        """Remember which launch a process belongs to."""
        if isinstance(event, Start):
            self._launches[process.label] = get_launch_number(process, event)

    def collect_rank(
        self, process: ProcessDir, ranks: Sequence[int], module: int, step: int, seen: Seen
    ) -> Iterator[tuple[GroupKey, int, dict[int, Seen]]]:
        """Take in a look; gives it with those of all other ranks of its group, if it is the last."""
        rank = process.rank
        if rank is None or not process.is_rank or len(ranks) < 2 or rank not in ranks:
            return
        members = ranks if isinstance(ranks, range) else tuple(ranks)
        key = GroupKey(self._launches.get(process.label, process.attempt), members, module)
        waiting = self._waiting.setdefault(key, {})
        if not self._samples[key].has_step(step):
            return
        if step not in waiting and len(waiting) >= self._limit_steps(len(ranks)):
            self._make_room(waiting, self._samples[key])
            if not self._samples[key].has_step(step):
                return
        looks = waiting.setdefault(step, {})
        looks[rank] = seen
        if len(looks) == len(ranks):
            yield key, step, waiting.pop(step)

    def _limit_steps(self, ranks: int) -> int:
        return limit_steps(self._most_looks, ranks) if self._most_looks else MAX_WAITING

    def _make_room(self, waiting: dict[int, dict[int, Seen]], sample: StepSample) -> None:
        if not self._most_looks:
            del waiting[min(waiting)]
            return
        sample.thin_out()
        for step in [step for step in waiting if not sample.has_step(step)]:
            del waiting[step]
