"""What tdbg says and prints: talk on stderr, data on stdout, one envelope for JSON."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

PREFIX = "tdbg: "


def say(text: str) -> None:
    """Write talk to stderr, each line begun with ``tdbg:``; a closed stderr is no error."""
    lines = "".join(f"{PREFIX}{line}\n" for line in text.splitlines())
    try:
        sys.stderr.write(lines)
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # nobody listens: closed pipe, closed stream or none at all
        mute(sys.stderr)


def stderr_is_terminal() -> bool:
    """True if a person may look at stderr: it is a terminal."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def stderr_columns() -> int:
    """How many letters fit into a line of stderr, but for the last column."""
    try:
        return max((os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1, 20)
    except (OSError, ValueError, AttributeError):
        return 79


def redraw_stderr(text: str) -> None:
    """Put a text in place of the line that the cursor is in, on stderr; empty: wipe it. A closed stderr is no error."""
    try:
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        mute(sys.stderr)


def plain(value: Any) -> str:
    """A cell as text: floats short, None as a dash, lists joined."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value)
    return str(value)


def print_json(kind: str, payload: Any) -> None:
    """One JSON document on stdout: ``{"kind": ..., "version": 1, "data": ...}``."""
    import json

    print(json.dumps({"kind": kind, "version": 1, "data": payload}, indent=2, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table on stdout: drawn by rich on a terminal, tab-separated where it is piped."""
    cells = [[plain(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        print("\t".join(columns))
        for row in cells:
            print("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in cells:
        table.add_row(*row)
    Console(markup=False, highlight=False, emoji=False).print(table)


def close_quietly() -> None:
    """Flush stdout; if nobody takes it any more, point it at /dev/null so that Python's exit stays silent."""
    try:
        sys.stdout.flush()
    except OSError:
        mute(sys.stdout)


def mute(stream: TextIO | None) -> None:
    """Point a stream that nobody takes any more at /dev/null; what it still holds must not fail Python's exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):  # no stream, or one without a file below
        pass
