"""The last sign of life of each rank: who went quiet first."""

import contextlib
import itertools
import os
from collections.abc import Callable, Sequence
from statistics import median

from tdbg.logs.formats import Format
from tdbg.logs.records import Record, seconds, split
from tdbg.logs.sources import Source

TAIL_BYTES = 1 << 18
MIN_GAP_S = 1.0
TIMES_USUAL = 5.0  # a gap that long against the rank's own usual one is silence


class Sign:
    """The last record of one rank. quiet_s: before the last record of all; usual_s: between its own, as a rule."""

    __slots__ = ("last", "quiet_s", "rank", "t", "usual_s")

    def __init__(self, rank: int | None, last: Record | None, t: float | None, usual_s: float) -> None:
        self.rank, self.last, self.t, self.usual_s, self.quiet_s = rank, last, t, usual_s, 0.0

    @property
    def silent(self) -> bool:
        """True if it is quiet for longer than it is wont to be."""
        return self.quiet_s > max(MIN_GAP_S, TIMES_USUAL * self.usual_s)


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
    return sorted(found.values(), key=lambda sign: (sign.t is None, sign.t or 0.0, _place(sign.rank)))


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
            return [_sign(rank, records) for rank, records in by_rank.items()]
    return [Sign(log[-1].rank, None, None, 0.0)] if log[-1].rank is not None else []


def _sign(rank: int | None, records: list[Record]) -> Sign:
    times = [time for record in records[-200:] if (time := seconds(record.time)) is not None]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    return Sign(rank, records[-1], times[-1] if times else None, median(gaps) if gaps else 0.0)


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
