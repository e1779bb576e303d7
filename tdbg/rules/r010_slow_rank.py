"""TD-R010: one rank is slower than the others, which wait for it."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tdbg.core.events import Event, Finding, Observation, Start, Step
from tdbg.core.observations import Evidence, Observed
from tdbg.core.observations.dataloader import DataWait
from tdbg.core.observations.hang import TrainingLines
from tdbg.core.observations.rank_batches import BatchChecksums
from tdbg.core.rule_base import Needs
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, Rule, overwrite_finding, read_observations
from tdbg.rules._host_pressure import describe_pressure, read_samples
from tdbg.rules._rank_looks import GroupKey, RankLooks, StepSample, limit_steps
from tdbg.rules.text import format_ranks
from tdbg.rules.view import View, get_launch_number

FIRST_STEPS = 2  # allocate, compile and start workers
SHARE = 0.2  # of a step
LEAST_MS = 5.0  # on a busy machine equal ranks differ by some milliseconds
WAITED = 0.5  # of the extra time must be found again as waiting in the others
WINDOW, HITS = 12, 9  # steps on record, and those of them in which it is the same rank and phase
BURSTS, BURST_MS, BURST_SHARE = 3, 1000.0, 0.15  # steps, what they add but for the longest, and its part of the time
ALONE = 0.75  # of all delays
LEAST_SHARE = 0.05  # of the time since: a rank that was slow for a while has cost less, and is a note
PAUSE = 2.0  # times the usual delay of a rank: a pause of another one, at its start, counts as no more
ONSET = 0.25  # of the usual extra time: what is less is noise of before
GROWTH = 2.0
LINE_SHARE = 0.1
AS_SLOW, AS_FAST = (
    0.5,
    0.25,
)  # of the extra time of the slowest rank: all of a set have more, and no other rank that much
MAX_LOOKS = 200_000  # of all ranks together: more are thinned out

ANY_PHASE = "any"

NAMES = {
    "data": "in its data loader",
    "forward": "in its forward pass",
    "update": "in its optimizer update",
    "rest": "in code outside of loader, forward pass, backward pass and update",
    ANY_PHASE: "now in one part of its step, now in another",
}
SHOWN = ("loader", "forward", "backward", "update", "other")  # the phases in evidence
ADVICE = {
    "data": "look at what that rank reads: its share of the files, its disk, its workers (TD-P002 names the line)",
    "forward": "look for a branch that this rank alone takes, and at its host: other load, CPU quota, OMP_NUM_THREADS",
    "update": "look for parameters that this rank alone updates, and at its host: other load, CPU quota",
    "rest": "look for what this rank alone does: logging, checkpoints, metrics; do it every Nth step or in a thread",
    ANY_PHASE: "look for what this rank alone does every Nth step (saving, evaluating, logging), and at its host: a CPU"
    " quota, other load, its priority (nice), more threads than CPUs",
}


class Phases(NamedTuple):
    """How long the parts of one step took, in milliseconds."""

    data: float
    forward: float
    backward: float
    update: float
    rest: float


class Slow(NamedTuple):
    """The ranks that are waited for in one step, in which phase, and for how many milliseconds."""

    ranks: tuple[int, ...]
    phase: str
    ms: float

    def includes(self, named: "Named | None") -> bool:
        """True if these ranks are among them, in this phase."""
        return named is not None and named.phase in (self.phase, ANY_PHASE) and set(named.ranks) <= set(self.ranks)


class Named(NamedTuple):
    """Ranks that are slow again and again, and in which phase."""

    ranks: tuple[int, ...]
    phase: str


class _Look(NamedTuple):
    step: int
    steps: int  # it stands for those since the one before
    t: float  # when it was done
    step_ms: float
    ranks: dict[int, Phases]
    slow: Slow | None

    def has_hit(self, named: Named | None) -> bool:
        """True if these ranks were slow in it."""
        return self.slow is not None and self.slow.includes(named)


@dataclass
class _Group:
    looks: list[_Look] = field(default_factory=list)
    sample: StepSample = field(default_factory=StepSample)
    named: Named | None = None
    bursts_due: int = 2 * WINDOW  # so many looks until bursts are looked for: all of them are gone through
    # Rank -> its delays in steps right after one on record. Where only every second step is, ranks that are slow in turns
    # look like one that always is.
    adjacent_ms: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def has_hits(self) -> bool:
        """True if a look of the rank that is named is left."""
        return any(look.has_hit(self.named) for look in self.looks)

    def add_adjacent(self, slow: Slow) -> None:
        """Count a delay of a step right after one on record, in equal parts."""
        for rank in slow.ranks:
            self.adjacent_ms[rank].append(slow.ms / len(slow.ranks))

    def reject_turns(self, named: Named | None) -> Named | None:
        """None where adjacent steps show that other ranks are as slow."""
        if named is None or sum(map(len, self.adjacent_ms.values())) < WINDOW * len(named.ranks):
            return named
        own = [ms for rank in named.ranks for ms in self.adjacent_ms[rank]]
        most_ms = PAUSE * statistics.median(own) if own else 0.0
        lost_ms = {rank: sum(min(ms, most_ms) for ms in delays) for rank, delays in self.adjacent_ms.items()}
        return named if own and sum(lost_ms[rank] for rank in named.ranks) >= ALONE * sum(lost_ms.values()) else None

    def thin_out(self) -> None:
        """Keep half of the looks, each for the steps since the one before."""
        self.sample.thin_out()
        kept = [look for look in self.looks if self.sample.has_step(look.step)]
        if not kept:
            return
        before = [kept[0].step - kept[0].steps, *(look.step for look in kept)]
        self.looks = [look._replace(steps=look.step - last) for look, last in zip(kept, before, strict=False)]


def _read_phases(event: Step) -> Phases | None:
    """How long the phases of one step took; None where that is not on record."""
    if event.step_ms is None or event.forward_ms is None:
        return None
    parts = [part or 0.0 for part in (event.loader_ms, event.forward_ms, event.backward_ms, event.optimizer_ms)]
    return Phases._make([*parts, max(event.step_ms - sum(parts), 0.0)])


def find_slow_ranks(ranks: dict[int, Phases], waits_in: frozenset[str]) -> Slow | None:
    """The rank that the others wait for in this step, or several that are as slow.

    waits_in: phases that hold a collective. What takes longer on a rank in any other phase than on the median one (of two,
    the faster) must be found again in those of the others; a difference that nobody waits for is another kind of work.
    """
    best: Slow | None = None
    waited = {rank: sum(getattr(phases, name) for name in waits_in) for rank, phases in ranks.items()}
    for phase in Phases._fields:
        if phase in waits_in:
            continue
        times = {rank: float(getattr(phases, phase)) for rank, phases in ranks.items()}
        usual = statistics.median_low(times.values())
        extra = {rank: ms - usual for rank, ms in times.items()}
        for rank, ms in extra.items():
            if ms < LEAST_MS or (best is not None and ms <= best.ms):
                continue
            others = statistics.median(spent for who, spent in waited.items() if who != rank)
            if others - waited[rank] >= WAITED * ms:
                best = Slow(_find_as_slow(extra, waited, rank), phase, ms)
    return best


def _find_as_slow(extra: dict[int, float], waited: dict[int, float], slowest: int) -> tuple[int, ...]:
    """The ranks that are about as slow as one, if all others are much faster and wait; else that one alone."""
    found = [rank for rank, ms in extra.items() if ms >= AS_SLOW * extra[slowest] or rank == slowest]
    others = [rank for rank in extra if rank not in found]
    if len(found) == 1 or not others or max(extra[rank] for rank in others) > AS_FAST * extra[slowest]:
        return (slowest,)
    usual = statistics.median(waited[rank] for rank in others)
    victims = all(usual - waited[rank] >= WAITED * extra[rank] for rank in found)
    return tuple(sorted(found)) if victims else (slowest,)


@RULES.add
class SlowRank(Rule):
    """Says which rank, or which ranks, the others wait for, in which part of its step, and for how long.

    What it does: Puts the times of the same step side by side over all ranks: loader, forward pass,
    backward pass, update, and the rest. Where one rank takes longer than the median rank in a phase
    without a collective, and the others take about as much longer where they wait (under
    DistributedDataParallel in the backward pass; where the program averages gradients itself, after it),
    that rank is the cause and they are its victims. It speaks when that is the same rank and phase in 9 of
    12 steps on record, for a fifth of the step and 5 ms; or where such steps, if seldom or in changing phases (as
    under a CPU quota), add a second and 15 % of the time. Several ranks, half of all at most, that are about as
    slow while all others are much faster are named together, and with their host if they are all of its ranks.
    Where samples of that rank's host, taken by the supervisor, show something out of the ordinary since it
    became slow, a line says what: a CPU quota, more threads than CPUs, other processes, memory pressure, swap,
    the disk, a lower CPU frequency, or that its main thread waits for a CPU.

    Why it matters: Every step takes as long as that of the slowest rank. On N ranks one slow loader, host
    or logger wastes N times what it costs, and no rank's own figures show it: they all report the same
    step time.

    Example:
        TD-R010 warning: rank 3 is slow in its forward pass, and ranks 0-2 wait for it: 31 ms longer in each step,
        52% of the step time, since step 20
          rank 3 is at net.py:31 in forward in 74% of its stack samples, the others in 24%

    What to do: Look at the phase that it names, on that rank alone: its part of the files, its disk, a
    branch on the rank, other load on its host, a CPU quota. What only rank 0 does (logging, checkpoints)
    can go into a thread.

    Thresholds: 20 % of a step and 5 ms in 9 of 12 steps; 1 s and 15 % of the time in 3 steps or more. A note
    where the delays are less than 5 % of the time since they began, or, where it is slow in less than two thirds
    of the steps by the end, less than 1 s or 15 %. It compares ranks that have the whole
    model: it is silent where the model is sharded or the program makes groups of fewer ranks. On accelerators
    only the loader is compared, and only where TD-P002 finds that the device runs out of work: the host's time
    in other phases is not the device's.
    """

    code = "TD-R010"
    title = "a slow rank keeps the others waiting"
    severity = "warning"
    grade = Evidence.STATISTICAL.grade_word
    listens = (Start, Step, Observation)
    observes = (BatchChecksums, DataWait, TrainingLines)
    needs = Needs(observations=(BatchChecksums,), ranks=2)

    def __init__(self) -> None:
        self._looks: RankLooks[Phases] = RankLooks(MAX_LOOKS)
        self._world: dict[str, int] = {}  # process -> number of ranks
        self._launches: dict[str, int] = {}
        self._on_device: set[int] = set()  # launches
        self._starved: defaultdict[int, set[int | None]] = defaultdict(set)  # launch -> ranks whose accelerator is idle
        self._waits_in: dict[int, frozenset[str]] = {}  # by launch; empty: not to be compared
        self._lines: defaultdict[int, dict[int, dict[str, float]]] = defaultdict(
            dict
        )  # launch -> rank -> line -> share
        self._hosts: defaultdict[int, dict[int, str]] = defaultdict(dict)  # launch -> rank -> its host
        self._groups: defaultdict[GroupKey, _Group] = defaultdict(_Group)
        self._given: list[Finding] = []
        self._view: View | None = None  # of the whole run, at its end

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if isinstance(event, Start):
            self._looks.record_launch(process, event)
            self._world[process.label] = event.world_size
            launch = self._launches[process.label] = get_launch_number(process, event)
            if process.rank is not None and process.is_rank:
                self._hosts[launch][process.rank] = event.host
            if event.device.get("type", "cpu") != "cpu":
                self._on_device.add(self._launches[process.label])
        elif isinstance(event, Step):
            return self._compare_step(process, event)
        elif process.label in self._launches:
            for seen in read_observations(event, self.observes):
                self._keep_observation(process, self._launches[process.label], seen)
        return ()

    def _keep_observation(self, process: ProcessDir, launch: int, seen: Observed) -> None:
        if isinstance(seen, DataWait):
            self._starved[launch].add(process.rank)
        elif isinstance(seen, BatchChecksums):
            waits_in = frozenset({"backward"} if seen.wrapped else {"backward", "rest"})
            self._waits_in[launch] = frozenset() if seen.is_split else self._waits_in.get(launch, waits_in)
        elif isinstance(seen, TrainingLines) and process.rank is not None and process.is_rank:
            shares = self._lines[launch].setdefault(process.rank, {})
            for where, function, share in seen.rows():
                shares[f"{where} in {function}"] = float(share)

    def _compare_step(self, process: ProcessDir, event: Step) -> Iterable[Finding]:
        phases = _read_phases(event) if event.phase == "train" and event.step > FIRST_STEPS else None
        if phases is None or event.sharded or process.label not in self._launches:
            return ()
        if event.device_mb is not None:
            self._on_device.add(self._launches[process.label])
        world = range(self._world[process.label])
        found: list[Finding] = []
        for key, step, ranks in self._looks.collect_rank(process, world, 0, event.step, phases):
            waits_in = self._waits_in.get(key.launch, frozenset())
            if waits_in:
                found += self._add_look(self._groups[key], key, (step, event.t), ranks, waits_in)
        return found

    def _add_look(
        self, group: _Group, key: GroupKey, at: tuple[int, float], ranks: dict[int, Phases], waits_in: frozenset[str]
    ) -> Iterable[Finding]:
        step, t = at
        if not group.sample.has_step(step):
            return ()
        if key.launch in self._on_device:
            waits_in = frozenset(Phases._fields) - {"data"}
        step_ms = statistics.median(map(sum, ranks.values()))
        slow = find_slow_ranks(ranks, waits_in)
        steps = step - group.looks[-1].step if group.looks else 1
        group.looks.append(_Look(step, steps, t, step_ms, ranks, slow if slow and slow.ms >= SHARE * step_ms else None))
        if len(group.looks) > limit_steps(MAX_LOOKS, len(ranks)):
            group.thin_out()
        if slow is not None and steps == 1:
            group.add_adjacent(slow)
        if group.named is None:
            group.named = self._confirm(key, group, _find_steady(group.looks[-WINDOW:]))
            if group.named is None and len(group.looks) >= group.bursts_due:
                group.bursts_due = 2 * len(group.looks)
                group.named = self._confirm(key, group, _find_bursts(group.looks))
            if group.named is not None:
                return self.report_once(self._given, self._make_slow_finding(key, group, group.named))
        return ()

    def _confirm(self, key: GroupKey, group: _Group, named: Named | None) -> Named | None:
        """None where ranks are slow in turns, or where an accelerator still had work while its host waited for a batch."""
        named = group.reject_turns(named)
        if named is None or key.launch not in self._on_device or self._starved[key.launch].issuperset(named.ranks):
            return named
        return None

    def finish(self, view: View) -> Iterable[Finding]:
        self._view = view
        for key, group in self._groups.items():
            if group.named is None:
                group.named = self._confirm(key, group, _find_bursts(group.looks))
                if group.named is not None:
                    yield from self.report_once(self._given, self._make_slow_finding(key, group, group.named))
            elif group.has_hits() and self._given and self._given[0].rank == group.named.ranks[0]:
                overwrite_finding(self._given[0], self._make_slow_finding(key, group, group.named))

    def _describe_host(self, rank: int, since_t: float) -> list[str]:
        """What was out of the ordinary on the host of a rank since then; nothing while the run goes on."""
        found = (
            next((one for one in self._view.list_rank_processes() if one.rank == rank), None) if self._view else None
        )
        if self._view is None or found is None or found.start is None:
            return []
        samples = read_samples(self._view.run, found.start.host)
        return describe_pressure(samples, rank, since_t, found.start.env.get("OMP_NUM_THREADS", ""))

    def _name_ranks(self, launch: int, ranks: tuple[int, ...]) -> str:
        """``rank 3``, ``ranks 4-7``, or ``host b (ranks 4-7)`` where these are all of its ranks, and there are others."""
        hosts = self._hosts[launch]
        own = {hosts.get(rank, "") for rank in ranks}
        is_host = len(ranks) > 1 and len(own) == 1 and sum(host in own for host in hosts.values()) == len(ranks)
        return f"host {own.pop()} ({format_ranks(ranks)})" if is_host and "" not in own else format_ranks(ranks)

    def _make_slow_finding(self, key: GroupKey, group: _Group, named: Named) -> Finding:
        ranks, phase = named
        since = _find_onset(group.looks, named)
        compared = [look for look in group.looks if look.step >= since]
        hits = [look for look in compared if look.has_hit(named)]
        extra = [look.slow.ms for look in hits if look.slow is not None]
        lost_ms = sum(look.steps * look.slow.ms for look in hits if look.slow is not None)
        share = lost_ms / _sum_time(compared)
        is_grave = share >= LEAST_SHARE
        if _is_in_bursts(hits, compared):  # it may have been slow in each step for a while, and was found by that
            is_grave = share >= BURST_SHARE and lost_ms >= BURST_MS
        others = [who for who in compared[-1].ranks if who not in ranks]
        who, is_one = self._name_ranks(key.launch, ranks), len(ranks) == 1
        is_single = is_one or who.startswith("host ")
        where = NAMES[phase] if is_single else NAMES[phase].replace(" its ", " their ")
        host = self._describe_host(ranks[0], compared[0].t)
        return self.make_finding(
            f"{who} {'is' if is_single else 'are'} slow {where}, and {format_ranks(others)}"
            f" {'wait' if len(others) > 1 else 'waits'} for {'it' if is_single else 'them'}:"
            f" {_format_course(extra, hits, compared)}, {share:.0%} of the step time, since step {since}",
            severity="warning" if is_grave else "info",
            first_step=since,
            rank=ranks[0],
            phase="input" if phase == "data" else "",
            evidence=[
                *_format_lines(self._lines[key.launch], ranks),
                *host,
                _format_medians(format_ranks(ranks), [look.ranks[who] for look in hits for who in ranks]),
                _format_medians(format_ranks(others), [look.ranks[who] for look in hits for who in others]),
                f"compared in {format_count(len(compared), 'step')} on record of all ranks",
            ],
            cause=_explain_slowness(phase, is_one=is_one, is_host_busy=bool(host)),
            try_next=ADVICE[phase]
            if is_one
            else "look at what these ranks have in common: their host (other load, CPU quota, clock frequency), their data",
        )


def _explain_slowness(phase: str, *, is_one: bool, is_host_busy: bool) -> str:
    who, whose = ("this rank has", "its") if is_one else ("these ranks have", "their")
    if phase == ANY_PHASE:
        outside = "what runs there is stopped or delayed from outside, whatever it does"
        return (
            f"likely: {outside}"
            if is_host_busy
            else f"{who} work of {whose} own in several parts of a step, or {outside}"
        )
    return f"{who} more work {NAMES[phase].replace(' its ', ' the ')} than the others, or a slower host"


def _find_steady(looks: list[_Look]) -> Named | None:
    """The ranks that were slow in most of these steps, in one phase."""
    hits = Counter((rank, look.slow.phase) for look in looks if look.slow is not None for rank in look.slow.ranks)
    found = [one for one, count in hits.items() if count >= HITS]
    if not found:
        return None
    phase = max(found, key=hits.__getitem__)[1]
    named = Named(tuple(sorted(rank for rank, where in found if where == phase)), phase)
    return named if sum(look.has_hit(named) for look in looks) >= HITS else None


def _find_bursts(looks: list[_Look]) -> Named | None:
    """The ranks whose delays, in one phase, add much; else those whose delays in whatever phase do, as a quota's."""
    if len(looks) < 2 * WINDOW:
        return None
    slow = [(look.steps, look.slow) for look in looks if look.slow is not None]
    return _find_costly(looks, [(Named(one.ranks, one.phase), steps * one.ms) for steps, one in slow]) or _find_costly(
        looks, [(Named(one.ranks, ANY_PHASE), steps * one.ms) for steps, one in slow]
    )


def _find_costly(looks: list[_Look], delays: list[tuple[Named, float]]) -> Named | None:
    lost: defaultdict[Named, list[float]] = defaultdict(list)
    for delayed, ms in delays:
        lost[delayed].append(ms)
    named = max(lost, key=lambda one: sum(lost[one]), default=None)
    if named is None or len(lost[named]) < BURSTS:
        return None
    if sum(lost[named]) < ALONE * sum(ms for _, ms in delays):  # a delay that goes around is nobody's
        return None
    longest = max(lost[named])  # one pause is none
    again = sum(lost[named]) - longest
    return named if again >= max(BURST_SHARE * (_sum_time(looks) - longest), BURST_MS) else None


def _sum_time(looks: list[_Look]) -> float:
    return sum(look.steps * look.step_ms for look in looks)


def _find_onset(looks: list[_Look], named: Named) -> int:
    """The first step from which on it is the same rank and phase in most steps; of bursts the first."""
    usual = statistics.median(look.slow.ms for look in looks if look.slow is not None and look.has_hit(named))
    hits = [look.slow is not None and look.has_hit(named) and look.slow.ms >= ONSET * usual for look in looks]
    for at, hit in enumerate(hits):
        if hit and sum(hits[at : at + WINDOW]) * 3 >= 2 * len(hits[at : at + WINDOW]):
            return looks[at].step
    return looks[hits.index(True)].step


def _is_in_bursts(hits: list[_Look], looks: list[_Look]) -> bool:
    return sum(look.steps for look in hits) * 3 < sum(look.steps for look in looks) * 2


def _format_course(extra: list[float], hits: list[_Look], looks: list[_Look]) -> str:
    """``31 ms longer in each step``, or how it grows, or in how many steps it does."""
    third = max(len(extra) // 3, 1)
    early, late = statistics.median(extra[:third]), statistics.median(extra[-third:])
    if _is_in_bursts(hits, looks):
        count = format_count(len(looks), "step")
        return f"in bursts, {statistics.median(extra):.3g} ms longer in {len(hits)} of {count} on record"
    if len(extra) >= WINDOW and late > GROWTH * early:
        return f"{late:.3g} ms longer in each step, growing from {early:.3g} ms"
    return f"{statistics.median(extra):.3g} ms longer in each step"


def _format_medians(who: str, rows: list[Phases]) -> str:
    parts = [
        f"{name} {statistics.median(times):.3g}" for name, times in zip(SHOWN, zip(*rows, strict=True), strict=True)
    ]
    return f"{who}: {', '.join(parts)} ms (medians)"


def _choose_line(more: dict[str, float]) -> str:
    """The line that stands out most, in the function that does: the time of a loop is split over its lines.

    more: by how much a rank is more often at ``file.py:31 in forward`` than others.
    """
    of_function: dict[tuple[str, str], list[str]] = {}
    for line in more:
        place, _, function = line.partition(" in ")
        of_function.setdefault((place.rpartition(":")[0], function), []).append(line)
    best = max(of_function.values(), key=lambda lines: sum(more[line] for line in lines))
    line = max(best, key=more.__getitem__)
    return line if more[line] >= LINE_SHARE else max(more, key=more.__getitem__)


def _format_lines(shares: dict[int, dict[str, float]], ranks: tuple[int, ...]) -> list[str]:
    """The line at which the first of these ranks is more often than the median of the others, if one stands out."""
    rank = ranks[0]
    own, others = shares.get(rank, {}), [lines for who, lines in shares.items() if who not in ranks]
    if not own or not others:
        return []
    usual = {line: statistics.median(lines.get(line, 0.0) for lines in others) for line in own}
    line = _choose_line({line: own[line] - usual[line] for line in own})
    if own[line] - usual[line] < LINE_SHARE:
        return []
    return [f"rank {rank} is at {line} in {own[line]:.0%} of its stack samples, the others in {usual[line]:.0%}"]
