"""TD-R005: ranks that call different collectives."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tdbg.core.events import Event, Finding, Observation, Start
from tdbg.core.observations import Evidence
from tdbg.core.observations.distributed import CallOrder, GroupOrder
from tdbg.core.rule_base import Link, Needs
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import join_limited
from tdbg.rules import RULES, Rule
from tdbg.rules.text import format_ranks
from tdbg.rules.view import View, get_launch_number

MAX_CHUNKS = 20_000  # of one group that are kept until every rank has reported
MAX_TEXTS = 1_000
SHOWN_BEFORE = 2

Ops = list[list[Any]]  # [call, times in a row]
Key = tuple[int, str, int, tuple[int, ...]]  # launch, group, since, its ranks


class _Chunk(NamedTuple):
    first: int
    last: int
    crc: str
    first_step: int
    last_step: int
    ops: Ops | None

    def iter_calls(self) -> Iterator[str]:
        for text, times in self.ops or ():
            for _ in range(times):
                yield text

    def format_window(self, at: int) -> str:
        """The calls up to the one at this place."""
        calls = list(self.iter_calls())[: at + 1]
        before = "..., " if len(calls) > SHOWN_BEFORE + 1 or self.first > 1 else ""
        return before + ", ".join(calls[-SHOWN_BEFORE - 1 :])


@RULES.add
class OutOfStep(Rule):
    """Says that ranks of one group call different collectives, and at which call they part.

    What it does: The probe behind DISTRIBUTED numbers the collectives that each rank calls on each group and
    writes a checksum over every few of them: function and dtype, and for all_reduce, broadcast and reduce the
    number of elements. Where the ranks' checksums of the same calls differ, the first call that differs is
    named. It compares by number, not by step; sends and receives, calls of other threads and programs that
    join uneven inputs (Join) are left out.

    Why it matters: Ranks are matched by the order of their calls, not by what the calls are meant for. If the
    sizes fit, nothing fails: the sum of one rank's loss and the other's count is taken for both. On a mismatch of
    sizes the job hangs or dies with an error that names neither line.

    Example:
        TD-R005 error: rank 1 called all_reduce int64[1] where rank 0 called all_reduce float64[1]: call 3 on the
        world's group, step 1

    What to do: Look for what differs between ranks before that call: a dictionary or set gone through in its own
    order, a branch on the rank or on local data, an exception that was caught on one rank. Fix the order: sort
    the names, let every rank take the same branch.

    Thresholds: Any difference.
    """

    code = "TD-R005"
    title = "ranks out of step"
    severity = "error"
    grade = Evidence.LOCAL.grade_word
    leads_to = ("TD-R001", Link("TD-R002", least=-1), Link("TD-R003", least=-1), "TD-R006")
    listens = (Start, Observation)
    observes = (CallOrder,)
    needs = Needs(observations=(CallOrder,), ranks=2)

    def __init__(self) -> None:
        self._launches: dict[str, int] = {}
        self._chunks: defaultdict[Key, dict[int, dict[int, _Chunk]]] = defaultdict(dict)
        self._texts: defaultdict[tuple[Key, int], dict[str, Ops]] = defaultdict(dict)
        self._sizes: dict[Key, int] = {}
        self._parted: set[Key] = set()
        self._given: list[Finding] = []

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if isinstance(event, Start):
            self._launches[process.label] = get_launch_number(process, event)
        seen = CallOrder.from_event(event)
        if seen is None or process.rank is None or not process.is_rank:
            return ()
        found: list[Finding] = []
        ran_in = self._launches.get(process.label, process.attempt)
        for group in seen.groups:
            key = (ran_in, group["group"], group["since"], tuple(group.get("ranks", ())))
            self._sizes[key] = group["size"]
            found += self._add_group(key, process.rank, group)
        return found

    def _add_group(self, key: Key, rank: int, group: GroupOrder) -> Iterable[Finding]:
        texts = self._texts[key, rank]
        for crc, ops in group["chunks"].items():
            if len(texts) < MAX_TEXTS:
                texts[crc] = ops
        slots = self._chunks[key]
        for first, last, crc, first_step, last_step in group["marks"]:
            if len(slots) < MAX_CHUNKS or first in slots:
                slots.setdefault(first, {})[rank] = _Chunk(first, last, crc, first_step, last_step, texts.get(crc))
            if key not in self._parted and len(slots.get(first, ())) >= self._sizes[key]:
                yield from self._compare_chunk(key, first)

    def finish(self, view: View) -> Iterable[Finding]:
        for key in sorted(self._chunks):
            for first in sorted(self._chunks[key]):
                if key not in self._parted:
                    yield from self._compare_chunk(key, first)

    def _compare_chunk(self, key: Key, first: int) -> Iterable[Finding]:
        """One chunk of all ranks, or of those that wrote it; forgotten where they agree."""
        chunks = self._chunks[key][first]
        ends = {(chunk.last, chunk.crc) for chunk in chunks.values()}
        if len(ends) == 1:
            if len(chunks) >= self._sizes[key]:
                del self._chunks[key][first]
            return ()
        at = _find_divergence(list(chunks.values()))
        if at is None and len({chunk.last for chunk in chunks.values()}) > 1:
            return ()  # one has come further than the other, as far as can be told
        self._parted.add(key)
        new = self._make_order_finding(key, chunks, at)
        return self.report_once(self._given, new)

    def _make_order_finding(self, key: Key, chunks: dict[int, _Chunk], at: int | None) -> Finding:
        called: defaultdict[str, list[int]] = defaultdict(list)
        for rank, chunk in chunks.items():
            calls = list(chunk.iter_calls()) if at is not None else [chunk.crc]
            if len(calls) > (at or 0):
                called[calls[at or 0]].append(rank)
        usual = max(called, key=lambda call: (len(called[call]), -min(called[call])))
        odd = sorted(rank for call, ranks in called.items() if call != usual for rank in ranks)
        chunk = chunks[odd[0]]
        low, high = chunk.first_step, chunk.last_step
        when = f"step {low}" if low == high else f"between steps {low} and {high}"
        group = "the world's group" if key[1].startswith("world") else f"group {key[1]}"
        if at is None:
            what = f"{format_ranks(odd)} and {format_ranks(called[usual])} called different collectives"
            place = f"one of calls {chunk.first} to {chunk.last} on {group}"
            evidence = ["these calls are too many to be spelt out: only their checksums are on record"]
        else:
            other = next(call for call in called if odd[0] in called[call])
            what = f"{format_ranks(called[other])} called {other} where {format_ranks(called[usual])} called {usual}"
            place = f"call {chunk.first + at} on {group}"
            evidence = [f"rank {rank}: {chunks[rank].format_window(at)}" for rank in sorted(chunks)][:4]
            more = [f"{format_ranks(called[call])}: {call}" for call in called if call not in (usual, other)]
            evidence += [join_limited(more, 4)] if more else []
        is_tie = len(odd) == len(called[usual])  # then neither is the odd one
        where = f"between {format_ranks([*odd, *called[usual]])}" if is_tie else f"on rank {odd[0]}"
        return self.make_finding(
            f"{what}: {place}, {when}",
            first_step=low,
            rank=odd[0],
            phase="collective",
            evidence=evidence,
            cause="collectives meet by their order, not by name: results were mixed up, or the job is stuck",
            try_next=f"find what differs {where} before that call: a set or dictionary's order, a branch, a caught"
            " exception",
        )


def _find_divergence(chunks: list[_Chunk]) -> int | None:
    """The place of the first call that differs, of those the ranks both have; None if none is known to."""
    if any(chunk.ops is None for chunk in chunks):
        return None
    columns = [list(chunk.iter_calls()) for chunk in chunks]
    for at in range(max(map(len, columns))):
        if len({column[at] for column in columns if at < len(column)}) > 1:
            return at
    return None
