"""A terminal for tests: runs a command on a pseudo-terminal, and shows the rows that a person would see.

Of the control sequences it obeys those that tqdm, rich, readline and tdbg send; any other one fails the test.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pexpect

_PIECES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[^\[]|[\r\n\b\t\x07]|[^\x1b\r\n\b\t\x07]+")
IGNORED = ("\x07", "\x1b=", "\x1b>")


@dataclass
class Cell:
    """A letter and how it is shown."""

    letter: str = " "
    style: str = ""


@dataclass
class Screen:
    """What a stream of bytes looks like on a terminal; rows that scroll away are kept."""

    columns: int = 80
    cells: list[list[Cell]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: str = ""
    erased: list[str] = field(default_factory=list)  # what a row held when a part of it was erased

    def show_text(self, text: str) -> None:
        """Show more."""
        for piece in _PIECES.findall(text):
            if piece[0] == "\x1b":
                self._obey_sequence(piece)
            elif piece in IGNORED:
                continue
            elif piece[0] in "\r\n\b\t":
                self._move_cursor(piece)
            else:
                for letter in piece:
                    self._put_letter(letter)

    def _move_cursor(self, sign: str) -> None:
        if sign == "\r":
            self.column = 0
        elif sign == "\n":
            self._move_to_row(self.row + 1)
        elif sign == "\b":
            self.column = max(min(self.column, self.columns - 1) - 1, 0)
        else:
            self.column = min((self.column // 8 + 1) * 8, self.columns - 1)

    def _move_to_row(self, row: int) -> None:
        self.row = max(row, 0)
        while len(self.cells) <= self.row:
            self.cells.append([])

    def _put_letter(self, letter: str) -> None:
        if self.column >= self.columns:  # the last column wraps with the next letter
            self.column = 0
            self._move_to_row(self.row + 1)
        line = self.cells[self.row]
        line += [Cell() for _ in range(self.column + 1 - len(line))]
        line[self.column] = Cell(letter, self.style)
        self.column += 1

    def _obey_sequence(self, sequence: str) -> None:
        if sequence.startswith("\x1b[?"):  # modes: the cursor is shown, what is pasted is bracketed
            return
        kind, number = sequence[-1], int(re.sub(r"\D.*", "", sequence[2:-1]) or 0)
        if kind == "m":
            self.style = "" if sequence in ("\x1b[0m", "\x1b[m") else sequence[2:-1]
        elif kind == "K":
            self.erased.append(self.row_text(self.row))
            begin = 0 if number == 2 else self.column
            self.cells[self.row] = [] if number == 2 else self.cells[self.row][:begin]
        elif kind == "J":
            del self.cells[self.row][self.column :]
            del self.cells[self.row + 1 :]
        elif kind == "A":
            self._move_to_row(self.row - (number or 1))
        elif kind == "B":
            self._move_to_row(self.row + (number or 1))
        elif kind == "C":
            self.column = min(self.column + (number or 1), self.columns - 1)
        elif kind == "D":
            self.column = max(self.column - (number or 1), 0)
        elif kind == "G":
            self.column = max(number - 1, 0)
        elif kind == "P":
            del self.cells[self.row][self.column : self.column + (number or 1)]
        else:
            raise AssertionError(f"the screen does not know {sequence!r}")

    def row_text(self, row: int) -> str:
        """One row."""
        return "".join(cell.letter for cell in self.cells[row]).rstrip()

    @property
    def rows(self) -> list[str]:
        """All rows but the empty ones at the end."""
        found = [self.row_text(row) for row in range(len(self.cells))]
        while found and not found[-1]:
            found.pop()
        return found

    def find_styles(self, text: str) -> set[str]:
        """How the letters of a text are shown, wherever it stands."""
        found: set[str] = set()
        for line in self.cells:
            row = "".join(cell.letter for cell in line)
            for at in (place.start() for place in re.finditer(re.escape(text), row)):
                found |= {cell.style for cell in line[at : at + len(text)]}
        return found


@dataclass
class Shown:
    """What a command left on the terminal."""

    screen: Screen
    stream: str
    code: int | None

    @property
    def rows(self) -> list[str]:
        """The rows of the screen."""
        return self.screen.rows


def run_on_terminal(
    words: Sequence[str],
    folder: Path,
    columns: int = 80,
    typed: Sequence[tuple[str, str]] = (),
    marked: tuple[str, Path] | None = None,
    **env: str,
) -> Shown:
    """Run a command on a terminal.

    typed: what is waited for, and the line typed then. marked: what is waited for after it, and a file made then.
    """
    child: Any = pexpect.spawn(
        words[0], [*words[1:]], cwd=str(folder), dimensions=(40, columns), timeout=90, encoding="utf-8", env=env
    )
    parts = []
    for prompt, line in typed:
        child.expect(prompt)
        parts += [child.before, child.after]
        time.sleep(0.1)
        child.sendline(line)
    if marked:
        child.expect(marked[0])
        parts += [child.before, child.after]
        marked[1].touch()
    child.expect(pexpect.EOF)
    parts.append(child.before)
    child.close()
    screen = Screen(columns)
    screen.show_text("".join(parts))
    return Shown(screen, "".join(parts), child.exitstatus if child.exitstatus is not None else child.signalstatus)
