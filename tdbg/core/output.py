"""What tdbg says and prints: talk on stderr, data on stdout, one envelope for JSON.

While a command runs, everything that is written to stdout and stderr passes `EscapingStream`: names, messages and paths
of somebody else's are shown and never obeyed by the terminal, whoever prints them. What tdbg itself sends to a terminal
(colour, the live line, pictures) goes around it by `print_styled` and `redraw_stderr`; bytes of the user's own log, as
`filter-logs` prints records, go to the file descriptor.

On a terminal, lines are wrapped between words and severities coloured (`tdbg.core.terminal`), while a command runs: never
in a rank, whose terminal is the program's. In a pipe a line is a line.
"""

import os
import sys
from _thread import RLock
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from tdbg.core import terminal
from tdbg.core.escapes import escape_controls, escape_line

PREFIX = "tdbg: "


class EscapingStream:
    """A text stream that shows control characters instead of passing them on; all else is the stream's own.

    What the encoding of the stream lacks is written as an escape too: a name is never a reason to fail.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the text, escaped; returns the length of what was given."""
        if _rows.is_drawn:
            _rows.erase_live_line()
        self.stream.write(_escape_unencodable(escape_controls(text), self.stream))
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
    sys.stdout, sys.stderr = _wrap_stream(sys.stdout), _wrap_stream(sys.stderr)
    mine = sys.stdout, sys.stderr
    try:
        yield
    finally:
        if sys.stdout is mine[0]:  # else somebody else took its place, and gives it back
            sys.stdout = before[0]
        if sys.stderr is mine[1]:
            sys.stderr = before[1]


def _wrap_stream(stream: TextIO) -> TextIO:
    if stream is None or isinstance(stream, EscapingStream):
        return stream
    return cast(TextIO, EscapingStream(stream))


def styled_stream(stream: TextIO) -> TextIO:
    """The stream below: what is written there may style a terminal. Names have to be escaped first."""
    return stream.stream if isinstance(stream, EscapingStream) else stream


def print_styled(text: str, end: str = "\n") -> None:
    """Print a line to stdout with tdbg's own control sequences in it; its names are escaped already."""
    print(text, end=end, file=styled_stream(sys.stdout))


class TerminalRows:
    """The rows that tdbg writes to the terminal: permanent lines, and one live line that any other output erases.

    Most commands have the terminal to themselves. `tdbg run` shares it with the program: see `ProgramRows`.
    """

    passes_all = False  # all output of a program to the terminal passes through this object

    def __init__(self) -> None:
        self.lock = RLock()
        self.is_drawn = False

    def write(self, text: str) -> None:
        """Write complete, formatted lines, starting on a new row."""
        with self.lock:
            self.erase_live_line()
            self._write_terminal(self.format_row_start() + text)

    def redraw_live_line(self, text: str) -> None:
        """Replace the live line with a text."""
        with self.lock:
            self.is_drawn = True
            self._write_terminal(f"\r{text}{terminal.RESTS}")

    def erase_live_line(self) -> None:
        """Erase the live line."""
        with self.lock:
            if self.is_drawn:
                self.is_drawn = False
                self._write_terminal(f"\r{terminal.RESTS}")

    def flush(self) -> None:
        """Write lines that were held back; none are where tdbg has the terminal to itself."""

    def is_terminal_read(self) -> bool:
        """True if another process reads from the terminal now."""
        return False

    def format_row_start(self) -> str:
        """Return text that moves the cursor to the start of a free row."""
        return ""

    def _write_terminal(self, text: str) -> None:
        try:
            stream = styled_stream(sys.stderr)
            stream.write(text)
            stream.flush()
        except (OSError, ValueError, AttributeError):  # nobody listens: closed pipe, closed stream or none at all
            redirect_to_devnull(sys.stderr)


_rows = TerminalRows()


def terminal_rows() -> TerminalRows:
    """Return the rows in use."""
    return _rows


@contextmanager
def shared_terminal(rows: TerminalRows) -> Iterator[None]:
    """Write messages and the live line through these rows while a program runs on the same terminal."""
    global _rows
    before, _rows = _rows, rows
    try:
        yield
    finally:
        _rows = before


def is_laid_out(stream: object) -> bool:
    """True if the output of a command to the stream is formatted for a terminal."""
    return isinstance(stream, EscapingStream) and terminal.is_screen(stream.stream)


def print_messages(*lines: str) -> None:
    """Write lines of talk to stderr, each begun with ``tdbg:``; a closed stderr is no error.

    A line break inside one goes on indented, so that no name can look like a line of tdbg's.
    """
    if not lines:
        return
    if _rows.is_drawn:
        _rows.erase_live_line()
    text = escape_controls("\n".join(_indent_continuation(line.replace("\r\n", "\n")) for line in lines))
    if is_laid_out(sys.stderr):
        columns, color = terminal.count_columns(sys.stderr), terminal.has_color(sys.stderr)
        _rows.write(_escape_unencodable(terminal.format_lines(text.split("\n"), columns, color, PREFIX), sys.stderr))
        return
    try:
        begin = (
            terminal.begin_row(sys.stderr) if terminal.is_terminal(sys.stderr) else ""
        )  # a rank's: the program writes there too
        sys.stderr.write(begin + "".join(f"{PREFIX}{line}\n" for line in text.split("\n")))
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # nobody listens: closed pipe, closed stream or none at all
        redirect_to_devnull(sys.stderr)


def print_lines(lines: Iterable[str]) -> None:
    """Print each line to stdout, wrapped on a terminal; text after a line break inside a line is indented."""
    text = "\n".join(map(_indent_continuation, lines))
    if is_laid_out(sys.stdout):
        columns, color = terminal.count_columns(sys.stdout), terminal.has_color(sys.stdout)
        shown = terminal.format_lines(escape_controls(text).split("\n"), columns, color)
        print_styled(_escape_unencodable(shown, sys.stdout), end="")
    else:
        print(text)


def print_prose(text: str) -> None:
    """Print a text to stdout; on a terminal paragraphs are rewrapped, and indented lines stay as they are."""
    if not is_laid_out(sys.stdout):
        print(text)
        return
    lines: list[str] = []
    joins = False
    for line in text.split("\n"):
        goes_on = bool(line) and not line.startswith(" ")
        lines[-1:] = [f"{lines[-1]} {line}"] if goes_on and joins else [*lines[-1:], line]
        joins = goes_on
    columns, color = terminal.count_columns(sys.stdout), terminal.has_color(sys.stdout)
    shown = terminal.format_lines(map(escape_controls, lines), columns, color, hang=0)
    print_styled(_escape_unencodable(shown, sys.stdout), end="")


def _indent_continuation(line: str) -> str:
    return line.removesuffix("\n").replace("\n", "\n    ")


def _escape_unencodable(text: str, stream: TextIO) -> str:
    """Return the text with characters that the encoding of the stream lacks as escapes."""
    if text.isascii():
        return text
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def can_redraw_stderr() -> bool:
    """True if stderr is a terminal that can redraw a line."""
    return terminal.is_terminal(sys.stderr) and terminal.can_redraw()


def redraw_stderr(text: str) -> None:
    """Replace the live line on stderr with a text, cut to the width of the terminal; an empty text erases it."""
    shown = escape_line(text)[: terminal.row_columns(sys.stderr) - 1]  # the last column would wrap
    _rows.redraw_live_line(_escape_unencodable(shown, sys.stderr)) if shown else _rows.erase_live_line()


def print_json(kind: str, payload: Any) -> None:
    """One JSON document on stdout: ``{"kind": ..., "version": 1, "data": ...}``."""
    import json

    print(json.dumps({"kind": kind, "version": 1, "data": payload}, indent=2, default=str))


def close_stdout() -> None:
    """Flush stdout; if nobody takes it any more, point it at /dev/null so that Python's exit stays silent."""
    try:
        sys.stdout.flush()
    except OSError:
        redirect_to_devnull(sys.stdout)


def redirect_to_devnull(stream: TextIO | None) -> None:
    """Point a stream that nobody takes any more at /dev/null; what it still holds must not fail Python's exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):  # no stream, or one without a file below
        pass
