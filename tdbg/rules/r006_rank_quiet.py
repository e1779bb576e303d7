"""TD-R006: a rank that does not come where the others wait."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tdbg.core.events import SEVERITIES, Event, Finding, Note, Observation, ProbeOff, Start, Step
from tdbg.core.observations import Evidence
from tdbg.core.observations.distributed import QuietRank, RankResumed
from tdbg.core.observations.hang import HungRank, HungRankResumed, RankAlive
from tdbg.core.rule_base import Link, Needs
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, Rule, overwrite_finding
from tdbg.rules._quiet_cases import (
    ALL_QUIET,
    NO_SIGN,
    Case,
    Episode,
    Incident,
    KindIndex,
    OtherRanks,
    SignsOfLife,
    find_incidents,
)
from tdbg.rules.text import format_ranks, get_kept_path
from tdbg.rules.view import ProcessView, View, find_ranks_elsewhere, find_ranks_started, get_launch_number

MAX_EPISODES = 64  # of one process
STEPS_LEFT_OUT = "disk-steps"  # the note that the disk budget is nearly used up
MAX_FINDINGS = 4  # times at which the job was held up, each told by itself: what still goes on, then the longest
DIFFERENT_TENSORS = " with different tensors"
SHARED_STORE = (
    "torchrun gives a restarted attempt the store of the one before, where ranks may find addresses that are gone"
)
OWN_STORE = "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: each attempt then has a store of its own"
ADVICE_ON_MUTUAL_WAIT = "find out why the ranks call different collectives; `tdbg stacks` shows where each rank is"


@dataclass
class _Given:
    """A finding that was given out, and the episodes that it is about."""

    finding: Finding
    episodes: set[int]


@RULES.add
class RankQuiet(Rule):
    """Names the rank that does not come to a collective in which the others wait.

    What it does: A thread in each rank notices when nothing has happened for longer than the run's steps took
    so far, and for 15 seconds at least: no collective, no step. It writes which collective the rank is in (from
    torch's flight recorder), since when, the number of the call on its group, and the stacks of all its
    threads. Of ranks that were quiet at the same time, those in a collective wait, and the one that is
    elsewhere, or still in an earlier call, is the one they wait for; of ranks in different calls, those that are
    fewer. Where these are as many, neither is blamed. The same goes for one function called with tensors of
    different size or type. A rank that computes, saves, compiles or waits for the network is given more time.
    Where no rank is missed by the others, but none makes progress for four times as long, that is told; so is a
    rank that gives no sign of life for as long while others wait for it: each gives one every 20 seconds at
    least. Severity: `warning` while it lasts, `info` if the rank went on, `error` if it never did. Each later
    wait is a finding of its own (four at most). With the flag DISTRIBUTED a busy rank is reported sooner, and
    where torch keeps no flight recorder (gloo before torch 2.9, mpi) the collective is known from the calls that
    Python makes.

    Why it matters: A hung job dies half an hour later of a timeout that names the ranks which waited, not the one
    which did not come.

    Example:
        TD-R006 error: rank 1 does not come to all_reduce, where rank 0 has waited for 120 s since step 41: it is at
        train.py:88 in evaluate

    What to do: Open the stacks file of the rank that is named. Typical: only one rank evaluates, saves or
    downloads; a branch on local data skips a backward; a loader worker is stuck; its batches ran out. Let all
    ranks take the same way, or give the long part to all (`Join`, `drop_last`). Where torchrun has restarted the
    job and all ranks hang in init_process_group, they read addresses of the attempt before in the store that
    torchrun keeps: `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` gives each attempt its own.

    Thresholds: ``DISTRIBUTED.hang_s``, 15 seconds; times 8 for a rank that computes, imports or waits for a
    command, times 40 for one that saves, loads or waits for the network, times 120 for one that compiles; never
    for one that is in a debugger. Four times, a minute at least, and 30 seconds more for a rank without a sign of
    life; 16 times before the process group is there. With the flag DISTRIBUTED these limits are at most
    ``DISTRIBUTED.quiet_s``, 30 seconds.
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
    listens = (Start, Step, Observation, ProbeOff, Note)
    observes = (QuietRank, RankResumed, HungRank, HungRankResumed, RankAlive)
    needs = Needs(observations=(HungRank,), ranks=2)  # the probe `hang` also emits QuietRank

    def __init__(self) -> None:
        self._launches: dict[str, int] = {}
        self._world_size = 0
        self._starts: dict[tuple[int, int], Start] = {}  # by launch and rank
        self._signs = SignsOfLife()
        self._episodes: dict[str, list[Episode]] = {}
        self._index = KindIndex()
        self._quiet_s: dict[int, float] = {}  # rank -> how long it has been quiet by now, in limits
        self._given: list[_Given] = []
        self._reported: set[int] = set()  # episodes of all that were given out, by identity

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if process.rank is None or not process.is_rank:
            return ()
        if isinstance(event, Start):
            self._add_start(process, process.rank, event)
        launch = self._launches.get(process.label, process.attempt)
        self._signs.add_sign(launch, process.rank, event.t)
        if isinstance(event, ProbeOff | Note):
            if _ends_signs(event):
                self._signs.mute_rank(launch, process.rank)
            return ()
        if isinstance(event, Step):
            return ()
        quiet = QuietRank.from_event(event) or HungRank.from_event(event)
        resumed = RankResumed.from_event(event) or HungRankResumed.from_event(event)
        if quiet is None and resumed is None:
            return ()
        kept = self._episodes.setdefault(process.label, [])
        is_due = quiet is not None and self._add_quiet(kept, process, event.t, quiet)
        if resumed is not None and kept and kept[-1].over_t is None:
            kept[-1].over_t, kept[-1].lasted_s = event.t, resumed.quiet_s
            self._quiet_s.pop(process.rank, None)
            is_due = self._index.end_episode(kept[-1])
        return self._update_findings(self._describe_others(process), over=False) if is_due else ()

    def _add_start(self, process: ProcessDir, rank: int, start: Start) -> None:
        launch = self._launches[process.label] = get_launch_number(process, start)
        self._world_size = max(self._world_size, start.world_size)
        self._starts[launch, rank] = start

    def _describe_others(self, process: ProcessDir) -> OtherRanks:
        """What is known of the other ranks while the run goes on."""
        starts = self._list_newest_starts()
        elsewhere = frozenset(find_ranks_elsewhere(process.run, starts))
        return OtherRanks({}, elsewhere, self._signs, find_ranks_started(starts), self._world_size)

    def _list_newest_starts(self) -> list[Start]:
        newest = max((launch for launch, _ in self._starts), default=0)
        return [start for (launch, _), start in self._starts.items() if launch == newest]

    def _add_quiet(self, kept: list[Episode], process: ProcessDir, t: float, seen: QuietRank) -> bool:
        """Keep it; True if it may be the last thing that was missing to name a rank."""
        if kept and kept[-1].over_t is None:
            last = kept[-1]  # told again, after twice the time: still the same
            last.seen, last.reported_t, last.lasted_s = seen, t, seen.quiet_s
        elif len(kept) < MAX_EPISODES:
            began_t = seen.began_t if seen.began_t is not None else t
            ran_in = self._launches.get(process.label, process.attempt)
            kept.append(Episode(process.rank or 0, ran_in, process.label, began_t, t, seen, seen.quiet_s))
        else:
            return False
        may_open = self._index.may_open_case(kept[-1], self._episodes.values())
        return may_open or self._are_all_quiet(kept[-1])

    def _are_all_quiet(self, episode: Episode) -> bool:
        """True if with this one no rank makes progress for long, and that was not told."""
        self._quiet_s[episode.rank] = episode.lasted_s / (episode.seen.limit_s or math.inf)
        if len(self._quiet_s) < max(self._world_size, 2) or any(id(episode) in given.episodes for given in self._given):
            return False
        return min(self._quiet_s.values()) >= ALL_QUIET

    def finish(self, view: View) -> Iterable[Finding]:
        for found in view.processes.values():
            for episode in self._episodes.get(found.process.label, ()):
                if episode.over_t is None and found.last is not None and found.last.t > episode.reported_t:
                    episode.over_t = found.last.t  # it has stepped since
                elif episode.over_t is None and _is_standstill_over(view, found):
                    episode.over_t = view.find_end_time(found)
                elif episode.over_t is None and view.over:
                    episode.until_t = view.find_end_time(found)
                    more_s = max(episode.until_t - episode.reported_t, 0.0)
                    episode.lasted_s = episode.seen.quiet_s + more_s
        endings = {
            found.rank or 0: f"step {found.step}, {view.describe_ending(found)}" for found in view.list_rank_processes()
        }
        elsewhere, started = frozenset(view.list_ranks_elsewhere()), find_ranks_started(self._list_newest_starts())
        others = OtherRanks(endings, elsewhere, self._signs, started, self._world_size)
        return self._update_findings(others, over=view.over)

    def _update_findings(self, others: OtherRanks, *, over: bool) -> list[Finding]:
        """A finding for each time at which the job was held up; those given out are kept up to date.

        While one goes on, what else comes belongs to it; once it is over, the next is given out.
        """
        episodes = [episode for kept in self._episodes.values() for episode in kept]
        found = find_incidents(episodes, others, over, self._world_size)
        shown = sorted(found, key=Incident.get_weight, reverse=True)[:MAX_FINDINGS]
        self._index.mark_reported(shown)
        news: list[Finding] = []
        free = list(self._given)
        rest: list[Incident] = []
        for incident in shown:
            same = next((given for given in free if not given.episodes.isdisjoint(incident.episodes)), None)
            if same is None:
                rest.append(incident)
            else:
                free.remove(same)
                self._amend(same, incident, over)
        for incident in rest:
            news += self._place_incident(incident, free, over)
        for given in self._given:
            self._reported |= given.episodes
        # Several turned out to be one, or a rank that seemed to give no sign of life had not been read yet.
        self.withdrawn = [given.finding for given in free]
        return news

    def _place_incident(self, incident: Incident, free: list[_Given], over: bool) -> list[Finding]:
        """Tell of an incident in a finding of its own, or in that of one that is told no longer; what is news."""
        is_known = not self._reported.isdisjoint(incident.episodes)
        if len(self._given) >= MAX_FINDINGS and free:
            given = free.pop()
            self._amend(given, incident, over)
            return [] if is_known else [given.finding]
        self._given.append(_Given(self._make_incident_finding(incident, over), incident.episodes))
        return [self._given[-1].finding]

    def _amend(self, given: _Given, incident: Incident, over: bool) -> None:
        overwrite_finding(given.finding, self._make_incident_finding(incident, over))
        given.episodes = incident.episodes

    def _make_incident_finding(self, incident: Incident, over: bool) -> Finding:
        if not incident.cases:
            return self._make_all_quiet_finding(incident.together, over)
        worst = incident.worst
        return self._make_elsewhere_finding(worst) if worst.elsewhere else self._make_case_finding(worst, over)

    def _make_case_finding(self, case: Case, over: bool) -> Finding:
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
                f"{format_ranks({*missing, *waiters})} {verb} for each other in {_name_difference(case)}, for"
                f" {case.lasted_s:.0f} s {since}: {_describe_both(case)}"
            )
        elif case.differs_in_size:
            called, wait = "called" if case.is_over else "calls" if len(missing) == 1 else "call", first.seen
            title = (
                f"{format_ranks(missing)} {called} {wait.op}{DIFFERENT_TENSORS} than {waiting}, which {verb} for"
                f" {case.lasted_s:.0f} s {since}: {_describe_both(case)}"
            )
        elif NO_SIGN in case.silent.values():
            title += f": {'it gave' if len(missing) == 1 else 'they gave'} no sign of life"
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
            attempt=first.launch,
            rank=missing[0],
            phase="collective",
            evidence=[*lines, *([f"stacks: {join_limited(files, 6)}"] if files else [])],
            cause=_explain_case(case),
            try_next=ADVICE_ON_MUTUAL_WAIT if case.is_mutual else self._advise_on_missing(case, missing[0], files),
        )

    def _advise_on_missing(self, case: Case, rank: int, files: Sequence[str]) -> str:
        if files and case.missing:
            return f"look at the stacks of rank {rank} ({files[0]})"
        if case.silent and NO_SIGN not in case.silent.values():  # the job is over
            return f"see in its log why rank {rank} came no further"
        start = self._starts.get((case.first_wait.launch, rank))
        pid, host = (start.pid, start.host) if start is not None else (0, "")
        return (
            f"rank {rank} wrote no stacks: is its process alive? `py-spy dump --pid {pid or 'PID'}`"
            f" on {host or 'its host'}"
        )

    def _make_elsewhere_finding(self, case: Case) -> Finding:
        """Ranks of this host wait, for some of which another run directory tells."""
        first, waiting = case.first_wait, {episode.rank for episode in case.waiting}
        others = format_ranks(case.elsewhere)
        return self.make_finding(
            f"{format_ranks(waiting)} {'has' if len(waiting) == 1 else 'have'} waited {case.lasted_s:.0f} s in"
            f" {first.current_operation} since step {first.step} for {others} of another host (not in this run directory)",
            severity="error",
            first_step=first.step,
            attempt=first.launch,
            phase="collective",
            evidence=[_describe_episode(episode) for episode in sorted(case.waiting, key=_get_rank)[:4]],
            cause="a rank of the other host, or the network between the hosts: its records are not in this run directory",
            try_next="`tdbg join` the run directories of all hosts, then `tdbg report`; or run with a shared --run-dir",
        )

    def _make_all_quiet_finding(self, together: Sequence[Episode], over: bool) -> Finding:
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
            attempt=first.launch,
            phase="collective" if is_same_call else "",
            evidence=[
                *(_describe_episode(episode) for episode in sorted(together, key=_get_rank)[:6]),
                *([f"stacks: {join_limited(files, 6)}"] if files else []),
            ],
            cause=_explain_common_wait(together, is_same_call=is_same_call),
            try_next=OWN_STORE
            if _wait_after_restart(together)
            else "look at the stacks" + (f" ({files[0]})" if files else ""),
        )


def _explain_common_wait(together: Sequence[Episode], *, is_same_call: bool) -> str:
    if _wait_after_restart(together):
        return SHARED_STORE
    if is_same_call:
        return "every rank has come to this call and it does not end: the network, or the backend"
    return "all ranks wait for the same thing outside of the job: a file system, a lock, a server"


def _wait_after_restart(together: Sequence[Episode]) -> bool:
    """True if the ranks of a restarted job do not find each other."""
    return all(episode.launch and episode.state == "init" for episode in together)


def _ends_signs(event: ProbeOff | Note) -> bool:
    """True if a rank can say no longer that it is alive: the probe is off, or its steps are left out of a full disk."""
    return event.probe == HungRank.PROBE if isinstance(event, ProbeOff) else event.code == STEPS_LEFT_OUT


def _is_standstill_over(view: View, found: ProcessView) -> bool:
    """True if a standstill must be over: the rank ended normally, and the command with exit code 0."""
    return view.exit_code == 0 and view.describe_ending(found) == "ended"


def _get_rank(episode: Episode) -> int:
    return episode.rank


def _describe_episode(episode: Episode) -> str:
    ended = "went on" if episode.over_t is not None else "no end seen"
    number = f", call {episode.call_number} on {episode.group}" if episode.call_number else ""
    return f"rank {episode.rank}: {episode.describe_place()}{number}, quiet for {episode.lasted_s:.1f} s, {ended}"


def _describe_both(case: Case) -> str:
    """``rank 1 in barrier (train.py:9 in main), rank 0 in all_reduce (train.py:5 in main)``."""
    both, sized = (case.missing[0], case.first_wait), case.differs_in_size
    return ", ".join(f"rank {one.rank} {one.describe_place(sized=sized)}" for one in both)


def _name_difference(case: Case) -> str:
    if case.differs_in_size:
        return f"{case.first_wait.seen.op}{DIFFERENT_TENSORS}"
    return "different collectives"


def _explain_case(case: Case) -> str:
    if case.differs_in_size:
        return (
            "the ranks pass tensors of different size or type to the same call: a batch that is smaller on one rank, or"
            " parameters that only some of them have"
        )
    if case.is_mutual:
        return _explain_mutual_wait(case)
    if NO_SIGN in case.silent.values():
        return (
            "its process is stopped or has ended, native code holds the GIL, or it has not reached the call yet (download,"
            " import)"
        )
    return "that rank is busy elsewhere, left the loop, or took another branch than the others"


def _explain_mutual_wait(case: Case) -> str:
    rarer, other = case.missing[0], case.first_wait
    cause = "one of them took another branch than the other, left out a call, or left the loop"
    if rarer.alike < other.alike:
        often = f"only {format_count(rarer.alike, 'time')} before" if rarer.alike else "never before"
        cause += f"; rank {rarer.rank} made such a call of {rarer.current_operation} {often}"
    return cause
