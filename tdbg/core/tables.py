"""Tables, and safe text for names and numbers of the program. Light: rich is loaded only to wrap wide tables."""

import math
import sys

from tdbg.core import escapes, terminal
from tdbg.core.output import is_laid_out, print_styled

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

safe = escapes.escape_line
BETWEEN = "  "
DIGITS = 5
NARROWEST = 32  # a column is not made narrower than this by cutting its words
PROSE = 40  # nor one of sentences by wrapping them
IRREGULAR_PLURALS = {"index": "indices", "matrix": "matrices", "leaf": "leaves", "epoch": "epochs"}
PLURAL_VERBS = {"is": "are", "has": "have", "was": "were", "does": "do", "goes": "go"}
SEVERITY = "severity"  # the column whose cells are coloured


def format_short(text: object, limit: int = 200) -> str:
    """The same of anything, cut where it is endless."""
    found = str(text)
    return safe(found if len(found) <= limit else f"{found[: limit - 3]}...")


def format_cell(value: object, digits: int = DIGITS) -> str:
    """A value in a table: floats short, None as a dash, lists joined; nothing in it breaks the line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    if isinstance(value, list | tuple):
        return ", ".join(format_cell(item, digits) for item in value)
    return safe(str(value))


def format_size(nbytes: float) -> str:
    """Bytes as a person reads them; 1 MB is 1,000,000."""
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    for unit in ("kB", "MB", "GB"):
        nbytes /= 1000
        if nbytes < 999.5:
            return f"{nbytes:.3g} {unit}"
    return f"{nbytes / 1000:.3g} TB"


def format_shape(sizes: "Sequence[int]") -> str:
    """``(2, 64, 7, 7)``, as torch writes it."""
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"


def format_count(number: int, thing: str, verb: str = "") -> str:
    """``1 datapoint``, ``12,000 datapoints``, ``0 processes``; with the verb ``is``: ``1 key is``, ``2 keys are``."""
    words = thing if number == 1 else pluralize(thing)
    if verb:
        words += f" {verb if number == 1 else PLURAL_VERBS.get(verb) or verb.removesuffix('s')}"
    return f"{number:,} {words}"


def pluralize(thing: str) -> str:
    """``steps``, ``classes``, ``batches``, ``entries``, ``indices``: the plural of words that end in such a noun."""
    for ending, plural in IRREGULAR_PLURALS.items():
        if thing.endswith(ending):
            return thing.removesuffix(ending) + plural
    if thing.endswith(("s", "x", "ch", "sh")):
        return f"{thing}es"
    return f"{thing[:-1]}ies" if thing.endswith("y") and thing[-2:-1] not in "aeiou" else f"{thing}s"


def join_limited(words: "Sequence[object]", limit: int = 8, count: int = 0) -> str:
    """``a, b, c and 5 more``. count: how many there are, if more than the words given."""
    left = max(count, len(words)) - limit
    return ", ".join(map(str, words[:limit])) + (f" and {left} more" if left > 0 else "")


def to_json_value(value: object) -> "Any":
    """A value as strict JSON has it: numbers that are not finite become the words nan, inf and -inf."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, complex):
        return [to_json_value(value.real), to_json_value(value.imag)]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    return value


def print_table(columns: "Sequence[str]", rows: "Iterable[Sequence[object]]", digits: int = DIGITS) -> None:
    """A table on stdout: in columns on a terminal, tab-separated where it is piped."""
    if not is_laid_out(sys.stdout):
        print("\t".join(map(safe, columns)))
        for row in rows:
            print("\t".join(format_cell(value, digits) for value in row))
        return
    lines = [list(map(safe, columns)), *([format_cell(value, digits) for value in row] for row in rows)]
    room, color = terminal.count_columns(sys.stdout), terminal.has_color(sys.stdout)
    for number, part in enumerate(_fitting_parts(lines, room)):
        if number:
            print()
        for line in _layout_rows(part, room, color):
            print_styled(line)


def _fitting_parts(lines: list[list[str]], room: int) -> "Iterator[list[list[str]]]":
    """Yield the table; if it is far too wide, several tables of some columns each, with the column that names the row."""
    columns = list(zip(*lines, strict=True))
    least = [min(one, NARROWEST) + len(BETWEEN) for one in map(_least_width, columns)]
    room += len(BETWEEN)
    if sum(least) <= room:
        yield lines
        return
    name = next((at for at, column in enumerate(columns) if _can_name_rows(column[1:])), 0)
    part = [name]
    for at in range(len(columns)):
        if at == name:
            continue
        if len(part) > 1 and sum(least[one] for one in (*part, at)) > room:
            yield [[line[one] for one in part] for line in lines]
            part = [name]
        part.append(at)
    yield [[line[one] for one in part] for line in lines]


def _layout_rows(lines: list[list[str]], room: int, color: bool) -> "Iterator[str]":
    """Yield the rows of a table as text, with a bold heading."""
    columns = list(zip(*lines, strict=True))
    numbers = [_has_numbers(column) for column in columns]
    widths = _fitting_widths(columns, room)
    severity = next((at for at, column in enumerate(columns) if column[0] == SEVERITY), -1) if color else -1
    for number, line in enumerate(lines):
        for row in _wrapped_rows(line, widths):
            cells = list(map(_pad_cell, row, widths, numbers))
            if number and severity >= 0 and (style := terminal.SEVERITY_STYLES.get(row[severity])):
                cells[severity] = terminal.apply_style(row[severity], style) + cells[severity][len(row[severity]) :]
            text = BETWEEN.join(cells).rstrip()
            yield f"\x1b[1m{text}\x1b[0m" if color and not number else text


def _fitting_widths(columns: "Sequence[Sequence[str]]", room: int) -> list[int]:
    """Return widths that fit the cells; if too wide, narrow the widest columns first, to the longest word, then further."""
    widths = [max(map(measure_width, column)) for column in columns]
    room -= len(BETWEEN) * (len(columns) - 1)
    words = [_least_width(column) for column in columns]
    for least in (words, [min(word, NARROWEST) for word in words]):
        while sum(widths) > room:
            wide = [at for at in range(len(widths)) if widths[at] > least[at]]
            if not wide:
                break
            widths[max(wide, key=lambda at: widths[at])] -= 1
    return widths


def _wrapped_rows(line: list[str], widths: list[int]) -> "list[list[str]]":
    """Wrap the cells of one table row; returns the terminal rows that it needs."""
    if all(
        (len(text) <= most and text.isascii()) or measure_width(text) <= most
        for text, most in zip(line, widths, strict=True)
    ):
        return [line]
    wrapped = [terminal.wrap_words(text, most) for text, most in zip(line, widths, strict=True)]
    return [[rows[at] if at < len(rows) else "" for rows in wrapped] for at in range(max(map(len, wrapped)))]


def _least_width(column: "Sequence[str]") -> int:
    """Return the least width of a column: its longest word; ``1.2 MB`` counts as one, and sentences need more room."""
    widest = max(map(measure_width, column))
    if _has_numbers(column):
        return widest
    words = max(max(map(measure_width, text.split(" "))) for text in column)
    return max(words, min(widest, PROSE)) if any(text.count(" ") > 3 for text in column) else words


def _can_name_rows(cells: "Sequence[str]") -> bool:
    """True if the cells name their rows: words, or the numbers of ranks."""
    return not all(map(_is_number, cells)) or (all(map(str.isdigit, cells)) and len(set(cells)) == len(cells))


def _has_numbers(column: "Sequence[str]") -> bool:
    return all(map(_is_number, column[1:])) and any(text != "-" for text in column[1:])


def measure_width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text)


def _pad_cell(text: str, columns: int, right: bool) -> str:
    room = " " * (columns - measure_width(text))
    return room + text if right else text + room


def _is_number(text: str) -> bool:
    return (
        text[:1].isdigit()
        or text in ("-", "nan", "inf", "-inf", "NaN", "Inf", "-Inf")
        or (text[:1] == "-" and text[1:2].isdigit())
    )
