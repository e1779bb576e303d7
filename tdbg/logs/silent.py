"""The last sign of life of each rank: who went quiet first."""

import contextlib
import itertools
import os
from collections.abc import Callable, Sequence
from statistics import median

from tdbg.logs.collapse import alike, kind_of, step_of
from tdbg.logs.formats import Format
from tdbg.logs.records import Record, seconds, split
from tdbg.logs.sources import Source

TAIL_BYTES = 1 << 18
LOOKED_AT = 200  # of a rank's last records
MIN_GAP_S = 1.0
TIMES_USUAL = 5.0  # a gap that long against the rank's own usual one is silence


class Sign:
    """The last records of one rank. quiet_s: before the last record of all; usual_s: between its own, as a rule.

    missed: the first record of another rank that it would have written as well, had it gone on.
    """

    __slots__ = ("missed", "quiet_s", "rank", "records", "t", "usual_s")

    def __init__(self, rank: int | None, records: list[Record]) -> None:
        self.rank, self.records = rank, records
        times = [time for record in records if (time := seconds(record.time)) is not None]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        self.t = times[-1] if times else None
        self.usual_s = median(gaps) if gaps else 0.0
        self.quiet_s = 0.0
        self.missed: Record | None = None

    @property
    def last(self) -> Record | None:
        """Its last record."""
        return self.records[-1] if self.records else None

    @property
    def silent(self) -> bool:
        """True if it is quiet for longer than it is wont to be, or stopped in the middle of what others went on with."""
        return self.missed is not None or self.quiet_s > max(MIN_GAP_S, TIMES_USUAL * self.usual_s)


def _find_missed(found: Sequence[Sign]) -> None:
    """For each rank, what it says as a rule, and others went on to say.

    By step where the records tell one: clocks and speeds of ranks differ. Else by time and the whole text.
    """
    said: dict[tuple[bytes, int | bytes], Record] = {}
    for record in (record for sign in found for record in sign.records):
        said.setdefault(_key(record), record)
    for sign in found:
        if sign.t is None:
            continue
        mine = {_key(record) for record in sign.records}
        sorts = {sort for sort, _ in mine}
        last = max((step for _, step in mine if isinstance(step, int)), default=0)
        for (sort, what), record in said.items():
            if (sort, what) in mine or sort not in sorts:
                continue
            if what >= last if isinstance(what, int) else (seconds(record.time) or 0.0) > sign.t:
                sign.missed = record
                break


def _key(record: Record) -> tuple[bytes, int | bytes]:
    text, step = alike(record), step_of(record)
    return kind_of(text), text if step is None else step


def signs(logs: Sequence[Sequence[Source]], form: Callable[[Source], type[Format]]) -> list[Sign]:
    """One sign a rank, the first to go quiet first; only the ends of the files are read."""
    found: dict[int | None, Sign] = {}
    for log in logs:
        for sign in _of_log(log, form):
            known = found.get(sign.rank)
            if known is None or (sign.t or 0.0) > (known.t or 0.0):
                found[sign.rank] = sign
    told = [sign for sign in found.values() if sign.t is not None]
    newest = max((sign.t or 0.0 for sign in told), default=0.0)
    for sign in told:
        sign.quiet_s = newest - (sign.t or 0.0)
    _find_missed(list(found.values()))
    return sorted(
        found.values(), key=lambda sign: (sign.t is None, sign.missed is None, sign.t or 0.0, _place(sign.rank))
    )


def _place(rank: int | None) -> int:
    return -1 if rank is None else rank


def _of_log(log: Sequence[Source], form: Callable[[Source], type[Format]]) -> list[Sign]:
    """The signs in the last part of a log that has a record; ranks that share a log are told apart by its headers."""
    for source in reversed(log):
        kind = form(source)
        by_rank: dict[int | None, list[Record]] = {}
        before = b""
        for data in split(_end(source), kind):
            record = Record(data, source, kind, before)
            if kind.header.match(data):
                before = record.time
                by_rank.setdefault(record.rank, []).append(record)
        if by_rank:
            return [Sign(rank, records[-LOOKED_AT:]) for rank, records in by_rank.items()]
    return [Sign(log[-1].rank, [])] if log[-1].rank is not None else []


def _end(source: Source) -> bytes:
    """The last bytes of a file, from the beginning of a line; of a packed one or a pipe all has to be gone through."""
    with contextlib.closing(source.open()) as stream:
        if source.seekable:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(size - TAIL_BYTES, 0))
            data = bytes(stream.read(TAIL_BYTES))
            return data if size <= TAIL_BYTES else data.partition(b"\n")[2]
        data, block = b"", bytearray(TAIL_BYTES)
        while got := stream.readinto(memoryview(block)):
            data = (data + block[:got])[-2 * TAIL_BYTES :]
        return data


def missing(ranks: set[int], world: int | None) -> list[int]:
    """Ranks that there must be, and that left nothing."""
    return sorted(set(range(world or max(ranks, default=-1) + 1)) - ranks)
