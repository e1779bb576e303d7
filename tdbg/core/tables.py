"""What a terminal shows of names and numbers that somebody else wrote. Standard library alone, and light."""

import math
import sys

from tdbg.core import escapes
from tdbg.core.output import print_styled

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

safe = escapes.safe


def short(text: object, limit: int = 200) -> str:
    """The same of anything, cut where it is endless."""
    found = str(text)
    return safe(found if len(found) <= limit else f"{found[: limit - 3]}...")


def cell(value: object) -> str:
    """A value in a table: floats short, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    return safe(str(value))


def size(nbytes: float) -> str:
    """Bytes as a person reads them; 1 MB is 1,000,000."""
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    for unit in ("kB", "MB", "GB"):
        nbytes /= 1000
        if nbytes < 999.5:
            return f"{nbytes:.3g} {unit}"
    return f"{nbytes / 1000:.3g} TB"


def shape(sizes: "Sequence[int]") -> str:
    """``(2, 64, 7, 7)``, as torch writes it."""
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"


def counted(number: int, thing: str) -> str:
    """``1 datapoint``, ``12,000 datapoints``, ``0 processes``."""
    ending = "" if number == 1 else "es" if thing.endswith("s") else "s"
    return f"{number:,} {thing}{ending}"


def joined(words: "Sequence[object]", limit: int = 8, count: int = 0) -> str:
    """``a, b, c and 5 more``. count: how many there are, if more than the words given."""
    left = max(count, len(words)) - limit
    return ", ".join(map(str, words[:limit])) + (f" and {left} more" if left > 0 else "")


def finite(value: object) -> "Any":
    """A value as strict JSON has it: numbers that are not finite become the words nan, inf and -inf."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, complex):
        return [finite(value.real), finite(value.imag)]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def print_rows(columns: "Sequence[str]", rows: "Iterable[Sequence[object]]") -> None:
    """A table on stdout: in columns on a terminal, tab-separated where it is piped."""
    if not sys.stdout.isatty():
        print("\t".join(map(safe, columns)))
        for row in rows:
            print("\t".join(map(cell, row)))
        return
    lines = [list(map(safe, columns)), *([cell(value) for value in row] for row in rows)]
    numbers = [all(_is_number(line[at]) for line in lines[1:]) for at in range(len(columns))]
    widths = [max(width(line[at]) for line in lines) for at in range(len(columns))]
    for number, line in enumerate(lines):
        text = "  ".join(map(_padded, line, widths, numbers)).rstrip()
        print_styled(f"\x1b[1m{text}\x1b[0m" if number == 0 else text)


def width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text)


def _padded(text: str, columns: int, right: bool) -> str:
    room = " " * (columns - width(text))
    return room + text if right else text + room


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text in ("-", "nan", "inf", "-inf") or (text[:1] == "-" and text[1:2].isdigit())
