"""The same as the engine's loop over hits, for blocks in which hits are dense: all lines of a block at once, by numpy.

Importing numpy takes as long as the loop takes for some megabytes, so this file is imported when these have gone by.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEWLINE, SPACE, TAB, TEE, OPENS, CLOSES = b"\n \tT[]"
WORD = 8
MOST_PLACES = 4000  # with more of them a look at all lines is faster
MANY = 8  # one line in so many may need a closer look; with more of them the loop is faster


def _pack_word(text: bytes) -> "np.uint64":
    return np.uint64(int.from_bytes(text, "little"))


BYTE = _pack_word(b"\xff")
CENTURY, CENTURY_MASK = _pack_word(b"20\0\0-"), _pack_word(b"\xff\xff\0\0\xff")


class Block:
    """One buffer as the words that begin at each of its bytes. It stays valid while the buffer is written anew."""

    def __init__(self, buffer: bytearray) -> None:
        self.buffer = buffer
        self._bytes: NDArray[Any] = np.frombuffer(buffer, np.uint8)
        self._words: NDArray[Any] = np.ndarray((len(buffer) - WORD + 1,), "<u8", buffer, strides=(1,))
        self._newlines = np.empty(len(buffer), bool)
        self._rare: dict[bytes, int] = {}  # a literal -> the place of its rarest byte

    def find_record_runs(
        self,
        start: int,
        stop: int,
        column: int,
        literals: Sequence[bytes],
        *,
        starts: Callable[[bytearray, int, int], object],
        counts: Callable[[int], bool],
    ) -> tuple[list[tuple[int, int]], int] | None:
        """Runs of records that count in ``buffer[start:stop]``, as (from, to), and how many they are.

        column: of a `Format`. starts: whether a record starts at a line. counts: whether the record that starts there
        does. None: too many lines are of another kind than ``column`` says.
        """
        newlines = np.equal(self._bytes[start:stop], NEWLINE, out=self._newlines[: stop - start])
        ends = np.flatnonzero(newlines)
        line = np.empty(len(ends) + (self.buffer[stop - 1] != NEWLINE), np.int64)
        line[0], line[1:] = start, ends[: len(line) - 1] + (start + 1)
        head = self._words[line]
        first, sure = head & BYTE, (head & CENTURY_MASK) == CENTURY
        inside = (first == SPACE) | (first == TAB) | (first == NEWLINE)
        known = sure & (line < stop - column - WORD - max(map(len, literals)))
        known[:-1] &= line[1:] > line[:-1] + column  # the column is in this line
        tag = self._words[np.where(known, line, start) + column] if known.any() else head
        known &= (tag & BYTE == OPENS) & (self._bytes[line + 10] == TEE)
        unknown = np.flatnonzero(~(known | inside))
        if len(unknown) * MANY > len(line) + MANY * MANY:
            return None
        hit, open_ended = self._match_tags(line + column, tag, known, literals)
        opens = known | sure
        for place in unknown.tolist():
            at = int(line[place])
            opens[place] = opens[place] or bool(starts(self.buffer, at, stop))
            hit[place] = bool(opens[place]) and counts(at)
        for place in open_ended.tolist():
            hit[place] = counts(int(line[place]))
        line, hit = line[opens], hit[opens]
        edges = np.flatnonzero(np.diff(hit, prepend=False, append=False))
        edge = np.append(line, stop)[edges].tolist()
        return list(zip(edge[::2], edge[1::2], strict=True)), int(np.count_nonzero(hit))

    def find_literal_records(
        self,
        start: int,
        stop: int,
        column: int,
        literal: bytes,
        *,
        counts: Callable[[int, int], bool],
        record_end: Callable[[int], int],
    ) -> list[tuple[int, int]] | None:
        """The records that count, as (from, to), where they are some hundreds: only lines with the literal are looked at.

        counts: whether the record whose line starts at the first place counts for its tag at the second. record_end:
        where the record ends whose last known byte is there. None: the literal is no good to look for.
        """
        hit = self._find_literal(literal, start, stop)
        if hit is None:
            return None
        begin = hit - column
        sure = (begin > start) & (self._bytes[begin - 1] == NEWLINE) | (begin == start)
        begin = np.where(sure, begin, start)
        sure &= (self._words[begin] & CENTURY_MASK == CENTURY) & (self._bytes[begin + 10] == TEE)
        sure &= self._bytes[hit + len(literal)] == CLOSES
        end = self._line_ends(begin, stop)
        sure &= end > hit  # all of it is one line
        for place in np.flatnonzero(~sure).tolist():
            at = int(hit[place])
            begin[place] = self.buffer.rfind(b"\n", start, at) + 1 or start
            end[place] = self.buffer.find(b"\n", at, stop) + 1 or stop
            sure[place] = counts(int(begin[place]), at)
        begin, end = begin[sure], end[sure]
        follows = (self._words[end] & CENTURY_MASK == CENTURY) | (end == stop)
        for place in np.flatnonzero(~follows).tolist():
            end[place] = record_end(int(begin[place]))
        return list(zip(begin.tolist(), end.tolist(), strict=True))

    def _line_ends(self, begin: NDArray[Any], stop: int) -> NDArray[Any]:
        """Behind the first newline from each place on."""
        find = self.buffer.find
        end = np.array([find(b"\n", at, stop) for at in begin.tolist()], np.int64) + 1
        end[end == 0] = stop
        return end

    def _find_literal(self, literal: bytes, start: int, stop: int) -> NDArray[Any] | None:
        """Where the literal is: its rarest byte is looked for, which is quicker by far than several."""
        if literal not in self._rare:
            self._rare[literal] = min(range(len(literal)), key=lambda at: self.buffer.count(literal[at : at + 1]))
        offset = self._rare[literal]
        byte, find = literal[offset], self.buffer.find
        found: list[int] = []
        at = find(byte, start, stop)
        while at >= 0 and len(found) < MOST_PLACES:
            found.append(at)
            at = find(byte, at + 1, stop)
        if at >= 0:
            return None
        place = np.array(found, np.int64) - offset
        place = place[(place >= start) & (place <= stop - len(literal))]
        for at in range(0, len(literal), WORD):
            part = literal[at : at + WORD]
            place = place[
                self._words[np.minimum(place + at, len(self._words) - 1)] & _build_mask(part) == _pack_word(part)
            ]
        return place

    def _match_tags(
        self, at: NDArray[Any], tag: NDArray[Any], known: NDArray[Any], literals: Sequence[bytes]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Which lines have one of the literals as their tag; the places of those whose tag goes on behind it.

        at, tag: where the tags are, and their first words.
        """
        hit = np.zeros(len(at), bool)
        longer = []
        for literal in literals:
            here = np.flatnonzero(known & (tag & _build_mask(literal) == _pack_word(literal[:WORD])))
            for offset in range(WORD, len(literal), WORD):
                part = literal[offset : offset + WORD]
                here = here[self._words[at[here] + offset] & _build_mask(part) == _pack_word(part)]
            closed = self._bytes[at[here] + len(literal)] == CLOSES
            hit[here[closed]] = True
            longer.append(here[~closed])
        return hit, np.concatenate(longer)


def _build_mask(text: bytes) -> "np.uint64":
    return _pack_word(b"\xff" * min(len(text), WORD))
