"""Ranges of steps and ranks, as people write them."""

import re
from collections.abc import Iterable, Sequence

from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_count

SHOWN_RANGES = 20
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
