"""TD-R008: replicas of one model whose weights differ between ranks."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tdbg.core.events import Event, Finding, Number, Observation, Start
from tdbg.core.observations.rank_weights import WeightChecksums
from tdbg.core.rule_base import Needs
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, Rule
from tdbg.rules._rank_looks import GroupKey, RankLooks
from tdbg.rules.text import format_figure, format_ranks
from tdbg.rules.view import View

EQUAL_LOOKS = 3  # without a wrapper: equal and changing in so many consecutive checks: replicas
ROUNDED_SHARE = 1e-3  # of its norm, by which what tensor parallelism replicates may differ: ranks compute it themselves
LASTING_LOOKS = 2  # in a row that differ
SHOWN = 3
ALL_ZERO = "0" * 12  # the checksum of zeros
LOADED_APART = "ranks that initialised or loaded the model differently"
BEGAN_APART = (
    "the ranks began with different weights (another seed, another checkpoint), and the program averages gradients alone",
    "seed all ranks alike before the model is made, or broadcast the weights of rank 0 before the first step",
)
FULLY_SHARD_COPIES_NOTHING = f"{LOADED_APART}: fully_shard copies no weights between replicas"
REPLICATE_COPIES_NOTHING = f"{LOADED_APART}: replicate() copies no weights between replicas"
TENSOR_PARALLEL = (
    "likely: with sequence parallelism, gradients of replicated parameters (norms) are not summed over the"
    " tensor-parallel ranks",
    "all-reduce these gradients over the tensor-parallel group",
)


class _Seen(NamedTuple):
    """One parameter: the checksum and norm of its elements, and the checksum of their gradients, if it is known."""

    checksum: str
    norm: Number | None
    gradient: str = ""


Look = dict[str, _Seen]  # by name


@dataclass
class _Part:
    """The parameters that one look reads: of many, each look reads another part."""

    looks: int = 0
    equal_step: int | None = None  # the last step after which all parameters were equal
    equal_looks: int = 0  # from the first on, each with other weights than the one before
    weights: frozenset[str] = frozenset()  # checksums of the last look that was equal
    apart: list["_Apart"] = field(default_factory=list)  # looks that differ, since the last equal one
    averaged: set[str] = field(default_factory=set)  # gradients that were equal on all ranks, whose weights were not


@dataclass
class _Replicas:
    wrapped: bool = False  # DDP, FSDP2 or a mesh keeps them equal
    hybrid: bool = False
    replicated: bool = False
    whole: bool = False  # of replicate()
    parts: defaultdict[int, _Part] = field(default_factory=lambda: defaultdict(_Part))
    apart_looks: int = 0  # of any part, in a row
    equal_step: int | None = None  # of any part
    is_reported: bool = False

    @property
    def is_certain(self) -> bool:
        """True if the ranks are known to be replicas."""
        looks = (max(part.equal_looks, len(part.averaged)) for part in self.parts.values())
        return self.wrapped or any(count >= EQUAL_LOOKS for count in looks)


class _Apart(NamedTuple):
    step: int
    names: list[str]  # of the parameters that differ
    looks: dict[int, Look]
    averaged: list[str]  # those of them whose gradients are equal


def _is_apart(look: Iterable[_Seen], *, is_rounded: bool) -> bool:
    """True if a parameter differs between ranks. is_rounded: by more than what the order of sums can do."""
    checksums, norms, _ = zip(*look, strict=True)
    if len(set(checksums)) == 1 or not is_rounded:
        return len(set(checksums)) > 1
    sizes = [float(norm) for norm in norms if isinstance(norm, int | float)]
    return len(sizes) < len(norms) or max(sizes) - min(sizes) > ROUNDED_SHARE * max(sizes)


def _read_rows(seen: WeightChecksums) -> Iterable[_Seen]:
    gradients = seen.gradients or [""] * len(seen.checksums)
    return map(_Seen, seen.checksums, seen.norms, gradients)


def _has_equal_gradients(look: Iterable[_Seen]) -> bool:
    """True if a parameter's gradients are equal on all ranks, and not all zero."""
    gradients = {seen.gradient for seen in look}
    return len(gradients) == 1 and not gradients & {"", ALL_ZERO}


def _describe_rates(view: View) -> str:
    """``0.05 on rank 0, 0.01 on rank 1``, of records of the same step; empty where they agree, or none is of the same step."""
    last = [found.last for found in view.list_rank_processes() if found.last is not None]
    if len({record.step for record in last}) != 1 or len({tuple(record.lr) for record in last}) < 2:
        return ""
    by_rate: defaultdict[tuple[Number, ...], list[int]] = defaultdict(list)
    for found in view.list_rank_processes():
        if found.last is not None:
            by_rate[tuple(found.last.lr)].append(found.rank or 0)
    return ", ".join(
        f"{format_figure(list(rates))} on {format_ranks(ranks)}" for rates, ranks in list(by_rate.items())[:SHOWN]
    )


@RULES.add
class ReplicasDrift(Rule):
    """Says when ranks that train one model hold different weights, and since which step.

    What it does: Each rank has a checksum of 64 elements of each parameter on record, before updates of the
    opening inspection and at doubling intervals afterwards. They are compared by name and shape where the
    records of all ranks are read; nothing is exchanged in the run. Parameters of DistributedDataParallel,
    shards that FSDP2 keeps on several ranks (a mesh of two dimensions, HSDP), and parameters of `replicate()`
    must be equal at every check. Of what any other dimension of a device mesh replicates (the norms of a
    tensor-parallel model) the norms of the sampled elements may differ by 0.1 %. Without such a wrapper
    (gradients averaged by hand) ranks count as replicas once they were equal in three consecutive checks, with
    weights that changed in between, or once the gradients of a parameter were equal in three checks while its
    values were not: such ranks began with different weights. It speaks when they differ in two consecutive
    checks, or in the last one.

    Why it matters: DDP averages gradients and never compares weights. Once they differ, each rank trains
    another model, the average fits none of them, and the checkpoint of rank 0 is one of several. The loss may
    still fall.

    Example:
        TD-R008 warning: replicas drift apart: head.weight, head.bias differ between rank 0 and rank 1 since
        step 12, equal until step 8

    What to do: Look for what only one rank does after that step: a clip, a norm or a skipped batch that hangs
    on the rank; the model called past its wrapper (`model.module(x)`); parameters replaced after
    `DistributedDataParallel` was made, which has no hooks on them; `no_sync` around the last backward of a
    step. Differences from the first look on: weights initialised or loaded after the wrapper was made; with
    `fully_shard` and `replicate`, which copy nothing between replicas, ranks that drew their weights from
    different seeds, and so with gradients that the program averages itself: seed all ranks alike before the
    model is made, or broadcast the weights of rank 0. With sequence parallelism the gradients of norms are
    parts, which must be summed over the tensor-parallel ranks.

    Thresholds: Any difference; 0.1 % of the norm for parameters that another mesh dimension replicates.
    Parameters that every dimension of their mesh shards, those that DDP ignores, and modules with a local SGD
    hook are left out; so are buffers, which may differ. Of more than 256 parameters each check after the first
    eight steps compares another part.
    """

    code = "TD-R008"
    title = "replicas drift apart"
    severity = "warning"
    listens = (Start, Observation)
    observes = (WeightChecksums,)
    needs = Needs(observations=(WeightChecksums,), ranks=2)

    def __init__(self) -> None:
        self._looks: RankLooks[Look] = RankLooks()
        self._names: dict[tuple[str, int, int], list[str]] = {}
        self._replicas: defaultdict[GroupKey, _Replicas] = defaultdict(_Replicas)
        self._given: list[Finding] = []

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        self._looks.record_launch(process, event)
        seen = WeightChecksums.from_event(event)
        if seen is None:
            return ()
        place = process.label, seen.module, seen.look_part or 0
        names = self._names[place] = seen.names or self._names.get(place, [])
        look = dict(zip(names, _read_rows(seen), strict=False))
        found: list[Finding] = []
        for key, step, looks in self._looks.collect_rank(process, seen.group, seen.module, seen.step, look):
            replicas = self._replicas[key]
            replicas.hybrid = replicas.hybrid or seen.hybrid
            replicas.replicated = replicas.replicated or bool(seen.replicated)
            replicas.whole = replicas.whole or bool(seen.whole)
            replicas.wrapped = replicas.wrapped or seen.wrapped or seen.hybrid or replicas.replicated
            part = replicas.parts[seen.look_part or 0]
            self._compare_looks(replicas, part, step, looks)
            if max(len(part.apart), replicas.apart_looks) >= LASTING_LOOKS:
                found += self._report_drift(key, replicas)
        return found

    def finish(self, view: View) -> Iterable[Finding]:
        """Report what differed in the last look, and explain it by learning rates where those differ."""
        found = [
            finding
            for key in sorted(self._replicas)
            if any(part.apart for part in self._replicas[key].parts.values())
            for finding in self._report_drift(key, self._replicas[key])
        ]
        rates = _describe_rates(view)
        for finding in self._given if rates else ():
            finding.cause = f"the ranks have different learning rates: {rates}"
            finding.try_next = "give all ranks the same rate: see what sets it by rank, or by what a rank has seen"
        return found

    def _compare_looks(self, replicas: _Replicas, part: _Part, step: int, looks: dict[int, Look]) -> None:
        common = set.intersection(*map(set, looks.values()))
        part.looks += 1
        if not common:
            return
        first = next(iter(looks.values()))
        differing = [
            name
            for name in first
            if name in common and _is_apart((look[name] for look in looks.values()), is_rounded=replicas.replicated)
        ]
        if differing:
            averaged = [name for name in differing if _has_equal_gradients(look[name] for look in looks.values())]
            part.apart.append(_Apart(step, differing, looks if not part.apart else {}, averaged))
            part.averaged |= {" ".join(first[name].gradient for name in averaged)} if averaged else set()
            replicas.apart_looks += 1
            return
        weights = frozenset(look[name][0] for name in common for look in looks.values())
        if weights != part.weights and part.equal_looks == part.looks - 1:
            part.equal_looks += 1
        elif part.equal_looks < EQUAL_LOOKS:
            part.looks -= 1  # nothing has changed: as good as no look
        part.weights, part.equal_step, part.apart = weights, step, []
        replicas.equal_step, replicas.apart_looks = step, 0

    def _report_drift(self, key: GroupKey, replicas: _Replicas) -> Iterable[Finding]:
        if replicas.is_reported or not replicas.is_certain:
            return ()
        replicas.is_reported = True
        return self.report_once(self._given, self._make_drift_finding(key, replicas))

    def _make_drift_finding(self, key: GroupKey, replicas: _Replicas) -> Finding:
        part = min((one for one in replicas.parts.values() if one.apart), key=lambda one: one.apart[0].step)
        first = part.apart[0]
        began_apart = not replicas.wrapped and part.equal_step is None and bool(first.averaged)
        names = first.averaged if began_apart else first.names
        name = names[0]
        by_checksum: defaultdict[str, list[int]] = defaultdict(list)
        for rank in sorted(first.looks):
            by_checksum[first.looks[rank][name][0]].append(rank)
        sides = [format_ranks(ranks) for ranks in by_checksum.values()]
        plain = [one.rpartition(" [")[0] for one in names]
        differ = "differs" if len(plain) == 1 else "differ"
        total = len(first.looks[key.ranks[0]])
        since, cause = f"since step {first.step}, equal until step {part.equal_step}", "a rank does what others do not"
        try_next = "compare what the ranks do before that step: clipping, model.module(...), no_sync, loading a checkpoint late"
        if (
            part.equal_step is None and replicas.equal_step is not None
        ):  # of a part that is looked at for the first time
            since = f"since step {first.step} or before"
        elif part.equal_step is None:
            since = f"from the first look on, after step {first.step}"
            cause = (
                "weights initialised, loaded or replaced after DistributedDataParallel was made, or gradients that bypass"
                " its wrapper from the first step on"
            )
            if replicas.hybrid:
                cause = REPLICATE_COPIES_NOTHING if replicas.whole else FULLY_SHARD_COPIES_NOTHING
            if replicas.replicated:
                cause = LOADED_APART
            if not replicas.wrapped:
                cause, try_next = BEGAN_APART
        elif replicas.replicated:
            cause, try_next = TENSOR_PARALLEL
        elif replicas.whole:
            cause = "a rank does what others do not, or gradients that replicate() does not average"
        elif replicas.wrapped and not replicas.hybrid:
            cause = "a rank does what others do not, or gradients that bypass the DDP wrapper"
        return self.make_finding(
            f"replicas drift apart: {join_limited(plain, SHOWN)} {differ} between {' and '.join(sides[:SHOWN])} {since}",
            first_step=first.step,
            phase="update",
            module=plain[0].rpartition(".")[0],
            evidence=[
                f"{len(plain)} of {format_count(total, 'parameter')} differ after step {first.step} (64 elements of each)",
                f"norm of {plain[0]}: "
                + ", ".join(
                    f"{format_figure(first.looks[rank][name][1])} on rank {rank}" for rank in sorted(first.looks)[:4]
                ),
            ],
            cause=cause,
            try_next=try_next,
            grade="from weights",
        )
