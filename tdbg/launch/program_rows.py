"""The terminal that `tdbg run` shares with the program: rows of tdbg's own, and a live line that is in nobody's way.

The program writes to the terminal itself, so tdbg cannot know where the cursor is: each of its lines begins a row of its
own whatever is there, and there is no live line. While a line is edited there (pdb, a password), lines wait. With `--tee`
every byte passes tdbg, which takes the live line away before the program's bytes go on, and draws it only where the
program has ended its row, redraws nothing and reads no line. Where stdout is a pipe, its reader may write to the same
terminal (``| cat``): that is as without `--tee`.
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
from tdbg.core.output import TerminalRows, can_redraw_stderr

REDRAW_REST_S = 30.0  # no live line for so long after the program has redrawn a row of its own
# What moves the cursor within what is written already: a return without a line feed, a backspace, an escape sequence
# other than a colour.
_REDRAW = re.compile(rb"\r(?!\n)|\x08|\x1b(?!\[[0-9;:]*m)")
_CUT_OFF = re.compile(rb"(?:\r|\x1b(?:\[[0-9;:]{0,64})?)\Z")  # its end is in the next bytes
# Bytes behind which another text would be taken for the rest of an escape sequence, or of a letter of UTF-8.
_UNFINISHED = re.compile(
    rb"(?:\x1b(?:\[[ -?]*|[\]P^_X][^\x07\x1b]*)?|[\xc2-\xf4]|[\xe0-\xf4][\x80-\xbf]|[\xf0-\xf4][\x80-\xbf]{2})\Z"
)
_TAIL = 256  # of the last bytes are searched for one
_LINE_END = b"\n"
_ROW_CHANGE = re.compile(rb"\n|\x1b\[(\d*)A")


class ProgramRows(TerminalRows):
    """The rows of tdbg among those of a program.

    passes_all: everything that the program writes to the terminal comes by here (`pass_on`).
    """

    def __init__(self, *, passes_all: bool) -> None:
        super().__init__()
        self.passes_all = passes_all and can_redraw_stderr() and not is_stdout_piped()
        self._at_start = self.passes_all
        self._redrawn = -math.inf
        self._rise = 0  # how many rows above the cursor its last redraw began
        self._cut_off = self._tail = b""
        self._waiting = ""
        self._has_ended = False
        self._mode_before = _line_mode()

    def pass_on(self, data: bytes, write: Callable[[bytes], bool]) -> bool:
        """Let the program's bytes through, on a terminal without the live line; returns what ``write`` does."""
        with self.lock:
            self.wipe()
            self._note(data)
            return write(data)

    def _note(self, data: bytes) -> None:
        """Remember what the bytes do to the cursor."""
        whole = self._cut_off + data
        found = _CUT_OFF.search(whole)
        self._cut_off = found[0] if found else b""
        if _REDRAW.search(whole, 0, len(whole) - len(self._cut_off)):
            self._redrawn = time.monotonic()
            self._rise = _rise(whole)
        self._at_start = whole.endswith(_LINE_END)
        self._tail = (self._tail + data)[-_TAIL:]

    def _redraws(self) -> bool:
        return time.monotonic() - self._redrawn < REDRAW_REST_S

    def is_free(self) -> bool:
        """True if a live line is in nobody's way: the cursor begins a row, and nobody else draws or reads there."""
        return self.passes_all and self._at_start and not self._redraws() and not self.is_read()

    def is_read(self) -> bool:
        """True if a line is edited on the terminal, or another job than this one stands in its foreground."""
        try:
            return self.is_edited() or os.tcgetpgrp(sys.stderr.fileno()) != os.getpgrp()
        except (OSError, ValueError, AttributeError):
            return False

    def is_edited(self) -> bool:
        """True if the program reads key by key now (readline, as pdb does), or without an echo (a password)."""
        mode = _line_mode()
        return mode is not None and mode != self._mode_before

    def redraw(self, text: str) -> None:
        """Put a text in place of the live line, where it is in nobody's way."""
        with self.lock:
            if self.is_free():
                super().redraw(text)

    def write(self, text: str) -> None:
        """Write whole lines on rows of their own; the program goes on beneath, with room for what it redraws above."""
        with self.lock:
            self._waiting += text
        self.flush()

    def flush(self) -> None:
        """Write what has waited, unless a line is edited still, or the program is in the middle of a sequence."""
        with self.lock:
            if self._waiting and (self._has_ended or not (self.is_edited() or _UNFINISHED.search(self._tail))):
                text, self._waiting = self._waiting, ""
                super().write(text + "\n" * (self._rise if self._redraws() else 0))
                self._at_start = True

    def end(self) -> None:
        """The program has ended, in whatever mode it left the terminal."""
        self._has_ended = True
        self._redrawn = -math.inf
        self.flush()

    def lead(self) -> str:
        """What begins a row, where the program may have begun one."""
        if (self.passes_all and self._at_start) or not can_redraw_stderr():
            return ""
        return terminal.begin_row(sys.stderr)


def _rise(data: bytes) -> int:
    """How many rows above its first one a redraw goes; no more than the terminal has."""
    row = highest = 0
    for found in _ROW_CHANGE.finditer(data):
        row += 1 if found[0] == _LINE_END else -int(found[1][:4] or 1)
        highest = min(highest, row)
    return min(-highest, terminal.count_rows(sys.stderr) - 1)


def is_stdout_piped() -> bool:
    """True if somebody else reads what goes to stdout, and may write it to the terminal."""
    try:
        mode = os.fstat(1).st_mode
    except OSError:  # closed
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _line_mode() -> int | None:
    """Whether the terminal of stderr takes whole lines, and echoes them; None if it is none."""
    try:
        return int(termios.tcgetattr(sys.stderr.fileno())[3]) & (termios.ICANON | termios.ECHO)
    except (OSError, ValueError, AttributeError, termios.error):
        return None
