"""Properties of a terminal (colour, width), and the formatting of lines for it.

Standard library only, and light. rich wraps and colours lines; it is loaded only for a terminal or ``--color always``, and
never for a pipe.
"""

import os

from tdbg.core.errors import TdbgError

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TextIO

    from rich.console import Console
    from rich.text import Text

COLOR_MODES = ("auto", "always", "never")
DEFAULT_COLUMNS = 80
DEFAULT_ROWS = 24
LEAST_COLUMNS = 20
HANG = 4  # how far the rest of a wrapped line is indented beneath its beginning
TAB = 8
LEAST_ROOM = 16  # for the text of a line, however far it is indented
RESTS = "\x1b[K"  # erases what is left of the row
SEVERITY_STYLES = {"critical": "bold red", "error": "red", "warning": "yellow", "info": "cyan"}
# ``TD-N001 critical:``, and the counts of a verdict's headline.
_SEVERITIES = r"\b[A-Z]{2}-[A-Z]\d{3} \(?(critical|error|warning|info)\)?(?=:)"
_COUNTS = r"\b\d+ (critical|error|warning|info)s?\b"
_HEADLINE = "verdict: "
_mode = "auto"


def choose_color(mode: str) -> None:
    """Set the value of ``--color`` for the rest of the process; raises TdbgError for an unknown one."""
    global _mode
    if mode not in COLOR_MODES:
        raise TdbgError(
            f"--color cannot be {mode!r}", f"write --color {', '.join(COLOR_MODES[:-1])} or {COLOR_MODES[-1]}"
        )
    _mode = mode


def is_terminal(stream: "TextIO | None") -> bool:
    """True if the stream is a terminal."""
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError, AttributeError, TypeError):  # in a rank it may be an object of the program's
        return False


def is_screen(stream: "TextIO | None") -> bool:
    """True if text on the stream is formatted for a terminal."""
    return stream is not None and (_mode == "always" or is_terminal(stream))


def has_color(stream: "TextIO | None") -> bool:
    """True if text on the stream is coloured: as ``--color`` says, else on a terminal unless NO_COLOR, TERM or CI forbid it."""
    if _mode != "auto":
        return _mode == "always"
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and can_redraw()


def can_redraw() -> bool:
    """True unless the terminal understands no escape sequences (TERM=dumb), or a CI system reads it."""
    return os.environ.get("TERM", "") != "dumb" and os.environ.get("CI", "").lower() in ("", "0", "false")


def count_columns(stream: "TextIO | None") -> int:
    """Return the width for text: COLUMNS, else the width of the terminal, else 80."""
    given = os.environ.get("COLUMNS", "")
    return max(int(given) if given.isdecimal() and int(given) else row_columns(stream), LEAST_COLUMNS)


def row_columns(stream: "TextIO | None") -> int:
    """Return the width of the terminal; 80 if unknown."""
    return _query_size(stream)[0] or DEFAULT_COLUMNS


def count_rows(stream: "TextIO | None") -> int:
    """Return the height of the terminal; 24 if unknown."""
    return _query_size(stream)[1] or DEFAULT_ROWS


def _query_size(stream: "TextIO | None") -> tuple[int, int]:
    """Return columns and rows; zeros if unknown, or if there is no terminal."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno() if stream is not None else -1)
    except (OSError, ValueError, AttributeError, TypeError):
        return 0, 0
    return columns, rows


def begin_row(stream: "TextIO | None") -> str:
    """Return text that moves the cursor to the start of a row: a full row of blanks leaves a row that holds text, and stays
    in an empty one.

    Where that is not understood, or a log keeps every byte (`can_redraw`), it is a line feed: an empty row does no harm
    there, and a row of the program's with text of tdbg in it does.
    """
    if not can_redraw():
        return "\n"
    return f"{' ' * row_columns(stream)}\r{RESTS}"


def apply_style(text: str, style: str) -> str:
    """Return the text in a style of rich; its control characters must be escaped already."""
    from rich.color import ColorSystem
    from rich.style import Style

    return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)


def format_lines(lines: "Iterable[str]", columns: int, color: bool, prefix: str = "", hang: int = HANG) -> str:
    """Format lines for a terminal: wrap them between words, and indent the rest of a wrapped line.

    Each row begins with ``prefix``. Words wider than a row (paths, hashes) are broken. Control characters must be escaped
    already.
    """
    lines = list(lines)
    if all(_is_plain(line, columns - len(prefix)) for line in lines):
        return "".join(f"{prefix}{line}\n" for line in lines)
    from io import StringIO

    from rich.console import Console
    from rich.text import Text

    printed = StringIO()
    console = Console(
        file=printed,
        width=columns,
        color_system="standard" if color else None,
        force_terminal=True,
        legacy_windows=False,
        no_color=not color,
        markup=False,
        highlight=False,
        emoji=False,
    )
    for line in lines:
        for row in _wrap_line(console, line, columns - len(prefix), hang):
            console.print(Text(prefix) + row, soft_wrap=True)
    return printed.getvalue()


def _is_plain(line: str, columns: int) -> bool:
    """True if the line needs neither wrapping nor colour."""
    return (
        len(line) <= columns and line.isascii() and line.isprintable() and "TD-" not in line and _HEADLINE not in line
    )


def wrap_words(text: str, columns: int) -> list[str]:
    """Wrap the text to rows of at most ``columns``; only words wider than that are broken."""
    from rich.console import Console
    from rich.text import Text

    rows = Text(text).wrap(Console(width=columns), columns, overflow="fold")
    return [row.plain.rstrip() for row in rows] or [""]


def _wrap_line(console: "Console", line: str, columns: int, hang: int) -> "Iterator[Text]":
    """Yield the styled rows of one line."""
    from rich.cells import cell_len
    from rich.text import Text

    words = line.lstrip(" ")
    indent = min(len(line) - len(words), max(columns - LEAST_ROOM - hang, 0))
    text = Text(words)
    text.highlight_regex(_SEVERITIES, style=_style_of)
    if words.startswith(_HEADLINE):
        text.highlight_regex(_COUNTS, style=_style_of)
    if indent + cell_len(words) <= columns:
        yield Text(" " * indent) + text
        return
    text.expand_tabs(TAB)
    room = max(columns - indent, LEAST_ROOM)
    first = text.wrap(console, room, overflow="fold")[0]
    rest = text.divide([len(text.plain) - len(text.plain[len(first.plain) :].lstrip())])[-1]
    first.rstrip()
    yield Text(" " * indent) + first
    for row in rest.wrap(console, max(room - hang, LEAST_ROOM), overflow="fold"):
        row.rstrip()
        yield Text(" " * (indent + hang)) + row


def _style_of(found: str) -> str:
    """Return the style of the severity named in a text."""
    return next(style for word, style in SEVERITY_STYLES.items() if word in found)
