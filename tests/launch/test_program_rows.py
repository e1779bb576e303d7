"""What tdbg knows of the cursor from the bytes of a program, and what it writes for it."""

import contextlib
import io
import os
import pty
import sys
import termios
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from screens import Screen

from tdbg.core import output
from tdbg.launch import program_rows
from tdbg.launch.program_rows import ProgramRows


class Shared:
    """A terminal that a program and tdbg write to."""

    def __init__(self, *, passes_all: bool = True) -> None:
        self.shown = io.StringIO()
        self.rows = ProgramRows(passes_all=passes_all)

    def write_program(self, *pieces: str) -> None:
        """The program writes; without --tee tdbg does not see it."""
        for piece in pieces:
            data = piece.encode()
            self.rows.pass_on(data, self._write_shown) if self.rows.passes_all else self._write_shown(data)

    def _write_shown(self, data: bytes) -> bool:
        self.shown.write(data.decode())
        return True

    def call_tdbg(self, function: Any, *args: Any) -> None:
        """tdbg does something."""
        with contextlib.redirect_stderr(self.shown):
            function(*args)

    @property
    def screen_rows(self) -> list[str]:
        """The rows of it."""
        screen = Screen(80)
        screen.show_text(self.shown.getvalue().replace("\n", "\r\n"))
        return screen.rows


@pytest.fixture(autouse=True)
def terminal_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_rows.terminal, "is_terminal", lambda stream: True)
    monkeypatch.setattr(program_rows.terminal, "can_redraw", lambda: True)
    monkeypatch.setattr(program_rows, "is_stdout_piped", lambda: False)


FREE = [
    ("a line\n",),
    ("\x1b[31mred\x1b[0m\n",),
    ("begun,", " ended\n"),
    ("\x1b[3", "1mred\n"),
    ("dos\r\n",),
    ("dos\r", "\n"),
]
TAKEN = [
    ("begun,",),
    ("a\n", "b"),
    ("45%\r",),
    ("\r45%", "\n"),
    ("a\x08\n",),
    ("a\x1b[2K\n",),
    ("a\x1b[", "1A\n"),
    ("\x1b", "7\n"),
]


@pytest.mark.parametrize("pieces", FREE)
def test_a_live_line_stands_where_a_row_has_ended(pieces: tuple[str, ...]) -> None:
    shared = Shared()
    shared.write_program(*pieces)
    before = shared.screen_rows
    shared.call_tdbg(shared.rows.redraw_live_line, "tdbg: step 1")
    assert shared.screen_rows == [*before, "tdbg: step 1"]
    shared.call_tdbg(shared.rows.redraw_live_line, "tdbg: step 22")
    assert shared.screen_rows == [*before, "tdbg: step 22"]
    shared.call_tdbg(shared.write_program, "more\n")
    assert shared.screen_rows == [*before, "more"], "it is gone before the program writes"


@pytest.mark.parametrize("pieces", TAKEN)
def test_there_is_none_in_a_row_or_where_rows_are_redrawn(pieces: tuple[str, ...]) -> None:
    shared = Shared()
    shared.write_program(*pieces)
    before = shared.shown.getvalue()
    shared.call_tdbg(shared.rows.redraw_live_line, "tdbg: step 1")
    assert shared.shown.getvalue() == before


def test_it_comes_back_after_the_last_redraw(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared()
    shared.write_program("\r45%", "\n")
    later = time.monotonic() + program_rows.REDRAW_REST_S + 1
    monkeypatch.setattr(program_rows.time, "monotonic", lambda: later)
    shared.call_tdbg(shared.rows.redraw_live_line, "tdbg: step 1")
    assert shared.screen_rows == ["45%", "tdbg: step 1"]


def test_there_is_none_without_tee() -> None:
    shared = Shared(passes_all=False)
    shared.write_program("a line\n")
    shared.call_tdbg(shared.rows.redraw_live_line, "tdbg: step 1")
    assert shared.screen_rows == ["a line"]


@pytest.mark.parametrize("tee", [True, False])
@pytest.mark.parametrize(
    "before", ["", "x", "x" * 79, "x" * 80, "x" * 81, "ended\n", "\r 45%|###", "\x1b[0m", "long " * 40]
)
def test_lines_of_tdbg_begin_a_row_wherever_the_cursor_is(before: str, tee: bool) -> None:
    shared = Shared(passes_all=tee)
    shared.write_program(before)
    theirs = shared.screen_rows
    shared.call_tdbg(shared.rows.write, "tdbg: one\ntdbg: two\n")
    shared.write_program("go on\n")
    assert shared.screen_rows == [*theirs, "tdbg: one", "tdbg: two", "go on"]


def test_a_display_of_several_rows_finds_room_above(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich goes up by the rows it drew, and erases each."""
    frame = "\r\x1b[2K\x1b[1A\x1b[2Kone {0}\ntwo {0}"
    shared = Shared()
    shared.write_program("one 0\ntwo 0", frame.format(1))
    shared.call_tdbg(shared.rows.write, "tdbg: a finding\ntdbg: its evidence\n")
    shared.write_program(frame.format(2))
    assert shared.screen_rows == ["one 1", "two 1", "tdbg: a finding", "tdbg: its evidence", "one 2", "two 2"]


UNFINISHED = [b"\x1b", b"\x1b[", b"\x1b[3", b"\x1b[?25", b"\x1b]0;title", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x99"]


@pytest.mark.parametrize("begun", UNFINISHED)
def test_a_line_waits_for_the_rest_of_a_sequence(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    rows = ProgramRows(passes_all=True)
    monkeypatch.setattr(rows, "_write_terminal", sent.append)
    rows.pass_on(b"before " + begun, bool)
    rows.write("tdbg: one\n")
    assert sent == []
    rows.pass_on({b"\xc3": b"\xa9", b"\xe2\x82": b"\xac", b"\xf0\x9f\x99": b"\x82"}.get(begun, b"m\x07"), bool)
    rows.flush()
    assert [text[-10:] for text in sent] == ["tdbg: one\n"]


def test_a_program_that_ends_within_a_sequence_holds_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    rows = ProgramRows(passes_all=True)
    monkeypatch.setattr(rows, "_write_terminal", sent.append)
    rows.pass_on(b"\x1b[3", bool)
    rows.write("tdbg: one\n")
    rows.finish_output()
    assert len(sent) == 1


def test_a_program_that_goes_to_the_top_gets_no_more_room_than_a_screen() -> None:
    shared = Shared()
    shared.write_program("\x1b[99999999A")
    shared.call_tdbg(shared.rows.write, "tdbg: one\n")
    assert shared.shown.getvalue().count("\n") <= 24
    shared.write_program(f"\x1b[{'1' * 5000}A", "goes on")
    assert shared.shown.getvalue().endswith("goes on")


def test_there_is_no_live_line_where_another_program_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """``tdbg run --tee ... | cat``: what cat writes does not come by here."""
    monkeypatch.setattr(program_rows, "is_stdout_piped", lambda: True)
    shared = Shared()
    shared.call_tdbg(shared.rows.redraw_live_line, "tdbg: step 1")
    assert shared.shown.getvalue() == ""
    shared.write_program("begun,")
    shared.call_tdbg(shared.rows.write, "tdbg: one\n")
    assert shared.screen_rows == ["begun,", "tdbg: one"]


@pytest.fixture
def tty() -> Iterator[int]:
    """A terminal whose mode can be set."""
    leader, follower = pty.openpty()
    yield follower
    os.close(leader)
    os.close(follower)


def set_editing(tty: int, *, on: bool) -> None:
    mode = termios.tcgetattr(tty)
    mode[3] = mode[3] & ~(termios.ICANON | termios.ECHO) if on else mode[3] | termios.ICANON | termios.ECHO
    termios.tcsetattr(tty, termios.TCSANOW, mode)


def test_what_is_said_while_a_line_is_edited_waits(tty: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    with contextlib.redirect_stderr(open(tty, "w", encoding="utf-8", closefd=False)):
        rows = ProgramRows(passes_all=True)
        monkeypatch.setattr(rows, "_write_terminal", sent.append)
        set_editing(tty, on=True)
        rows.write("tdbg: one\n")
        rows.redraw_live_line("tdbg: step 1")
        rows.flush()
        assert sent == []
        set_editing(tty, on=False)
        rows.flush()
        assert sent == ["tdbg: one\n"]
        set_editing(tty, on=True)
        rows.write("tdbg: two\n")
        rows.finish_output()
        assert sent == ["tdbg: one\n", "tdbg: two\n"], "the program has left the terminal so"


def test_a_run_that_began_in_the_background_speaks_in_the_foreground(tty: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it begins, the shell reads a line: ``tdbg run ... &``, and ``fg`` later."""
    foreground = [os.getpgrp() + 1]
    monkeypatch.setattr(program_rows.os, "tcgetpgrp", lambda handle: foreground[0])
    sent: list[str] = []
    with contextlib.redirect_stderr(open(tty, "w", encoding="utf-8", closefd=False)):
        set_editing(tty, on=True)
        rows = ProgramRows(passes_all=True)
        monkeypatch.setattr(rows, "_write_terminal", sent.append)
        rows.write("tdbg: one\n")
        assert sent == [] and rows.is_terminal_read(), "not into the line that the shell reads"
        set_editing(tty, on=False)
        foreground[0] = os.getpgrp()
        rows.flush()
        assert sent == ["tdbg: one\n"] and not rows.is_terminal_read()


def test_bytes_and_live_line_never_cross() -> None:
    """Two threads: whatever their order, each row is one's alone."""
    shared = Shared()

    def redraw_repeatedly() -> None:
        for number in range(400):
            shared.rows.redraw_live_line(f"tdbg: step {number}")

    thread = threading.Thread(target=redraw_repeatedly)
    with contextlib.redirect_stderr(shared.shown):
        thread.start()
        for number in range(400):
            shared.write_program(f"program {number}", " goes on\n")
        thread.join()
        shared.rows.erase_live_line()
    assert shared.screen_rows == [f"program {number} goes on" for number in range(400)]


def test_rows_are_those_of_the_program_for_as_long_as_it_runs() -> None:
    before = output.terminal_rows()
    rows = ProgramRows(passes_all=False)
    with output.shared_terminal(rows):
        assert output.terminal_rows() is rows
    assert output.terminal_rows() is before and sys.stderr is not None
