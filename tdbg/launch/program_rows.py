"""The terminal that `tdbg run` shares with the program: rows of tdbg's own, and a live line that is in nobody's way.

The program writes to the terminal itself, so tdbg cannot know where the cursor is: each of its lines begins a row of its
own whatever is there, and there is no live line. With `--tee` every byte passes tdbg, which takes the line away before
the program's bytes go on, and draws it only where the program has ended its row, redraws nothing and reads no line.
"""

import math
import os
import re
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
_CUT_OFF = re.compile(rb"(?:\r|\x1b(?:\[[0-9;:]*)?)\Z")  # its end is in the next bytes
_LINE_END = b"\n"


class ProgramRows(TerminalRows):
    """The rows of tdbg among those of a program.

    passes_all: everything that the program writes to the terminal comes by here (`pass_on`).
    """

    def __init__(self, *, passes_all: bool) -> None:
        super().__init__()
        self.passes_all = passes_all and can_redraw_stderr()
        self._at_start = passes_all
        self._redrawn = -math.inf
        self._cut_off = b""

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
        self._at_start = whole.endswith(_LINE_END)

    def is_free(self) -> bool:
        """True if a live line is in nobody's way: the cursor begins a row, and nobody else draws or reads there."""
        rests = time.monotonic() - self._redrawn < REDRAW_REST_S
        return self.passes_all and self._at_start and not rests and not is_read()

    def redraw(self, text: str) -> None:
        """Put a text in place of the live line, where it is in nobody's way."""
        with self.lock:
            if self.is_free():
                super().redraw(text)

    def write(self, text: str) -> None:
        """Write whole lines on rows of their own; the program goes on beneath."""
        with self.lock:
            super().write(text)
            self._at_start = True

    def lead(self) -> str:
        """Blanks enough to leave a row that has been begun, and to stay in one that has not."""
        if (self.passes_all and self._at_start) or not can_redraw_stderr():
            return ""
        return f"{' ' * terminal.row_columns(sys.stderr)}\r{terminal.RESTS}"


def is_read() -> bool:
    """True if a line is edited on the terminal (pdb, a password), or the shell's prompt stands there."""
    try:
        mode = termios.tcgetattr(sys.stderr.fileno())[3]
        return not (mode & termios.ICANON and mode & termios.ECHO) or os.tcgetpgrp(sys.stderr.fileno()) != os.getpgrp()
    except (OSError, ValueError, AttributeError, termios.error):
        return False
