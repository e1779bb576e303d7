"""The terminal that `tdbg run` shares with the program: rows of tdbg between those of the program, and a live line.

The program writes to the terminal itself, so tdbg does not know where the cursor is: each line of tdbg starts on a new row,
and there is no live line. While the program reads a line (pdb, a password), lines of tdbg are held back. With `--tee` every
byte passes through tdbg, which erases the live line before it writes bytes of the program, and draws it only after the
program has completed its row, redraws nothing and reads no line. Where stdout is a pipe, its reader may write to the same
terminal (``| cat``), so the rules are those without `--tee`.
"""

import math
import os
import re
import stat
import sys
import termios
import time
from collections.abc import Callable

from tdbg.core import terminal
from tdbg.core.output import TerminalRows

REDRAW_REST_S = 30.0  # no live line for so long after the program has redrawn a row of its own
# What moves the cursor within what is written already: a return without a line feed, a backspace, an escape sequence
# other than a colour.
_REDRAW = re.compile(rb"\r(?!\n)|\x08|\x1b(?!\[[0-9;:]*m)")
_CUT_OFF = re.compile(rb"(?:\r|\x1b(?:\[[0-9;:]{0,64})?)\Z")  # its end is in the next bytes
# An incomplete escape sequence or UTF-8 character: a terminal would take text of tdbg for the rest of it.
_UNFINISHED = re.compile(
    rb"(?:\x1b(?:\[[ -?]*|[\]P^_X][^\x07\x1b]*)?|[\xc2-\xf4]|[\xe0-\xf4][\x80-\xbf]|[\xf0-\xf4][\x80-\xbf]{2})\Z"
)
_TAIL = 256  # bytes at the end that are searched for it
_LINE_END = b"\n"
_ROW_CHANGE = re.compile(rb"\n|\x1b\[(\d*)A")


class ProgramRows(TerminalRows):
    """The rows of tdbg between those of a program.

    passes_all: all output of the program to the terminal goes through `pass_on`.
    """

    def __init__(self, *, passes_all: bool) -> None:
        super().__init__()
        self._sees_all = passes_all and terminal.is_terminal(sys.stderr) and not is_stdout_piped()
        self.passes_all = self._sees_all and terminal.can_redraw()
        self._at_start = self._sees_all
        self._redrawn = -math.inf
        self._rise = 0  # how many rows above the cursor its last redraw began
        self._cut_off = self._tail = b""
        self._waiting = ""
        self._has_ended = False
        self._mode_before = _usual_mode()

    def pass_on(self, data: bytes, write: Callable[[bytes], bool]) -> bool:
        """Erase the live line, and write bytes of the program; returns the result of ``write``."""
        with self.lock:
            self.erase_live_line()
            self._track_cursor(data)
            return write(data)

    def _track_cursor(self, data: bytes) -> None:
        """Record how the bytes move the cursor."""
        whole = self._cut_off + data
        found = _CUT_OFF.search(whole)
        self._cut_off = found[0] if found else b""
        if _REDRAW.search(whole, 0, len(whole) - len(self._cut_off)):
            self._redrawn = time.monotonic()
            self._rise = _count_redraw_rows(whole)
        self._at_start = whole.endswith(_LINE_END)
        self._tail = (self._tail + data)[-_TAIL:]

    def _is_redrawing(self) -> bool:
        return time.monotonic() - self._redrawn < REDRAW_REST_S

    def is_free(self) -> bool:
        """True if a live line can be drawn: the cursor is at the start of a row, and the program neither redraws nor reads."""
        return self.passes_all and self._at_start and not self._is_redrawing() and not self.is_terminal_read()

    def is_terminal_read(self) -> bool:
        """True if the program reads a line, or another job is in the foreground of the terminal."""
        return self.is_edited() or not _is_in_foreground()

    def is_edited(self) -> bool:
        """True if the program reads single keys now (readline, used by pdb), or without echo (a password)."""
        mode = _line_mode()
        return mode is not None and mode != self._mode_before

    def redraw_live_line(self, text: str) -> None:
        """Replace the live line with a text, if it can be drawn."""
        with self.lock:
            if self.is_free():
                super().redraw_live_line(text)

    def write(self, text: str) -> None:
        """Write complete lines on new rows; leave room below for rows that the program redraws."""
        with self.lock:
            self._waiting += text
        self.flush()

    def flush(self) -> None:
        """Write the lines held back, unless the program reads a line or has written an incomplete sequence."""
        with self.lock:
            if self._waiting and (self._has_ended or not (self.is_edited() or _UNFINISHED.search(self._tail))):
                text, self._waiting = self._waiting, ""
                super().write(text + "\n" * (self._rise if self._is_redrawing() else 0))
                self._at_start = True

    def finish_output(self) -> None:
        """Write the lines held back: the program has ended, in whatever mode it left the terminal."""
        self._has_ended = True
        self._at_start = self._at_start and self._sees_all
        self._redrawn = -math.inf
        self.flush()

    def format_row_start(self) -> str:
        """Return text that starts a new row, if the program may have begun one."""
        is_known = self._sees_all or (self._has_ended and not terminal.can_redraw())
        if (is_known and self._at_start) or not terminal.is_terminal(sys.stderr):
            return ""
        return terminal.begin_row(sys.stderr)


def _count_redraw_rows(data: bytes) -> int:
    """Return how many rows a redraw moves above its first row; at most the height of the terminal."""
    row = highest = 0
    for found in _ROW_CHANGE.finditer(data):
        row += 1 if found[0] == _LINE_END else -int(found[1][:4] or 1)
        highest = min(highest, row)
    return min(-highest, terminal.count_rows(sys.stderr) - 1)


def is_stdout_piped() -> bool:
    """True if another program reads stdout: it may write to the terminal."""
    try:
        mode = os.fstat(1).st_mode
    except OSError:  # closed
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _is_in_foreground() -> bool:
    """False if another job is in the foreground of the terminal on stderr."""
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return True


def _usual_mode() -> int | None:
    """Return the mode of the terminal now; in the background, where the shell reads a line, the one that a job gets."""
    mode = _line_mode()
    return mode if mode is None or _is_in_foreground() else termios.ICANON | termios.ECHO


def _line_mode() -> int | None:
    """Return the line and echo modes of the terminal on stderr; None if there is no terminal."""
    try:
        return int(termios.tcgetattr(sys.stderr.fileno())[3]) & (termios.ICANON | termios.ECHO)
    except (OSError, ValueError, AttributeError, termios.error):
        return None
