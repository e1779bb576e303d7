"""TD-R009: all ranks train on the same data."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tdbg.core.events import Event, Finding, Observation, Start
from tdbg.core.observations.rank_batches import BatchChecksums
from tdbg.core.rule_base import Needs
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, Rule
from tdbg.rules._rank_looks import GroupKey, RankLooks
from tdbg.rules.text import format_ranks

EQUAL_LOOKS = 3
OWN_PART = "give each rank its own part of the data: DistributedSampler(dataset), set_epoch(epoch)"
SHARDED = "if each rank holds a part of the sequence, ignore this; else "

Batch = dict[str, str]  # path of an input -> checksum


@dataclass
class _Streak:
    """Looks in a row in which the same ranks had the same checksum."""

    first_step: int
    looks: int = 0
    values: set[str] = field(default_factory=set)  # the checksums in them


@dataclass
class _Input:
    """One input over all looks."""

    values: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))  # rank -> its first checksums
    streaks: dict[frozenset[int], _Streak] = field(default_factory=dict)  # of ranks that are equal now

    def add_checksums(self, step: int, found: dict[int, str]) -> None:
        """One more look: its checksum on each rank."""
        equal: defaultdict[str, set[int]] = defaultdict(set)
        for rank, checksum in found.items():
            equal[checksum].add(rank)
            if len(self.values[rank]) < EQUAL_LOOKS:
                self.values[rank].add(checksum)
        cells = [(checksum, frozenset(ranks)) for checksum, ranks in equal.items() if len(ranks) > 1]
        going_on: dict[frozenset[int], _Streak] = {}
        for before, streak in self.streaks.items():
            for checksum, cell in cells:
                common = before & cell  # of a group that falls apart each part goes on
                if len(common) > 1 and (common not in going_on or streak.looks >= going_on[common].looks):
                    going_on[common] = _Streak(streak.first_step, streak.looks + 1, streak.values | {checksum})
        for checksum, cell in cells:
            going_on.setdefault(cell, _Streak(step, 1, {checksum}))
        self.streaks = going_on

    def list_equal_groups(self) -> list[frozenset[int]]:
        """Ranks that were equal in so many looks in a row, with so many different checksums."""
        return [ranks for ranks, streak in self.streaks.items() if len(streak.values) >= EQUAL_LOOKS]

    def varies_on(self, ranks: frozenset[int]) -> bool:
        """True if it changes from step to step on one of the ranks."""
        return any(len(self.values[rank]) >= EQUAL_LOOKS for rank in ranks)


@dataclass
class _Ranks:
    inputs: dict[str, _Input] = field(default_factory=dict)  # by path
    is_reported: bool = False
    sharded: bool = False  # by FSDP, without DDP: the ranks may also hold parts of one sequence

    def find_equal_inputs(self) -> tuple[frozenset[int], dict[str, _Streak], bool] | None:
        """The ranks with most equal inputs, these inputs, and whether they are all that vary; None without any."""
        named = sorted(self.inputs.items())
        groups = {ranks for _, one in named for ranks in one.list_equal_groups()}
        found = []
        for ranks in groups:
            equal = {name: one.streaks[ranks] for name, one in named if ranks in one.list_equal_groups()}
            is_all = len(equal) == sum(one.varies_on(ranks) for _, one in named)
            found.append((is_all, len(ranks), sorted(ranks), ranks, equal))
        if not found:
            return None
        is_all, _, _, ranks, equal = max(found, key=lambda one: one[:3])
        return ranks, equal, is_all


@RULES.add
class SameBatches(Rule):
    """Says when the ranks of a data-parallel job are called with the same batches.

    What it does: In the opening inspection and its later looks each rank has a checksum of 256 elements of each
    input of its first call in a step on record. They are compared where the records of all ranks are read. It
    speaks when three looks or more in a row, with three different batches, were equal on several ranks: a
    warning if that goes for all inputs that change from step to step, a note if only for some of them. Where FSDP
    shards the model and no DistributedDataParallel wraps it, it is always a note: the ranks may hold parts of the
    sequence of one batch.

    Why it matters: With N ranks on the same data an epoch costs N times as much and the batch is no larger than
    one rank's. Loss and weights look well: nothing tells it apart from a run on one rank.

    Example:
        TD-R009 warning: ranks 0-1 train on the same data: 8 of 8 batches looked at were equal, from step 1 on

    What to do: Give the loader a `DistributedSampler`, or each rank its own part of a stream or its own seed.
    With Hugging Face `accelerate`, pass the loader through `prepare`.

    Thresholds: 3 different batches. Inputs of fewer than 16 elements are left out. It is silent where the program
    makes groups of fewer ranks (tensor, pipeline and context parallelism give one batch to several ranks), and
    where the model is neither in a DistributedDataParallel module nor sharded by FSDP over all ranks alone.
    """

    code = "TD-R009"
    title = "ranks train on the same data"
    severity = "warning"
    leads_to = ("TD-R011",)  # the same data, and then the same draws
    listens = (Start, Observation)
    observes = (BatchChecksums,)
    needs = Needs(observations=(BatchChecksums,), ranks=2)

    def __init__(self) -> None:
        self._looks: RankLooks[Batch] = RankLooks()
        self._ranks: defaultdict[GroupKey, _Ranks] = defaultdict(_Ranks)
        self._given: list[Finding] = []

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        self._looks.record_launch(process, event)
        seen = BatchChecksums.from_event(event)
        if seen is None or seen.is_split or not seen.wrapped:
            return ()
        batch = dict(zip(seen.names, seen.checksums, strict=False))
        found: list[Finding] = []
        for key, step, looks in self._looks.collect_rank(process, seen.group, 0, seen.step, batch):
            self._ranks[key].sharded = self._ranks[key].sharded or bool(seen.sharded)
            found += self._compare_batches(key, step, looks)
        return found

    def _compare_batches(self, key: GroupKey, step: int, looks: dict[int, Batch]) -> Iterable[Finding]:
        ranks = self._ranks[key]
        for name in set.intersection(*map(set, looks.values())):
            ranks.inputs.setdefault(name, _Input()).add_checksums(
                step, {rank: batch[name] for rank, batch in looks.items()}
            )
        equal = None if ranks.is_reported else ranks.find_equal_inputs()
        if equal is None:
            return ()
        ranks.is_reported = True
        return self.report_once(self._given, self._make_equal_finding(*equal, sharded=ranks.sharded))

    def _make_equal_finding(
        self, found: frozenset[int], equal: dict[str, _Streak], is_all: bool, *, sharded: bool
    ) -> Finding:
        least = min(equal.values(), key=lambda one: one.looks)
        what = (
            "train on the same data"
            if is_all
            else f"get the same {join_limited(list(equal), 3)}, but other inputs differ"
        )
        return self.make_finding(
            f"{format_ranks(found)} {what}: {least.looks} of {format_count(least.looks, 'batch')} looked at were equal, from step"
            f" {least.first_step} on",
            severity=self.severity if is_all and not sharded else "info",
            first_step=least.first_step,
            rank=min(found),
            phase="input",
            evidence=[
                f"input {name}: {format_count(len(streak.values), 'different value')}, each equal on these ranks"
                for name, streak in list(equal.items())[:3]
            ],
            cause="a loader without a DistributedSampler, or the same seed for the order of all ranks",
            try_next=SHARDED * sharded + OWN_PART,
            grade="local",
        )
