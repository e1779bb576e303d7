"""Which rank others wait for: times in which ranks made no progress, put side by side."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from tdbg.core.observations.distributed import QuietRank
from tdbg.core.ranges import MAX_RANKS, unpack_numbers
from tdbg.core.tables import join_limited

MAX_KINDS = 512  # of waits that were over before the newest began
MAX_COUNTS = 8  # groups whose calls a rank tells
ALL_QUIET = 4.0  # times its limit: so long every rank must have made no progress, where none is missed by the others
SILENT = {"collective": 4.0, "init": 16.0}  # times its limit: so long a rank gives no sign of life while others wait
GRACE_S, GAP_S, MAX_GAPS = 30.0, 25.0, 64  # signs of life come every 20 seconds or sooner
WAITING = ("collective", "wait", "backward", "init", "device")
SURE = ("collective", "init")  # the call itself has not returned
ACTIVITIES = {
    "sleep": "asleep",
    "lock": "waiting for a lock",
    "loader": "waiting for the loader",
    "checkpoint": "saving or loading a checkpoint",
    "compile": "compiling",
    "import": "importing",
    "network": "waiting for the network",
    "command": "waiting for a command",
    "compute": "computing",
}
NO_SIGN = "no sign of life while the others wait"
NAMED_STATES = {"init": "init_process_group", "backward": "backward", "device": "a collective on the device"}

# Functions that every rank must call with as many elements of the same type; the others allow for parts of unequal size.
GATHERS = ("_all_gather_base", "all_gather_into_tensor", "all_gather_single")
SCATTERS = ("_reduce_scatter_base", "reduce_scatter_tensor", "reduce_scatter_single")
SAME_SIZE = frozenset(("all_reduce", "broadcast", "reduce", *GATHERS, *SCATTERS))

KindKey = tuple[object, ...]  # of waits that are judged alike


@dataclass(slots=True, repr=False, eq=False)
class Episode:
    """A time in which one rank was quiet, as it last told of it."""

    rank: int
    launch: int
    folder: str
    began_t: float
    reported_t: float
    seen: QuietRank
    lasted_s: float = 0.0
    over_t: float | None = None  # when it went on
    until_t: float = 0.0  # when the job ended while it went on, once that is known

    @property
    def known_until_t(self) -> float:
        """It lasted at least until then: its end may not have been read yet."""
        return max(self.reported_t, self.until_t) if self.over_t is None else self.over_t

    @property
    def step(self) -> int:
        return self.seen.step

    @property
    def state(self) -> str:
        return self.seen.state

    @property
    def is_wait(self) -> bool:
        """True if it may be waiting for other ranks."""
        return self.seen.state in WAITING

    @property
    def group(self) -> str:
        return self.seen.group or "world"

    @property
    def call_number(self) -> int | None:
        """The call on its group that it is in."""
        return self.seen.number

    @property
    def current_operation(self) -> str:
        if self.state in ("collective", "wait"):
            return self.seen.op
        return NAMED_STATES.get(self.state, self.seen.where)

    @property
    def alike(self) -> int:
        """Earlier calls like the one it is in."""
        return self.seen.alike or 0

    @property
    def kind(self) -> KindKey:
        """Equal for waits that wait for the same ranks, as far as those were quiet at the same time."""
        own = self.count_calls(self.group) if self.state == "device" else None
        step = self.step if self.state == "backward" else 0
        members = self.seen.rank_ranges or tuple(self.seen.ranks or ())
        place = (self.launch, self.state, self.current_operation, self.group, self.call_number)
        return (*place, self.seen.size, members, own, step, self.sizes)

    def count_calls(self, group: str) -> int | None:
        """How many calls on a group it has begun; None if that is not known."""
        counts = self.seen.counts
        if counts is None:
            return None
        return counts.get(group, 0 if len(counts) < MAX_COUNTS else None)

    def is_concurrent_with(self, other: "Episode") -> bool:
        """True if both were quiet at the same time, in the same launch, on different ranks."""
        if self.rank == other.rank or self.launch != other.launch:
            return False
        return self.known_until_t >= other.began_t and other.known_until_t >= self.began_t

    @property
    def members(self) -> Sequence[int]:
        """The ranks that take part in the call that this one is in, as far as known; empty: all."""
        return unpack_numbers(self.seen.rank_ranges) if self.seen.rank_ranges else self.seen.ranks or ()

    def has_member(self, rank: int) -> bool:
        """True if a rank takes part in the call that this one is in, or may do so."""
        members = self.members
        if not members or rank in members:
            return True
        return len(members) < (self.seen.size or 0) and rank > members[-1]  # an older tdbg wrote the first ones alone

    @property
    def sizes(self) -> tuple[tuple[int, str], ...] | None:
        """Elements and type of each tensor of the call, where they must be equal on all ranks."""
        if self.seen.shapes is None or self.state not in ("collective", "wait") or self.seen.op not in SAME_SIZE:
            return None
        return count_elements(tuple(self.seen.shapes))

    def describe_place(self, *, sized: bool = False) -> str:
        """What the rank was doing, for people. sized: with the tensors of the call."""
        where = self.seen.where or "an unknown place"
        if sized and self.seen.shapes:
            return f"in {self.current_operation} of {join_limited(self.seen.shapes, 2)} ({where})"
        if self.state in ("collective", "wait", "init", "backward"):
            return f"in {self.current_operation} ({where})"
        doing = ACTIVITIES.get(self.seen.activity, "")
        return f"{doing} at {where}" if doing else f"at {where}"


@lru_cache(maxsize=1024)
def count_elements(shapes: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
    """Number of elements and type of ``8x4 Float``."""
    found = []
    for shape in shapes:
        size, _, kind = shape.partition(" ")
        found.append((math.prod(int(word) for word in size.split("x") if re.fullmatch(r"[0-9]{1,18}", word)), kind))
    return tuple(found)


class Case(NamedTuple):
    """Ranks that wait, and those they wait for."""

    waiting: Sequence[Episode]
    missing: Sequence[Episode] = ()
    silent: Mapping[int, str] = MappingProxyType({})  # ranks that said nothing at all, and how they ended
    is_mutual: bool = False  # as many wait in another call: who is wrong is not to be told
    elsewhere: Sequence[int] = ()  # ranks of other hosts, of which this run directory holds nothing

    @property
    def is_certain(self) -> bool:
        """True if someone is in no collective at all: the others only wait."""
        return any(episode.state == "elsewhere" for episode in self.missing)

    @property
    def differs_in_size(self) -> bool:
        """True if those that are missing are in the same call, with tensors of another size or type."""
        if not self.missing or not is_mismatch(self.missing[0], self.first_wait):
            return False
        return has_other_size(self.missing[0], self.first_wait)

    @property
    def first_wait(self) -> Episode:
        return min(self.waiting, key=lambda episode: (episode.began_t, episode.rank))

    @property
    def lasted_s(self) -> float:
        return max(episode.lasted_s for episode in self.waiting)

    @property
    def is_over(self) -> bool:
        return all(episode.over_t is not None for episode in self.waiting)

    @property
    def end_t(self) -> float:
        """When the last one went on; infinite while one waits."""
        return max(math.inf if episode.over_t is None else episode.over_t for episode in self.waiting)

    def get_weight(self) -> tuple[bool, bool, float, int]:
        """The larger, the more it says of what holds up the job."""
        return not self.is_over, self.is_certain, self.lasted_s, -self.first_wait.rank


class SignsOfLife:
    """When each rank wrote nothing for long: as it trains, or every 20 seconds while it does not."""

    def __init__(self) -> None:
        self._last_t: dict[tuple[int, int], float] = {}
        self._gaps: defaultdict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
        self._muted: set[tuple[int, int]] = set()

    def mute_rank(self, launch: int, rank: int) -> None:
        """A rank can give no more signs: that there are none says nothing."""
        self._muted.add((launch, rank))

    def add_sign(self, launch: int, rank: int, t: float) -> None:
        """A rank wrote something."""
        key = launch, rank
        before = self._last_t.get(key, -math.inf)
        if t - before >= GAP_S:
            self._gaps[key] = [*self._gaps[key], (before, t)][-MAX_GAPS:]
        self._last_t[key] = max(before, t)

    def was_silent(self, rank: int, wait: Episode, started: Set[int]) -> bool:
        """True if a rank gave no sign from the beginning of a wait on, for too long.

        A rank of which nothing was ever read may write elsewhere: it counts only as long as no process group is there,
        and only where the launcher started it here. started: these ranks.
        """
        times = SILENT.get(wait.state, math.inf)
        since_t, until_t = (
            wait.began_t + GRACE_S,
            wait.began_t + max(times * (wait.seen.limit_s or math.inf), 2 * GRACE_S),
        )
        if wait.seen.alive_s is None or wait.began_t + wait.lasted_s < until_t:
            return False
        key = wait.launch, rank
        if key in self._muted or (key not in self._last_t and (wait.state != "init" or rank not in started)):
            return False
        if any(begin <= since_t and end >= until_t for begin, end in self._gaps.get(key, ())):
            return True
        # The next sign may be on its way, over a slow file system, or stamped by a clock that is behind.
        open_until_t = until_t + (GRACE_S if wait.state != "init" else 0.0)
        return self._last_t.get(key, -math.inf) <= since_t and wait.began_t + wait.lasted_s >= open_until_t


class OtherRanks(NamedTuple):
    """What is known of ranks that told nothing of a wait."""

    endings: Mapping[int, str] = MappingProxyType({})
    elsewhere: frozenset[int] = frozenset()  # of other hosts, whose run directory is another
    signs: SignsOfLife | None = None
    started: frozenset[int] = frozenset()  # by the launchers whose ranks write into this run directory
    world_size: int = 0


@dataclass
class Incident:
    """What was wrong at one time of one launch: the cases of then, or ranks that were all quiet."""

    launch: int
    cases: list[Case] = field(default_factory=list)
    together: Sequence[Episode] = ()

    @property
    def worst(self) -> Case:
        return max(self.cases, key=Case.get_weight)

    @property
    def episodes(self) -> set[int]:
        """The identities of all that belong to it."""
        found = {id(one) for case in self.cases for one in (*case.waiting, *case.missing)}
        return found.union(map(id, self.together))

    @property
    def is_over(self) -> bool:
        if self.cases:
            return all(case.is_over for case in self.cases)
        return all(one.over_t is not None for one in self.together)

    def get_weight(self) -> tuple[bool, int, bool, bool, float, int]:
        """The larger, the sooner it is told: what is not over, in the newest launch."""
        if self.cases:
            _, *weight = self.worst.get_weight()
            return not self.is_over, self.launch, True, bool(weight[0]), float(weight[1]), int(weight[2])
        lasted_s = min(one.lasted_s for one in self.together)
        return not self.is_over, self.launch, False, False, lasted_s, -min(one.rank for one in self.together)


def find_incidents(episodes: Iterable[Episode], other_ranks: OtherRanks, over: bool, world_size: int) -> list[Incident]:
    """Everything that held up the job, in the order of time."""
    found: list[Incident] = []
    by_launch: defaultdict[int, list[Episode]] = defaultdict(list)
    for episode in sorted(episodes, key=lambda one: (one.rank, one.began_t)):  # in whatever order they were read
        by_launch[episode.launch].append(episode)
    for launch, kept in by_launch.items():
        cases = list(find_cases(kept, other_ranks, over))
        incidents = [Incident(launch, group) for group in _group_by_time(cases)]
        in_cases = {one for incident in incidents for one in incident.episodes}
        for together in find_all_quiet(kept, world_size):
            if in_cases.isdisjoint(map(id, together)):
                incidents.append(Incident(launch, together=together))
        found += incidents
    return found


def _group_by_time(cases: list[Case]) -> list[list[Case]]:
    """Cases that go on at the same time belong together: a wait holds up those that wait for the ranks in it."""
    groups: list[list[Case]] = []
    end_t = -math.inf
    for case in sorted(cases, key=lambda one: one.first_wait.began_t):
        if not groups or case.first_wait.began_t > end_t:
            groups.append([])
            end_t = -math.inf
        groups[-1].append(case)
        end_t = max(end_t, case.end_t)
    return groups


def find_all_quiet(episodes: Sequence[Episode], world_size: int) -> Iterator[list[Episode]]:
    """Episodes of all ranks of a job that were quiet at the same time for long, as often as that happened."""
    by_rank: defaultdict[int, list[Episode]] = defaultdict(list)
    for episode in episodes:
        if episode.lasted_s >= ALL_QUIET * (episode.seen.limit_s or math.inf):
            by_rank[episode.rank].append(episode)
    if world_size < 2 or len(by_rank) < world_size:
        return
    anchor, *others = (by_rank[rank] for rank in sorted(by_rank))
    for first in anchor:
        found = [first]
        for kept in others:
            found += [one for one in kept if one.is_concurrent_with(first)][-1:]
        if len(found) == len(by_rank):
            yield found


def find_cases(episodes: Sequence[Episode], other_ranks: OtherRanks, over: bool) -> Iterator[Case]:
    """Every wait in which it is known who was missing; waits of one kind are judged together."""
    by_rank: defaultdict[int, list[Episode]] = defaultdict(list)
    kinds: defaultdict[KindKey, list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_rank[episode.rank].append(episode)
        if episode.is_wait:
            kinds[episode.kind].append(episode)
    for waits in kinds.values():
        ranks = [rank for rank in by_rank if waits[0].has_member(rank)] if waits[0].members else []
        members = [one for rank in ranks for one in by_rank[rank]] if ranks else episodes
        others = _find_concurrent(waits, members)
        if others is not None:
            yield from _judge_waits(waits, others, other_ranks, over)
            continue
        for wait in waits:  # some of them were over when others began
            yield from _judge_waits([wait], [one for one in members if one.is_concurrent_with(wait)], other_ranks, over)


def _find_concurrent(waits: Sequence[Episode], members: Iterable[Episode]) -> list[Episode] | None:
    """Those of other kinds that were quiet while these waited; None where that is not the same for all of them."""
    first_t, last_t = min(one.began_t for one in waits), max(one.began_t for one in waits)
    all_until_t, any_until_t = min(one.known_until_t for one in waits), max(one.known_until_t for one in waits)
    ranks = {one.rank for one in waits}
    if last_t > all_until_t or len(ranks) < len(waits) or any(is_behind(one, waits[0]) for one in waits):
        return None
    own, launch, found = set(map(id, waits)), waits[0].launch, []
    for one in members:
        if one.launch != launch or id(one) in own or one.known_until_t < first_t or one.began_t > any_until_t:
            continue
        if one.rank in ranks or one.known_until_t < last_t or one.began_t > all_until_t:
            return None
        found.append(one)
    return found


def _judge_waits(
    waits: Sequence[Episode], others: Sequence[Episode], other_ranks: OtherRanks, over: bool
) -> Iterator[Case]:
    """The cases of waits of one kind. others: those of its group that were quiet at the same time."""
    wait = waits[0]
    behind = [other for other in others if is_behind(other, wait)]
    missing = [other for other in behind if other.state == "elsewhere"] or behind  # the rest only wait as well
    together = [*waits, *(other for other in others if _is_waiting_along(other, wait))]
    if not missing:
        yield from _find_silent_case(waits, others, together, other_ranks, over)
        return
    different = [other for other in missing if not is_mismatch(other, wait)]
    crossed = [one for one in waits if all(_is_crossed(other, one) for other in different)]
    if len(crossed) < len(waits):
        yield Case(together, missing)
    is_mutual = len(missing) == len(together)
    is_from_here = len(missing) < len(together) or any(_is_rarer(missing[0], one) for one in crossed)
    if crossed and len(missing) <= len(together) and is_from_here:  # else it is told from the other side
        yield Case(together, missing, is_mutual=is_mutual)


def _find_silent_case(
    waits: Sequence[Episode],
    others: Sequence[Episode],
    together: Sequence[Episode],
    other_ranks: OtherRanks,
    over: bool,
) -> Iterator[Case]:
    """The case of ranks that told nothing, while these wait and nobody else is missing."""
    wait = waits[0]
    if wait.state not in SURE:
        return
    members = wait.members or range(
        min(wait.seen.size or other_ranks.world_size or len(other_ranks.endings), MAX_RANKS)
    )
    heard = {one.rank for one in (*waits, *others)}
    silent = {rank: other_ranks.endings.get(rank, "never took a step") for rank in members if rank not in heard}
    if not over or all(one.over_t is not None for one in waits):  # else it is known that they did not come
        longest = max(waits, key=lambda one: one.lasted_s)
        mute = [
            rank
            for rank in silent
            if other_ranks.signs is not None and other_ranks.signs.was_silent(rank, longest, other_ranks.started)
        ]
        silent = dict.fromkeys(mute, NO_SIGN)
    here = {rank: how for rank, how in silent.items() if rank not in other_ranks.elsewhere}
    if silent and (here or over):
        yield Case(together, silent=here, elsewhere=() if here else sorted(silent))


def is_behind(other: Episode, wait: Episode) -> bool:
    """True if ``other`` is surely what ``wait`` waits for."""
    if wait.state == "init":
        return False  # a rank that has come that far has its group already, or waits as well
    if wait.state == "backward":
        return other.state == "elsewhere" and other.step <= wait.step
    begun = other.count_calls(wait.group)
    if wait.state == "device":
        here = wait.count_calls(wait.group)
        return begun is not None and here is not None and begun < here
    if begun is None or wait.call_number is None:
        return other.state == "elsewhere" and wait.state in SURE
    if begun < wait.call_number:
        return True
    return begun == wait.call_number and is_mismatch(other, wait)


def is_mismatch(other: Episode, wait: Episode) -> bool:
    """True if both are in the same call by number, but in different functions, or with different tensors."""
    return (
        other.call_number is not None
        and other.group == wait.group
        and other.call_number == wait.call_number
        and (other.current_operation != wait.current_operation or has_other_size(other, wait))
    )


def has_other_size(other: Episode, wait: Episode) -> bool:
    """True if both are in the same function, with as many tensors of different sizes or types."""
    here, there = wait.sizes, other.sizes
    return None not in (here, there) and other.seen.op == wait.seen.op and here != there


def _is_crossed(other: Episode, wait: Episode) -> bool:
    """True if each waits for the other, in collectives of different groups."""
    return (
        other.state in SURE
        and other.group != wait.group
        and other.has_member(wait.rank)
        and is_behind(other, wait)
        and is_behind(wait, other)
    )


def _is_rarer(other: Episode, wait: Episode) -> bool:
    """True if ``other`` made a call like its own less often, or as often and its rank is higher.

    Who leaves a loop early, or skips a step, is in a call that it has not made before; so is who evaluates for the first
    time, while the other goes on training.
    """
    return (-other.alike, other.rank) > (-wait.alike, wait.rank)


def _is_waiting_along(other: Episode, wait: Episode) -> bool:
    return (
        other.state == wait.state
        and other.group == wait.group
        and other.current_operation == wait.current_operation
        and other.call_number == wait.call_number
        and not has_other_size(other, wait)
    )


@dataclass(slots=True)
class _Kind:
    """Waits of one kind: how many go on, and what is known of them already."""

    example: Episode
    ranks: set[int] = field(default_factory=set)
    open: int = 0
    until_t: float = 0.0
    is_related: bool = False  # someone seems to be what they wait for
    is_reported: bool = False
    silent_s: float = 0.0  # the wait that ranks without a sign of life were last looked for in


class KindIndex:
    """Says cheaply whether an episode that was read may open a case that was not told: most only join one.

    Judging everything at each event would cost the cube of the number of ranks.
    """

    def __init__(self) -> None:
        self._kinds: dict[KindKey, _Kind] = {}
        self._kind_of: dict[int, KindKey] = {}  # of the waits that go on, by identity

    def may_open_case(self, episode: Episode, episodes: Iterable[Sequence[Episode]]) -> bool:
        """Take in an episode, new or told again. episodes: all of them, by process."""
        is_behind_one = self._relate_to_waits(episode)
        if not episode.is_wait:
            self.end_episode(episode)  # it was a wait when it was last told
            return is_behind_one
        kind = self._enter_kind(episode, episodes)
        may_be_silent = self._is_long(kind, episode)
        return is_behind_one or ((kind.is_related or may_be_silent) and not kind.is_reported)

    @staticmethod
    def _is_long(kind: _Kind, episode: Episode) -> bool:
        """True if a wait is so long that a rank without a sign of life is told, and nobody looked since half as long."""
        limit_s = SILENT.get(episode.state, math.inf) * (episode.seen.limit_s or math.inf)
        if episode.seen.alive_s is None or episode.lasted_s < max(limit_s, 1.9 * kind.silent_s):
            return False
        kind.silent_s = episode.lasted_s
        return True

    def _relate_to_waits(self, episode: Episode) -> bool:
        """True if waits that were not told seem to be waiting for this one."""
        found = False
        for kind in self._kinds.values():
            wait = kind.example
            if wait.launch != episode.launch or (not kind.open and kind.until_t < episode.began_t):
                continue
            if wait is not episode and wait.has_member(episode.rank) and is_behind(episode, wait):
                kind.is_related = True
                found = found or not kind.is_reported
        return found

    def _enter_kind(self, episode: Episode, episodes: Iterable[Sequence[Episode]]) -> _Kind:
        key = episode.kind
        if self._kind_of.get(id(episode)) == key:
            return self._kinds[key]
        self.end_episode(episode)
        self._kind_of[id(episode)] = key
        kind = self._kinds.get(key)
        if len(self._kinds) > MAX_KINDS:
            self._kinds = {name: one for name, one in self._kinds.items() if one.open}
        if kind is None or not kind.open:
            kind = self._kinds[key] = _Kind(episode)
            kind.is_related = any(
                one.is_concurrent_with(episode) and episode.has_member(one.rank) and is_behind(one, episode)
                for kept in episodes
                for one in kept[-1:]
            )
        kind.open += 1
        kind.ranks.add(episode.rank)
        return kind

    def end_episode(self, episode: Episode) -> bool:
        """A wait is over; True if it was the last one of a kind that was told."""
        key = self._kind_of.pop(id(episode), None)
        if key is None:
            return False
        kind = self._kinds[key]
        kind.open -= 1
        kind.until_t = max(kind.until_t, episode.known_until_t)
        return kind.is_reported and not kind.open

    def mark_reported(self, incidents: Iterable[Incident]) -> None:
        """These were told: who joins them opens nothing new."""
        for incident in incidents:
            for identity in incident.episodes:
                key = self._kind_of.get(identity)
                if key is not None:
                    self._kinds[key].is_reported = True
