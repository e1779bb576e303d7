"""The last sign of life of each rank: who went quiet first."""

import contextlib
import os
from collections.abc import Callable, Sequence

from tdbg.core.ranges import find_gaps
from tdbg.logs.collapse import kind_of, normalize_record
from tdbg.logs.formats import Format, match_header
from tdbg.logs.log_files import Source
from tdbg.logs.parallel import Readable, open_untangled
from tdbg.logs.query import Matcher, Query
from tdbg.logs.records import Record, parse_seconds, split_records

TAIL_BYTES = 1 << 18
LOOKED_AT = 200  # of a rank's last records
CLEARLY_S = 5.0  # clocks of ranks differ: last records closer than this tell nothing of who was first


class Sign:
    """The last records of one rank. quiet_s: before the last record of all, where there are times.

    missed: the first record of another rank that it would have written as well, had it gone on.
    """

    __slots__ = ("missed", "quiet_s", "rank", "records", "t")

    def __init__(self, rank: int | None, records: list[Record]) -> None:
        self.rank, self.records = rank, records
        self.t = parse_seconds(records[-1].time) if records else None
        self.quiet_s: float | None = None
        self.missed: Record | None = None

    @property
    def last_record(self) -> Record | None:
        """Its last record."""
        return self.records[-1] if self.records else None

    @property
    def step(self) -> int | None:
        """The last step that it speaks of."""
        return next((record.step for record in reversed(self.records) if record.step is not None), None)


def _find_missed(found: Sequence[Sign]) -> None:
    """For each rank, what it says as a rule, and others went on to say.

    By step where the records tell one: clocks and speeds of ranks differ. Else by time and the whole text.
    """
    said: dict[tuple[bytes, int | bytes], list[tuple[Sign, Record]]] = {}
    for speaker in found:
        for record in speaker.records:
            said.setdefault(_build_record_key(record), []).append((speaker, record))
    for sign in found:
        mine = {_build_record_key(record) for record in sign.records}
        sorts = {sort for sort, _ in mine}
        last = max((step for _, step in mine if isinstance(step, int)), default=0)
        for (sort, what), speakers in said.items():
            if (sort, what) in mine or sort not in sorts:
                continue
            # Whoever fell silent long before this rank did was ahead of it, and did not go on without it.
            others = [record for speaker, record in speakers if not _went_quiet_before(speaker, sign)]
            if not others:
                continue
            record = others[0]
            later = sign.t is not None and (parse_seconds(record.time) or 0.0) > sign.t
            if what >= last if isinstance(what, int) else later:
                sign.missed = record
                break


def _went_quiet_before(one: Sign, other: Sign) -> bool:
    return one.t is not None and other.t is not None and one.t + CLEARLY_S < other.t


def _build_record_key(record: Record) -> tuple[bytes, int | bytes]:
    text = normalize_record(record)
    return kind_of(text), text if record.step is None else record.step


def collect_signs(logs: Sequence[Sequence[Source]], form: Callable[[Source], type[Format]], query: Query) -> list[Sign]:
    """One sign a rank, the first to go quiet first; only the ends of the files are read."""
    found: dict[int | None, Sign] = {}
    for log in logs:
        for sign in _of_log(log, form, query):
            known = found.get(sign.rank)
            if known is None or not known.records or (sign.t or 0.0) > (known.t or 0.0):
                found[sign.rank] = sign
    newest = max((sign.t for sign in found.values() if sign.t is not None), default=None)
    for sign in found.values():
        if sign.t is not None and newest is not None:
            sign.quiet_s = newest - sign.t
    _find_missed(list(found.values()))
    return sorted(found.values(), key=_build_sort_key)


def _build_sort_key(sign: Sign) -> tuple[object, ...]:
    rank = -1 if sign.rank is None else sign.rank
    return not sign.records, sign.missed is None, sign.t or 0.0, sign.step or 0, rank


def _of_log(log: Sequence[Source], form: Callable[[Source], type[Format]], query: Query) -> list[Sign]:
    """The signs in the last part of a log that has a record; ranks that share a log are told apart by its headers."""
    for source in reversed(log):
        kind = form(source)
        matcher = Matcher(query, kind, source.rank)
        by_rank: dict[int | None, list[Record]] = {}
        before = b""
        for data in split_records(_read_tail(source, kind), kind) if matcher.possible else ():
            record = Record(data, source, kind, before)
            before = record.time
            if match_header(kind, data) and matcher.accept(data, 0, len(data)):
                by_rank.setdefault(record.rank, []).append(record)
        if by_rank:
            return [Sign(rank, records[-LOOKED_AT:]) for rank, records in by_rank.items()]
    rank = log[-1].rank
    return [Sign(rank, [])] if rank is not None and Matcher(query, form(log[-1]), rank).possible else []


def _read_tail(source: Source, form: type[Format]) -> bytes:
    """The last bytes of a file, from the beginning of a line; of a packed one or a pipe all has to be gone through."""
    with contextlib.closing(open_untangled(source, form)) as stream:
        if source.seekable:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(size - TAIL_BYTES, 0))
            data = bytes(stream.read(TAIL_BYTES))
            return data if size <= TAIL_BYTES else data.partition(b"\n")[2]
        data, block = b"", bytearray(TAIL_BYTES)
        readable = Readable(stream)
        while got := readable.readinto(memoryview(block)):
            data = (data + block[:got])[-2 * TAIL_BYTES :]
        readable.raise_if_damaged(source.path)
        return data


def find_missing_rank_ranges(ranks: set[int], world: int | None) -> list[tuple[int, int]]:
    """Ranges of ranks that there must be, and that left nothing. Cost: by the ranks there are, not by their numbers."""
    return find_gaps(ranks, world or max(ranks, default=-1) + 1)
