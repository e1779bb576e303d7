"""TD-R006: a rank that does not come where the others wait."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from tdbg.core.events import SEVERITIES, Event, Finding, Observation, Start
from tdbg.core.observations import Evidence
from tdbg.core.observations.distributed import QuietRank, RankResumed
from tdbg.core.observations.hang import HungRank, HungRankResumed
from tdbg.core.ranges import MAX_RANKS
from tdbg.core.rule_base import Link, Needs
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, Rule, overwrite_finding
from tdbg.rules.text import format_ranks, get_kept_path
from tdbg.rules.view import ProcessView, View, get_launch_number

MAX_EPISODES = 64  # of one process
MAX_COUNTS = 8  # groups whose calls a rank tells
ALL_QUIET = 4.0  # times its limit: so long every rank must have made no progress, where none is missed by the others
WAITING = ("collective", "wait", "backward", "init", "device")
ADVICE_ON_MUTUAL_WAIT = "find out why the ranks call different collectives; `tdbg stacks` shows where each rank is"
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


@dataclass(slots=True, repr=False, eq=False)
class _Episode:
    """A time in which one rank was quiet, as it last told of it."""

    rank: int
    launch: int
    folder: str
    began_t: float
    told_t: float
    seen: QuietRank
    lasted_s: float = 0.0
    over_t: float | None = None  # when it went on

    @property
    def known_until_t(self) -> float:
        """It lasted at least until then: its end may not have been read yet."""
        return self.told_t if self.over_t is None else self.over_t

    @property
    def step(self) -> int:
        return self.seen.step

    @property
    def state(self) -> str:
        return self.seen.state

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
        named = {"init": "init_process_group", "backward": "backward", "device": "a collective on the device"}
        return named.get(self.state, self.seen.where)

    @property
    def alike(self) -> int:
        """Earlier calls like the one it is in."""
        return self.seen.alike or 0

    def count_calls(self, group: str) -> int | None:
        """How many calls on a group it has begun; None if that is not known."""
        counts = self.seen.counts
        if counts is None:
            return None
        return counts.get(group, 0 if len(counts) < MAX_COUNTS else None)

    def is_concurrent_with(self, other: "_Episode") -> bool:
        """True if both were quiet at the same time, in the same launch, on different ranks."""
        if self.rank == other.rank or self.launch != other.launch:
            return False
        return self.known_until_t >= other.began_t and other.known_until_t >= self.began_t

    def describe_place(self) -> str:
        """What the rank was doing, for people."""
        where = self.seen.where or "an unknown place"
        if self.state in ("collective", "wait"):
            return f"in {self.current_operation} ({where})"
        if self.state in ("init", "backward"):
            return f"in {self.current_operation} ({where})"
        doing = ACTIVITIES.get(self.seen.activity, "")
        return f"{doing} at {where}" if doing else f"at {where}"


class _Case(NamedTuple):
    """Ranks that wait, and those they wait for."""

    waiting: Sequence[_Episode]
    missing: Sequence[_Episode] = ()
    silent: Mapping[int, str] = MappingProxyType({})  # ranks that said nothing at all, and how they ended
    is_mutual: bool = False  # as many wait in another call: who is wrong is not to be told
    elsewhere: Sequence[int] = ()  # ranks of other hosts, of which this run directory holds nothing

    @property
    def is_certain(self) -> bool:
        """True if someone is in no collective at all: the others only wait."""
        return any(episode.state == "elsewhere" for episode in self.missing)

    @property
    def first_wait(self) -> _Episode:
        return min(self.waiting, key=lambda episode: (episode.began_t, episode.rank))

    @property
    def lasted_s(self) -> float:
        return max(episode.lasted_s for episode in self.waiting)

    @property
    def is_over(self) -> bool:
        return all(episode.over_t is not None for episode in self.waiting)


class _Others(NamedTuple):
    """What is known of ranks that told nothing of a wait."""

    endings: Mapping[int, str] = MappingProxyType({})
    elsewhere: frozenset[int] = frozenset()  # of other hosts, whose run directory is another


@RULES.add
class RankQuiet(Rule):
    """Names the rank that does not come to a collective in which the others wait.

    What it does: A thread in each rank notices when nothing has happened for longer than the run's steps took
    so far, and for 15 seconds at least: no collective, no step. It writes which collective the rank is in (from
    torch's flight recorder), since when, the number of the call on its group, and the stacks of all its
    threads. Of ranks that were quiet at the same time, those in a collective wait, and the one that is
    elsewhere, or still in an earlier call, is the one they wait for; of ranks in different calls, those that are
    fewer. Where these are as many, neither is blamed. A rank that computes, saves, compiles or
    waits for the network is given more time. Where no rank is missed by the others, but none makes progress for
    four times as long, that is told. A wait that ended is told as `info`, one that never did as `error`. With
    the flag DISTRIBUTED a busy rank is reported sooner, and where torch keeps no flight recorder (gloo before
    torch 2.9, mpi) the collective is known from the calls that Python makes.

    Why it matters: A hung job dies half an hour later of a timeout that names the ranks which waited, not the one
    which did not come.

    Example:
        TD-R006 error: rank 1 does not come to all_reduce, where rank 0 has waited for 120 s since step 41: it is at
        train.py:88 in evaluate

    What to do: Open the stacks file of the rank that is named. Typical: only one rank evaluates, saves or
    downloads; a branch on local data skips a backward; a loader worker is stuck; its batches ran out. Let all
    ranks take the same way, or give the long part to all (`Join`, `drop_last`).

    Thresholds: ``DISTRIBUTED.hang_s``, 15 seconds; times 8 for a rank that computes, imports or waits for a
    command, times 40 for one that saves, loads or waits for the network, times 120 for one that compiles; never
    for one that is in a debugger. With the flag DISTRIBUTED these limits are at most ``DISTRIBUTED.quiet_s``, 30
    seconds.
    """

    code = "TD-R006"
    title = "job hangs: a rank keeps others waiting"
    severity = "warning"
    grade = Evidence.LOCAL.grade_word
    leads_to = (
        "TD-R001",
        "TD-R002",
        Link("TD-R003", least=-1),
    )  # whoever ends a job that hangs, and the timeout of a collective
    listens = (Start, Observation)
    observes = (QuietRank, RankResumed, HungRank, HungRankResumed)
    needs = Needs(observations=(HungRank,), ranks=2)  # the probe `hang` also emits QuietRank

    def __init__(self) -> None:
        self._launches: dict[str, int] = {}
        self._world_size = 0
        self._episodes: dict[str, list[_Episode]] = {}
        self._finding: Finding | None = None

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if isinstance(event, Start):
            self._launches[process.label] = get_launch_number(process, event)
            self._world_size = max(self._world_size, event.world_size)
        quiet = QuietRank.from_event(event) or HungRank.from_event(event)
        resumed = RankResumed.from_event(event) or HungRankResumed.from_event(event)
        if process.rank is None or not process.is_rank or (quiet is None and resumed is None):
            return ()
        kept = self._episodes.setdefault(process.label, [])
        if quiet is not None:
            self._add_quiet(kept, process, event.t, quiet)
        if resumed is not None and kept and kept[-1].over_t is None:
            kept[-1].over_t, kept[-1].lasted_s = event.t, resumed.quiet_s
        return self._update_finding(_Others(), over=False)

    def _add_quiet(self, kept: list[_Episode], process: ProcessDir, t: float, seen: QuietRank) -> None:
        if kept and kept[-1].over_t is None:
            last = kept[-1]  # told again, after twice the time: still the same
            last.seen, last.told_t, last.lasted_s = seen, t, seen.quiet_s
        elif len(kept) < MAX_EPISODES:
            began_t = seen.began_t if seen.began_t is not None else t
            ran_in = self._launches.get(process.label, process.attempt)
            kept.append(_Episode(process.rank or 0, ran_in, process.label, began_t, t, seen, seen.quiet_s))

    def finish(self, view: View) -> Iterable[Finding]:
        for found in view.processes.values():
            for episode in self._episodes.get(found.process.label, ()):
                if episode.over_t is None and found.last is not None and found.last.t > episode.told_t:
                    episode.over_t = found.last.t  # it has stepped since
                elif episode.over_t is None and _is_standstill_over(view, found):
                    episode.over_t = view.find_end_time(found)
                elif episode.over_t is None and view.over:
                    quiet_until = view.find_end_time(found)
                    episode.lasted_s = max(episode.seen.quiet_s + quiet_until - episode.told_t, episode.seen.quiet_s)
        endings = {
            found.rank or 0: f"step {found.step}, {view.describe_ending(found)}" for found in view.list_rank_processes()
        }
        return self._update_finding(_Others(endings, frozenset(view.list_ranks_elsewhere())), over=view.over)

    def _update_finding(self, others: "_Others", *, over: bool) -> Iterable[Finding]:
        """The finding that all episodes together make; one is given out, and kept up to date."""
        episodes = [episode for kept in self._episodes.values() for episode in kept]
        cases = list(_find_cases(episodes, others, over))
        together = [] if cases else _find_all_quiet(episodes, self._world_size)
        if cases:
            worst = max(
                cases, key=lambda case: (not case.is_over, case.is_certain, case.lasted_s, -case.first_wait.rank)
            )
            new = self._make_elsewhere_finding(worst) if worst.elsewhere else self._make_case_finding(worst, over)
        elif together:
            new = self._make_all_quiet_finding(together, over)
        else:
            return ()
        if self._finding is None:
            self._finding = new
            return (new,)
        overwrite_finding(self._finding, new)
        return ()

    def _make_case_finding(self, case: _Case, over: bool) -> Finding:
        first = case.first_wait
        waiters = {episode.rank for episode in case.waiting}
        waiting = format_ranks(waiters)
        missing = sorted({episode.rank for episode in case.missing} | set(case.silent))
        severity = "info" if case.is_over else SEVERITIES[2 if over else 1]
        since = f"at step {first.step}" if case.is_over else f"since step {first.step}"
        verb = "waited" if case.is_over else "has waited" if len(waiters) == 1 else "have waited"
        came = "came late" if case.is_over else "does not come" if len(missing) == 1 else "do not come"
        title = f"{format_ranks(missing)} {came} to {first.current_operation}, where {waiting} {verb} for {case.lasted_s:.0f} s {since}"
        if case.is_mutual:
            verb = "waited" if case.is_over else "wait"
            title = (
                f"{format_ranks({*missing, *waiters})} {verb} for each other in different collectives, for"
                f" {case.lasted_s:.0f} s {since}: {_describe_both(case)}"
            )
        elif case.missing:
            title += f": {'it was' if case.is_over else 'it is'} {case.missing[0].describe_place()}"
        lines = [
            _describe_episode(episode) for episode in [*case.missing[:3], *sorted(case.waiting, key=_get_rank)[:4]]
        ]
        lines = [f"rank {rank}: {how}" for rank, how in list(case.silent.items())[:3]] + lines
        files = [
            get_kept_path(episode.folder, file)
            for episode in [*case.missing[:3], first]
            for file in episode.seen.written_files
        ]
        return self.make_finding(
            title,
            severity=severity,
            first_step=first.step,
            rank=missing[0],
            phase="collective",
            evidence=[*lines, *([f"stacks: {join_limited(files, 6)}"] if files else [])],
            cause=_explain_mutual_wait(case)
            if case.is_mutual
            else "that rank is busy elsewhere, left the loop, or took another branch than the others",
            try_next=ADVICE_ON_MUTUAL_WAIT
            if case.is_mutual
            else f"look at the stacks of rank {missing[0]}"
            + (f" ({files[0]})" if files and case.missing else " (it wrote none: attach a debugger)"),
        )

    def _make_elsewhere_finding(self, case: _Case) -> Finding:
        """Ranks of this host wait, for some of which another run directory tells."""
        first, waiting = case.first_wait, {episode.rank for episode in case.waiting}
        others = format_ranks(case.elsewhere)
        return self.make_finding(
            f"{format_ranks(waiting)} {'has' if len(waiting) == 1 else 'have'} waited {case.lasted_s:.0f} s in"
            f" {first.current_operation} since step {first.step} for {others} of another host (not in this run directory)",
            severity="error",
            first_step=first.step,
            phase="collective",
            evidence=[_describe_episode(episode) for episode in sorted(case.waiting, key=_get_rank)[:4]],
            cause="a rank of the other host, or the network between the hosts: its records are not in this run directory",
            try_next="`tdbg join` the run directories of all hosts, then `tdbg report`; or run with a shared --run-dir",
        )

    def _make_all_quiet_finding(self, together: Sequence[_Episode], over: bool) -> Finding:
        """No rank is missed by the others, and none makes progress."""
        first = min(together, key=_get_rank)
        is_over = all(episode.over_t is not None for episode in together)
        lasted_s = min(episode.lasted_s for episode in together)
        begin = "no rank made progress" if is_over else "no rank has made progress"
        places = {episode.describe_place() for episode in together}
        is_same_call = len(places) == 1 and first.state == "collective"
        where = (
            f"all are {first.describe_place()}"
            if len(places) == 1
            else f"rank {first.rank} is {first.describe_place()}"
        )
        files = [get_kept_path(episode.folder, file) for episode in together for file in episode.seen.written_files]
        return self.make_finding(
            f"{begin} for {lasted_s:.0f} s {'at' if is_over else 'since'} step {first.step}: {where}",
            severity="info" if is_over else SEVERITIES[2 if over else 1],
            first_step=first.step,
            phase="collective" if is_same_call else "",
            evidence=[
                *(_describe_episode(episode) for episode in sorted(together, key=_get_rank)[:6]),
                *([f"stacks: {join_limited(files, 6)}"] if files else []),
            ],
            cause="every rank has come to this call and it does not end: the network, or the backend"
            if is_same_call
            else "all ranks wait for the same thing outside of the job: a file system, a lock, a server",
            try_next="look at the stacks" + (f" ({files[0]})" if files else ""),
        )


def _is_standstill_over(view: View, found: ProcessView) -> bool:
    """True if a standstill must be over: the rank ended normally, and the command with exit code 0."""
    return view.exit_code == 0 and view.describe_ending(found) == "ended"


def _find_all_quiet(episodes: Sequence[_Episode], world_size: int) -> list[_Episode]:
    """The episodes of all ranks of a job, if they were quiet at the same time for long; else none."""
    longest: dict[int, _Episode] = {}
    for episode in episodes:
        if episode.lasted_s >= ALL_QUIET * (episode.seen.limit_s or math.inf):
            longest[episode.rank] = max(longest.get(episode.rank, episode), episode, key=lambda one: one.began_t)
    found = list(longest.values())
    if world_size < 2 or len(found) < world_size:
        return []
    return found if all(one.is_concurrent_with(found[0]) for one in found[1:]) else []


def _get_rank(episode: _Episode) -> int:
    return episode.rank


def _describe_episode(episode: _Episode) -> str:
    ended = "went on" if episode.over_t is not None else "no end seen"
    number = f", call {episode.call_number} on {episode.group}" if episode.call_number else ""
    return f"rank {episode.rank}: {episode.describe_place()}{number}, quiet for {episode.lasted_s:.1f} s, {ended}"


def _find_cases(episodes: list[_Episode], told: _Others, over: bool) -> Iterator[_Case]:
    """Every wait in which it is known who was missing."""
    for wait in episodes:
        if wait.state not in WAITING:
            continue
        others = [other for other in episodes if other.is_concurrent_with(wait) and _is_member(other.rank, wait)]
        behind = [other for other in others if _is_behind(other, wait)]
        missing = [other for other in behind if other.state == "elsewhere"] or behind  # the rest only wait as well
        together = [wait, *(other for other in others if _is_waiting_along(other, wait))]
        if missing and all(_is_mismatch(other, wait) or _is_crossed(other, wait) for other in missing):
            if len(missing) > len(together) or (len(missing) == len(together) and not _is_rarer(missing[0], wait)):
                continue  # told from the other side
            yield _Case(together, missing, is_mutual=len(missing) == len(together))
            continue
        if missing:
            yield _Case(together, missing)
            continue
        silent = _find_silent(wait, others, told.endings)
        here = {rank: how for rank, how in silent.items() if rank not in told.elsewhere}
        if over and wait.over_t is None and wait.state in SURE and silent:
            yield _Case(together, silent=here, elsewhere=() if here else sorted(silent))


def _is_member(rank: int, wait: _Episode) -> bool:
    return not wait.seen.ranks or rank in wait.seen.ranks


def _is_behind(other: _Episode, wait: _Episode) -> bool:
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
    return begun == wait.call_number and _is_mismatch(other, wait)


def _is_mismatch(other: _Episode, wait: _Episode) -> bool:
    """True if both are in the same call by number, but in different functions."""
    return (
        other.call_number is not None
        and other.group == wait.group
        and other.call_number == wait.call_number
        and other.current_operation != wait.current_operation
    )


def _is_crossed(other: _Episode, wait: _Episode) -> bool:
    """True if each waits for the other, in collectives of different groups."""
    return (
        other.state in SURE
        and other.group != wait.group
        and _is_member(wait.rank, other)
        and _is_behind(other, wait)
        and _is_behind(wait, other)
    )


def _is_rarer(other: _Episode, wait: _Episode) -> bool:
    """True if ``other`` made a call like its own less often, or as often and its rank is higher.

    Who leaves a loop early, or skips a step, is in a call that it has not made before; so is who evaluates for the first
    time, while the other goes on training.
    """
    return (-other.alike, other.rank) > (-wait.alike, wait.rank)


def _describe_both(case: _Case) -> str:
    """``rank 1 in barrier (train.py:9 in main), rank 0 in all_reduce (train.py:5 in main)``."""
    return ", ".join(f"rank {one.rank} {one.describe_place()}" for one in (case.missing[0], case.first_wait))


def _explain_mutual_wait(case: _Case) -> str:
    rarer, other = case.missing[0], case.first_wait
    cause = "one of them took another branch than the other, left out a call, or left the loop"
    if rarer.alike < other.alike:
        often = f"only {format_count(rarer.alike, 'time')} before" if rarer.alike else "never before"
        cause += f"; rank {rarer.rank} made such a call of {rarer.current_operation} {often}"
    return cause


def _is_waiting_along(other: _Episode, wait: _Episode) -> bool:
    return (
        other.state == wait.state
        and other.current_operation == wait.current_operation
        and other.call_number == wait.call_number
    )


def _find_silent(wait: _Episode, others: list[_Episode], endings: Mapping[int, str]) -> dict[int, str]:
    """Ranks of the group that wrote nothing while this one waited, and how they ended."""
    members = wait.seen.ranks or range(min(wait.seen.size or len(endings), MAX_RANKS))
    heard = {wait.rank, *(other.rank for other in others)}
    return {rank: endings.get(rank, "never took a step") for rank in members if rank not in heard}
