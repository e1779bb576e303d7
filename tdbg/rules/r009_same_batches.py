"""TD-R009: all ranks train on the same data."""

import zlib
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

Batch = dict[str, str]  # path of an input -> checksum


@dataclass
class _Input:
    """One input over all looks."""

    values: set[str] = field(default_factory=set)  # its checksums on one rank
    first_step: int = 0  # since when the same two ranks or more had the same
    looks: int = 0  # since then,
    equal_values: set[str] = field(default_factory=set)  # and the checksums in them on one rank
    histories: dict[int, int] = field(default_factory=dict)  # rank -> a checksum of all its checksums since then

    def add_checksums(self, step: int, found: dict[int, str]) -> None:
        """One more look: its checksum on each rank. It begins anew where no two ranks are equal any longer."""
        self.values.add(next(iter(found.values())))
        self._continue_history(step, found)
        if not self.find_equal_ranks():
            self.looks = 0
            self.equal_values.clear()
            self.histories.clear()
            self._continue_history(step, found)

    def _continue_history(self, step: int, found: dict[int, str]) -> None:
        self.first_step = self.first_step if self.looks else step
        self.looks += 1
        self.equal_values.add(next(iter(found.values())))
        for rank, checksum in found.items():
            self.histories[rank] = zlib.crc32(checksum.encode(), self.histories.get(rank, 0))

    def find_equal_ranks(self) -> set[frozenset[int]]:
        """Ranks that had the same in every look since then."""
        by_history: defaultdict[int, set[int]] = defaultdict(set)
        for rank, history in self.histories.items():
            by_history[history].add(rank)
        return {frozenset(ranks) for ranks in by_history.values() if len(ranks) > 1}


@dataclass
class _Ranks:
    inputs: dict[str, _Input] = field(default_factory=dict)  # by path
    said: bool = False


@RULES.add
class SameBatches(Rule):
    """Says when the ranks of a data-parallel job are called with the same batches.

    What it does: In the opening inspection and its later looks each rank has a checksum of 256 elements of each
    input of its first call in a step on record. They are compared where the records of all ranks are read. It
    speaks when three looks or more in a row, with three different batches, were equal on several ranks: a
    warning if that goes for all inputs that change from step to step, a note if only for some of them.

    Why it matters: With N ranks on the same data an epoch costs N times as much and the batch is no larger than
    one rank's. Loss and weights look well: nothing tells it apart from a run on one rank.

    Example:
        TD-R009 warning: ranks 0-1 train on the same data: 8 of 8 batches looked at were equal, from step 1 on

    What to do: Give the loader a `DistributedSampler`, or each rank its own part of a stream or its own seed.
    With Hugging Face `accelerate`, pass the loader through `prepare`.

    Thresholds: 3 different batches. Inputs of fewer than 16 elements are left out. It is silent where the model
    is sharded or the program makes groups of fewer ranks (tensor, pipeline and context parallelism give one
    batch to several ranks), and where the model is not in a DistributedDataParallel module.
    """

    code = "TD-R009"
    title = "ranks train on the same data"
    severity = "warning"
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
            found += self._compare_batches(key, step, looks)
        return found

    def _compare_batches(self, key: GroupKey, step: int, looks: dict[int, Batch]) -> Iterable[Finding]:
        ranks = self._ranks[key]
        for name in set.intersection(*map(set, looks.values())):
            ranks.inputs.setdefault(name, _Input()).add_checksums(
                step, {rank: batch[name] for rank, batch in looks.items()}
            )
        varying = {name: one for name, one in sorted(ranks.inputs.items()) if len(one.values) >= EQUAL_LOOKS}
        equal = {
            name: found
            for name, one in varying.items()
            if len(one.equal_values) >= EQUAL_LOOKS and (found := one.find_equal_ranks())
        }
        if ranks.said or not equal:
            return ()
        ranks.said = True
        everywhere = set.intersection(*equal.values()) if len(equal) == len(varying) else set()
        return self.report_once(self._given, self._make_equal_finding(ranks, equal, everywhere))

    def _make_equal_finding(
        self, ranks: _Ranks, equal: dict[str, set[frozenset[int]]], everywhere: set[frozenset[int]]
    ) -> Finding:
        least = min((ranks.inputs[name] for name in equal), key=lambda one: one.looks)
        found = max(everywhere or next(iter(equal.values())), key=lambda those: (len(those), sorted(those)))
        what = (
            "train on the same data"
            if everywhere
            else f"get the same {join_limited(list(equal), 3)}, but other inputs differ"
        )
        return self.make_finding(
            f"{format_ranks(found)} {what}: {least.looks} of {format_count(least.looks, 'batch')} looked at were equal, from step"
            f" {least.first_step} on",
            severity=self.severity if everywhere else "info",
            first_step=least.first_step,
            rank=min(found),
            phase="input",
            evidence=[
                f"input {name}: {format_count(len(ranks.inputs[name].equal_values), 'different value')}, each equal on these ranks"
                for name in list(equal)[:3]
            ],
            cause="a loader without a DistributedSampler, or the same seed for the order of all ranks",
            try_next="give each rank its own part of the data: DistributedSampler(dataset), set_epoch(epoch)",
            grade="local",
        )
