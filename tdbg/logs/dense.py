"""The same as the engine's loop over hits, for blocks in which hits are dense: all lines of a block at once, by numpy.

Importing numpy takes as long as the loop takes for some megabytes, so this file is imported when these have gone by.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEWLINE, SPACE, TAB, TEE, OPENS, CLOSES = b"\n \tT[]"
WORD = 8
MANY = 8  # one line in so many may need a closer look; with more of them the loop is faster


def _word(text: bytes) -> "np.uint64":
    return np.uint64(int.from_bytes(text, "little"))


BYTE = _word(b"\xff")
CENTURY, CENTURY_MASK = _word(b"20\0\0-"), _word(b"\xff\xff\0\0\xff")


class Block:
    """One buffer as the words that begin at each of its bytes. It stays valid while the buffer is written anew."""

    def __init__(self, buffer: bytearray) -> None:
        self.buffer = buffer
        self._bytes: NDArray[Any] = np.frombuffer(buffer, np.uint8)
        self._words: NDArray[Any] = np.ndarray((len(buffer) - WORD + 1,), "<u8", buffer, strides=(1,))
        self._newlines = np.empty(len(buffer), bool)

    def records(
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
        tag = self._words[np.where(known, line, start) + column] if known.any() else head
        known &= (tag & BYTE == OPENS) & (self._bytes[line + 10] == TEE)
        unknown = np.flatnonzero(~(known | inside))
        if len(unknown) * MANY > len(line) + MANY * MANY:
            return None
        hit, open_ended = self._tagged(line + column, tag, known, literals)
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

    def _tagged(
        self, at: NDArray[Any], tag: NDArray[Any], known: NDArray[Any], literals: Sequence[bytes]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Which lines have one of the literals as their tag; the places of those whose tag goes on behind it.

        at, tag: where the tags are, and their first words.
        """
        hit = np.zeros(len(at), bool)
        longer = []
        for literal in literals:
            here = np.flatnonzero(known & (tag & _mask(literal) == _word(literal[:WORD])))
            for offset in range(WORD, len(literal), WORD):
                part = literal[offset : offset + WORD]
                here = here[self._words[at[here] + offset] & _mask(part) == _word(part)]
            closed = self._bytes[at[here] + len(literal)] == CLOSES
            hit[here[closed]] = True
            longer.append(here[~closed])
        return hit, np.concatenate(longer)


def _mask(text: bytes) -> "np.uint64":
    return _word(b"\xff" * min(len(text), WORD))
