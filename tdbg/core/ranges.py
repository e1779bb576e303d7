"""Ranges of steps and ranks, as people write them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice

from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_count

SHOWN_RANGES = 20
MAX_PACKED_LETTERS = 1_000_000  # more than any numbers below `MAX_RANKS` take
MAX_RANKS = 100_000  # of one job that are told apart: a file may claim any number


def parse_ranges(key: str, text: str, joint: str) -> list[tuple[float, float]]:
    """``0,3-5`` or ``100:200,500:`` as inclusive bounds; TdbgError for anything else."""
    found: list[tuple[float, float]] = []
    for part in filter(None, (word.strip() for word in text.split(","))):
        match = re.fullmatch(rf"(\d{{0,18}})({joint}?)(\d{{0,18}})", part)
        if not match or not (match[1] or match[3]):
            raise TdbgError(f"{key} cannot be {part!r}", f"write numbers and ranges such as 0,3{joint}5")
        low = int(match[1] or 0)
        high = float(match[3]) if match[3] else (float("inf") if match[2] else low)
        if high < low:
            raise TdbgError(f"{key} cannot be {part!r}: it ends before it begins", f"write {int(high)}{joint}{low}")
        found.append((low, high))
    return found


def in_ranges(number: int, ranges: Iterable[tuple[float, float]]) -> bool:
    """True if a number lies in one of the ranges."""
    return any(low <= number <= high for low, high in ranges)


def find_gaps(numbers: Iterable[int], end: int) -> list[tuple[int, int]]:
    """The inclusive ranges between 0 and ``end``, which is none of them, that hold no number."""
    found, after = [], 0
    for number in sorted({number for number in numbers if 0 <= number < end}):
        if number > after:
            found.append((after, number - 1))
        after = number + 1
    return [*found, (after, end - 1)] if after < end else found


def format_ranges(ranges: Sequence[tuple[int, int]]) -> str:
    """``0-2, 4``; of many ranges the first, and how many more there are."""
    shown = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges[:SHOWN_RANGES])
    return (
        f"{shown} and {format_count(len(ranges) - SHOWN_RANGES, 'more range')}" if len(ranges) > SHOWN_RANGES else shown
    )


def pack_numbers(numbers: Iterable[int]) -> str:
    """Numbers as ``0-63,70,128-1016:8``: of more than two at equal distances the first, the last and the distance."""
    parts: list[list[int]] = []  # first, last, distance, how many
    for number in sorted(set(numbers)):
        last = parts[-1] if parts else None
        if last is not None and (last[3] == 1 or number - last[1] == last[2]):
            last[1:] = [number, number - last[1], last[3] + 1]
        elif last is not None and last[3] == 2:  # two are no range
            parts[-1:] = [[last[0], last[0], 0, 1], [last[1], number, number - last[1], 2]]
        else:
            parts.append([number, number, 0, 1])
    return ",".join(_format_part(*part) for part in parts)


def _format_part(first: int, last: int, distance: int, count: int) -> str:
    if count <= 2:
        return str(first) if count == 1 else f"{first},{last}"
    return f"{first}-{last}" + (f":{distance}" if distance > 1 else "")


@lru_cache(maxsize=256)
def unpack_numbers(text: str) -> tuple[int, ...]:
    """The numbers that `pack_numbers` wrote; what is no range is left out, and so is all beyond `MAX_RANKS`.

    Of a text that is longer than any that `pack_numbers` writes of so many, nothing is read.
    """
    if len(text) > MAX_PACKED_LETTERS:
        return ()
    return tuple(islice((number for part in text.split(",") for number in _iter_part(part)), MAX_RANKS))


def _iter_part(part: str) -> Iterator[int]:
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?(?::(\d{1,9}))?", part.strip(), re.ASCII)
    if match is not None:
        first, last = int(match[1]), int(match[2] or match[1])
        yield from range(first, last + 1, max(int(match[3] or 1), 1))[:MAX_RANKS]
