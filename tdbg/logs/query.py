"""What is asked of a log: which records count. Compiled once for each format, then asked record by record."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tdbg.core import flags
from tdbg.logs.formats import ERROR, TRACEBACK, Format, Tdbg, format_of, normalize_time

Buffer = bytes | bytearray
# (buffer, from, to) -> where something that may count begins, or -1
NextHit = Callable[[Buffer, int, int], int]
LONGEST_SPELLED = 1 << 16  # of a record, as far as a map's texts are looked for
MAX_FIND = 12  # literals looked for one by one; more of them go into one expression


class Spelled(Protocol):
    """Flags as a program spells them itself, from a map of its source.

    literals: one of them is in every record of these flags.
    """

    literals: tuple[bytes, ...]

    def matches_record(self, record: bytes) -> bool:
        """True if a record is of one of the flags."""

    def refine_format(self, form: type[Format]) -> type[Format]:
        """The format, with what is known of where these records end."""


class Query(NamedTuple):
    """What a record must be like; an empty query takes everything. All that is given has to fit, of each any one.

    families: tag families without brackets (``DEBUG_FORWARD`` takes ``[DEBUG_FORWARD]`` and ``[DEBUG_FORWARD_X]``).
    excluded: the same for what is left out.
    spelled, spelled_out: what else counts as of these families, and of the excluded ones.
    level: the least. ranks, steps: (first, last), inclusive. since, until: text as the log writes its times, any prefix of it.
    """

    families: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    prefixes: tuple[bytes, ...] = ()
    level: int = 0
    ranks: tuple[tuple[float, float], ...] = ()
    steps: tuple[tuple[float, float], ...] = ()
    since: bytes = b""
    until: bytes = b""
    pattern: re.Pattern[bytes] | None = None
    invert: bool = False
    spelled: Spelled | None = None
    spelled_out: Spelled | None = None

    @property
    def by_tag(self) -> bool:
        """True if only records with certain tags count."""
        return bool(self.families or self.prefixes or self.spelled)

    @property
    def everything(self) -> bool:
        """True if no record is left out."""
        return self == Query()

    def refine_format(self, form: type[Format]) -> type[Format]:
        """How a log is written, with what a map knows of where its records end."""
        known = self.spelled or self.spelled_out
        return form if known is None else known.refine_format(form)


def resolve_tag_family(flag: str) -> str:
    """The tags of a flag: ``LOSS.NULL_MASKING`` -> ``DEBUG_NULL_MASKING``."""
    return flags.tag(flag).strip("[]")


class Matcher:
    """A query, ready for the logs of one format. rank: of the file, where its path names it."""

    __slots__ = ("_owned", "format", "query", "rank")

    def __init__(self, query: Query, format: type[Format], rank: int | None = None) -> None:
        self.query, self.format, self.rank = query, query.refine_format(format), rank
        self._owned: dict[bytes, bool | None] = {}

    @property
    def possible(self) -> bool:
        """False if no record of this file can count."""
        query = self.query
        out = query.ranks and self.rank is not None and not _is_within(self.rank, query.ranks)
        return query.invert or not out

    def next_hit(self) -> NextHit | None:
        """How to find the next place that may count; None where every record has to be asked."""
        literals = self.collect_literals()
        pattern = self.query.pattern
        if literals:
            return _build_finder(literals)
        if pattern is None or self.query.invert:
            return None
        search = pattern.search

        def find_hit(buffer: Buffer, start: int, stop: int) -> int:
            found = search(buffer, start, stop)
            return -1 if found is None else found.start()

        return find_hit

    def collect_literals(self) -> tuple[bytes, ...]:
        """Literals, one of which is in every record that counts; none if there are no such literals."""
        query = self.query
        if query.invert:
            return ()
        if query.by_tag:
            marks = (mark for name in query.families for mark in (*self.format.marks(name), *Tdbg.marks(name)))
            spelled = query.spelled.literals if query.spelled is not None else ()
            return tuple(dict.fromkeys((*marks, *spelled))) or query.prefixes
        words = self.format.level_marks(query.level) if query.level and query.pattern is None else ()
        words = tuple(dict.fromkeys((*words, *Tdbg.level_marks(query.level)))) if words else ()
        return (*words, TRACEBACK) if words and query.level <= ERROR else words  # one that nobody logged has no level

    @property
    def by_tag_alone(self) -> bool:
        """True if a record's tag decides whether it counts, and stands where a format says: behind its ``lead``."""
        query = self.query
        only_tags = Query(families=query.families, prefixes=query.prefixes)
        by_rank = query.ranks and self.rank is None  # if the path names it, it has been asked
        one = not (query.families and query.prefixes)  # of both each record has to be asked
        return bool(self.format.lead and query.by_tag and one and not by_rank and query._replace(ranks=()) == only_tags)

    def accept(self, buffer: Buffer, start: int, stop: int) -> bool:
        """True if the record in ``buffer[start:stop]`` counts."""
        return self.judge(self.format.header.match(buffer, start, stop), buffer, start, stop)

    def judge(self, header: "re.Match[bytes] | None", buffer: Buffer, start: int, stop: int) -> bool:
        """The same for a header that has been looked at: None if it is not as the log's format writes it."""
        if header is None and self.format is not Tdbg:
            header = Tdbg.header.match(buffer, start, stop)
        return self._matches_query(header, buffer, start, stop) is not self.query.invert

    def _matches_query(self, found: "re.Match[bytes] | None", buffer: Buffer, start: int, stop: int) -> bool:
        query = self.query
        if found is None:  # before the first header, or printed bare: there is nothing but a map to judge them by
            rest = query._replace(invert=False, level=0, pattern=None, spelled_out=None)
            if self._matches_spelled(query.spelled_out, buffer, start, stop):
                return False
            if query.spelled is not None and self._matches_spelled(query.spelled, buffer, start, stop):
                rest = rest._replace(families=(), spelled=None)
            if not (rest._replace(excluded=()) if query.spelled_out else rest).everything:
                return False
            bad = query.level <= ERROR and buffer.find(TRACEBACK, start, stop) >= 0
            return (not query.level or bad) and (query.pattern is None or self._matches_pattern(buffer, start, stop))
        if (query.excluded or query.by_tag) and not self._flags_fit(found, buffer, start, stop):
            return False
        if query.level and self._resolve_level(found, buffer, start, stop) < query.level:
            return False
        if query.ranks and not self._rank_fits(found):
            return False
        if query.steps and not self._step_fits(found):
            return False
        if (query.since or query.until) and not self._time_fits(found):
            return False
        return query.pattern is None or self._matches_pattern(buffer, start, stop)

    def _flags_fit(self, found: "re.Match[bytes]", buffer: Buffer, start: int, stop: int) -> bool:
        query, tags = self.query, format_of(found, self.format).tags(found)
        for tag in tags:
            if tag not in self._owned:
                self._owned[tag] = self._classify_tag(tag)
        if any(self._owned[tag] is False for tag in tags) or self._matches_spelled(
            query.spelled_out, buffer, start, stop
        ):
            return False
        if query.prefixes and not any(tag.startswith(query.prefixes) for tag in tags):
            return False
        return (
            not (query.families or query.spelled)
            or any(self._owned[tag] for tag in tags)
            or self._matches_spelled(query.spelled, buffer, start, stop)
        )

    def _classify_tag(self, tag: bytes) -> bool | None:
        """True for a tag that is asked for, False for one that is excluded."""
        query = self.query
        word = tag.strip(b"[]").decode("utf-8", "replace")
        if any(_in_family(word, name) for name in query.excluded):
            return False
        return any(_in_family(word, name) for name in query.families) or None

    def _matches_spelled(self, spelled: Spelled | None, buffer: Buffer, start: int, stop: int) -> bool:
        return spelled is not None and spelled.matches_record(bytes(buffer[start : min(stop, start + LONGEST_SPELLED)]))

    def _resolve_level(self, found: "re.Match[bytes]", buffer: Buffer, start: int, stop: int) -> int:
        """The record's level; a traceback that nobody logged is an error."""
        level = format_of(found, self.format).level(found)
        if level is not None:
            return level
        return ERROR if buffer.find(TRACEBACK, start, stop) >= 0 else 0

    def _rank_fits(self, found: "re.Match[bytes]") -> bool:
        rank = format_of(found, self.format).rank(found) if self.rank is None else self.rank
        return rank is not None and _is_within(rank, self.query.ranks)

    def _step_fits(self, found: "re.Match[bytes]") -> bool:
        step = format_of(found, self.format).step(found)
        return step is not None and _is_within(step, self.query.steps)

    def _time_fits(self, found: "re.Match[bytes]") -> bool:
        time = found["time"] if "time" in found.re.groupindex else None
        if not time:
            return False
        time = normalize_time(time)
        since, until = self.query.since, self.query.until
        clock = time.partition(b"T")[2]  # a time of day is asked for without a date
        return _select_time_part(since, time, clock) >= since and (
            not until or _select_time_part(until, time, clock)[: len(until)] <= until
        )

    def _matches_pattern(self, buffer: Buffer, start: int, stop: int) -> bool:
        pattern = self.query.pattern
        return pattern is not None and pattern.search(buffer, start, stop) is not None


def _select_time_part(wanted: bytes, time: bytes, clock: bytes) -> bytes:
    return clock if wanted[2:3] == b":" else time


def _is_within(number: int, ranges: Sequence[tuple[float, float]]) -> bool:
    return any(first <= number <= last for first, last in ranges)


def _in_family(word: str, name: str) -> bool:
    """True if the tag belongs to the family, and to no longer name of the flag table that begins alike."""
    if word != name and not word.startswith(f"{name}_"):
        return False
    owner = flags.owner(f"[{word}]")
    return owner is None or len(resolve_tag_family(owner)) <= len(name)


def _build_finder(literals: Sequence[bytes]) -> NextHit:
    """The next of several literals. Each keeps where it was found last, so that nothing is searched twice."""
    if len(literals) == 1:
        (literal,) = literals
        return lambda buffer, start, stop: buffer.find(literal, start, stop)
    if len(literals) > MAX_FIND:
        either = re.compile(b"|".join(map(re.escape, literals)))

        def find_any(buffer: Buffer, start: int, stop: int) -> int:
            found = either.search(buffer, start, stop)
            return -1 if found is None else found.start()

        return find_any
    return _Several(literals)


class _Several:
    """The next hit of a few literals in one region of a buffer."""

    def __init__(self, literals: Sequence[bytes]) -> None:
        self._literals = literals
        self._region = (-1, -1)
        self._at: list[int] = []

    def __call__(self, buffer: Buffer, start: int, stop: int) -> int:
        if start == 0 or self._region[1] != stop or start < self._region[0]:
            self._at = [buffer.find(literal, start, stop) for literal in self._literals]
        else:
            for index, at in enumerate(self._at):
                if 0 <= at < start:
                    self._at[index] = buffer.find(self._literals[index], start, stop)
        self._region = (start, stop)
        return min((at for at in self._at if at >= 0), default=-1)
