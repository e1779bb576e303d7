"""The part of a tensor that a picture shows: ranges of planes, rows and columns."""

import re
from typing import NamedTuple

from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_short

Range = tuple[int, int]
RANGE = re.compile(r"(\d{0,18}):(\d{0,18})", re.ASCII)


class Region(NamedTuple):
    """From each first up to, and without, each second."""

    planes: Range
    rows: Range
    columns: Range

    @property
    def size(self) -> tuple[int, int, int]:
        """How many planes, rows and columns."""
        planes, rows, columns = (stop - start for start, stop in self)
        return planes, rows, columns


def whole_region(whole: tuple[int, int, int]) -> Region:
    """All of a tensor of so many planes, rows and columns."""
    return Region(*((0, size) for size in whole))


def parse_region(whole: tuple[int, int, int], planes: str, rows: str, columns: str) -> Region:
    """The part that is named, all of what is not. Raises TdbgError for a range that is none, is empty, or ends too late."""
    named = zip(("planes", "rows", "columns"), (planes, rows, columns), whole, strict=True)
    return Region(*(_parse_range(name, text, size) if text else (0, size) for name, text, size in named))


def _parse_range(name: str, text: str, size: int) -> Range:
    match = RANGE.fullmatch(text)
    if match is None:
        raise TdbgError(
            f"{name} cannot be {format_short(text)}", "write a range such as 0:64; the second is not part of it"
        )
    start, stop = int(match[1] or 0), int(match[2] or size)
    if start >= stop:
        raise TdbgError(f"{name} cannot be {text}: the range is empty", "the second number has to be the larger one")
    if stop > size:
        raise TdbgError(f"{name} cannot be {text}: there are {size:,}", f"write at most 0:{size}")
    return start, stop
