"""What tdbg says and prints: talk on stderr, data on stdout, one envelope for JSON.

While a command runs, everything that is written to stdout and stderr passes `EscapingStream`: names, messages and paths
of somebody else's are shown and never obeyed by the terminal, whoever prints them. What tdbg itself sends to a terminal
(colour, the live line, pictures) goes around it by `print_styled` and `redraw_stderr`; bytes of the user's own log, as
`filter-logs` prints records, go to the file descriptor.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast

from tdbg.core.escapes import escape_controls, safe

PREFIX = "tdbg: "


class EscapingStream:
    """A text stream that shows control characters instead of passing them on; all else is the stream's own.

    What the encoding of the stream lacks is written as an escape too: a name is never a reason to fail.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the text, escaped; returns the length of what was given."""
        shown = escape_controls(text)
        if not shown.isascii():
            encoding = getattr(self.stream, "encoding", None) or "utf-8"
            shown = shown.encode(encoding, "backslashreplace").decode(encoding)
        self.stream.write(shown)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line, escaped."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def escaped_output() -> Iterator[None]:
    """Let stdout and stderr show control characters for as long as a command runs."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _escaping(sys.stdout), _escaping(sys.stderr)
    mine = sys.stdout, sys.stderr
    try:
        yield
    finally:
        if sys.stdout is mine[0]:  # else somebody else took its place, and gives it back
            sys.stdout = before[0]
        if sys.stderr is mine[1]:
            sys.stderr = before[1]


def _escaping(stream: TextIO) -> TextIO:
    if stream is None or isinstance(stream, EscapingStream):
        return stream
    return cast(TextIO, EscapingStream(stream))


def styled_stream(stream: TextIO) -> TextIO:
    """The stream below: what is written there may style a terminal. Names have to be escaped first."""
    return stream.stream if isinstance(stream, EscapingStream) else stream


def print_styled(text: str, end: str = "\n") -> None:
    """Print a line to stdout with tdbg's own control sequences in it; its names are escaped already."""
    print(text, end=end, file=styled_stream(sys.stdout))


def say(*lines: str) -> None:
    """Write lines of talk to stderr, each begun with ``tdbg:``; a closed stderr is no error.

    A line break inside one goes on indented, so that no name can look like a line of tdbg's.
    """
    if not lines:
        return
    text = escape_controls("\n".join(_hanging(line.replace("\r\n", "\n")) for line in lines))
    try:
        sys.stderr.write("".join(f"{PREFIX}{line}\n" for line in text.split("\n")))
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # nobody listens: closed pipe, closed stream or none at all
        mute(sys.stderr)


def print_lines(lines: Iterable[str]) -> None:
    """Print each line to stdout; a line break inside one goes on indented."""
    print("\n".join(map(_hanging, lines)))


def _hanging(line: str) -> str:
    return line.removesuffix("\n").replace("\n", "\n    ")


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
        stream = styled_stream(sys.stderr)
        stream.write(f"\r{safe(text)}\x1b[K")
        stream.flush()
    except (OSError, ValueError, AttributeError):
        mute(sys.stderr)


def plain(value: Any) -> str:
    """A cell as text: floats short, None as a dash, lists joined; nothing in it breaks the line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value)
    return safe(str(value))


def print_json(kind: str, payload: Any) -> None:
    """One JSON document on stdout: ``{"kind": ..., "version": 1, "data": ...}``."""
    import json

    print(json.dumps({"kind": kind, "version": 1, "data": payload}, indent=2, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table on stdout: drawn by rich on a terminal, tab-separated where it is piped."""
    cells = [[plain(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        print("\t".join(map(safe, columns)))
        for row in cells:
            print("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(safe(column), overflow="fold")
    for row in cells:
        table.add_row(*row)
    Console(file=styled_stream(sys.stdout), markup=False, highlight=False, emoji=False).print(table)


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
