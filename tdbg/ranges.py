"""Ranges of steps and ranks, as people write them."""

import re

from tdbg.errors import TdbgError


def parse_ranges(key: str, text: str, joint: str) -> list[tuple[float, float]]:
    """``0,3-5`` or ``100:200,500:`` as inclusive bounds; TdbgError for anything else."""
    found: list[tuple[float, float]] = []
    for part in filter(None, (word.strip() for word in text.split(","))):
        match = re.fullmatch(rf"(\d*)({joint}?)(\d*)", part)
        if not match or not (match[1] or match[3]):
            raise TdbgError(f"{key} cannot be {part!r}", f"write numbers and ranges such as 0,3{joint}5")
        low = int(match[1] or 0)
        high = float(match[3]) if match[3] else (float("inf") if match[2] else low)
        if high < low:
            raise TdbgError(f"{key} cannot be {part!r}: it ends before it begins", f"write {int(high)}{joint}{low}")
        found.append((low, high))
    return found
