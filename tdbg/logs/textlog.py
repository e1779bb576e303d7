"""tdbg's own two text logs of a rank: the header of a line, spelt here only, and their writer.

    2026-11-20T03:06:40.000299 D r0003 s00020000 [DEBUG_NULL_MASKING_INPUT] 128 targets, 17 without a label

The header has a fixed width up to the tag; continuation lines are indented. Standard library alone: a rank writes.
"""

import os
import threading
import time
from collections.abc import Callable
from weakref import WeakSet

from tdbg.core.escapes import escape_controls
from tdbg.core.guard import Guard
from tdbg.core.redaction import redact_text
from tdbg.logs.log_header import LEVELS

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from pathlib import Path

INDENT = "    "
ROTATE_BYTES = 64_000_000
KEPT_PARTS = 4
_MADE: WeakSet["RankLogs"] = WeakSet()


def format_header(t: float, level: str, rank: int, step: int) -> str:
    """``2026-11-20T03:06:40.000299 D r0003 s00020000``: local time, level letter, rank, step.

    Cost: about 2 us; the seconds' text is made once a second.
    """
    return f"{format_timestamp(t)} {level} r{rank:04d} s{step:08d}"


def format_timestamp(t: float) -> str:
    """``2026-11-20T03:06:40.000299``: local time."""
    whole = int(t)
    return f"{_format_second(whole)}.{int((t - whole) * 1e6):06d}"


_last: tuple[int, str] = (-1, "")


def _format_second(whole: int) -> str:
    global _last
    if _last[0] != whole:
        _last = whole, time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(whole))
    return _last[1]


def format_line(t: float, level: str, rank: int, step: int, tag: str, text: str) -> str:
    """One record with its newline; further lines of ``text`` are indented, so that a record stays whole.

    Names of the program's are shown and never obeyed by the terminal of whoever reads the file.
    """
    body = escape_controls(redact_text(text).replace("\r", "\\r")).replace("\n", f"\n{INDENT}")
    return f"{format_header(t, level, rank, step)} {tag} {body}\n"


class TextLog:
    """One log file of one process: opened at its first line, rotated by size, never raising.

    Rotation renames ``x.txt`` to ``x.txt.1`` and so on, and keeps the last parts. A full disk or a vanished
    folder ends the log; ``lost`` counts the lines. Cost: one ``fstat`` and one ``write`` a line, 5 us.
    """

    def __init__(self, path: Callable[[], "Path | None"], rotate_bytes: int = ROTATE_BYTES) -> None:
        self._path = path
        self._rotate_bytes = rotate_bytes
        self._fd = -1
        self._pid = 0
        self._size = 0
        self._identity = (0, 0)
        self._at: Path | None = None
        self.lost = 0

    def write(self, text: str) -> None:
        """Append one record."""
        data = text.encode("utf-8", "backslashreplace")
        try:
            if self._pid == os.getpid() and self._fd >= 0 and not self._is_ours():
                self.forget()
            if self._pid != os.getpid() or self._size + len(data) > self._rotate_bytes:
                self._open_file()
            if self._fd < 0:
                self.lost += 1
                return
            self._size += os.write(self._fd, data)
        except OSError:
            self.lost += 1

    def _is_ours(self) -> bool:
        """False if the program closed the file behind our back: its number may be a file of the program's by now."""
        try:
            found = os.fstat(self._fd)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def forget(self) -> None:
        """In a forked child: the file is the parent's."""
        self._fd, self._pid = -1, 0

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        if self._fd >= 0 and self._pid == os.getpid() and self._is_ours():
            os.close(self._fd)
        self.forget()

    def _open_file(self) -> None:
        fd, is_mine = self._fd, self._pid == os.getpid()
        self.forget()  # before it is closed: its number may be a file of the program's at once
        if is_mine and fd >= 0:
            os.close(fd)
            self._rotate_parts()
        self._pid, self._size = os.getpid(), 0
        self._at = self._path()
        if self._at is not None:
            from tdbg.core import run_files

            fd = run_files.open_append(self._at, makes=True)
            found = os.fstat(fd)
            self._size, self._identity = found.st_size, (found.st_dev, found.st_ino)
            fd, self._fd = self._fd, fd
            if fd >= 0:  # a signal's handler, which came meanwhile, wrote to one of its own
                os.close(fd)

    def _rotate_parts(self) -> None:
        from tdbg.core import run_files

        if self._at is None:
            return
        for number in range(KEPT_PARTS, 0, -1):
            older = self._at.with_name(f"{self._at.name}.{number}")
            newer = self._at if number == 1 else self._at.with_name(f"{self._at.name}.{number - 1}")
            if newer.exists():
                run_files.rename_file(newer, older)


class RankLogs:
    """The two logs of a rank: everything in ``debug_log_rankN.txt``, INFO and up in ``info_log_rankN.txt`` as well."""

    def __init__(
        self, folder: Callable[[], "Path | None"], rank: Callable[[], int], rotate_bytes: int = ROTATE_BYTES
    ) -> None:
        self._folder, self._rank = folder, rank
        self._debug = TextLog(lambda: self._build_path("debug"), rotate_bytes)
        self._info = TextLog(lambda: self._build_path("info"), rotate_bytes)
        self._lock = threading.RLock()  # a signal's handler may log too
        _MADE.add(self)

    def _build_path(self, kind: str) -> "Path | None":
        folder = self._folder()
        return None if folder is None else folder / f"{kind}_log_rank{self._rank()}.txt"

    def write_record(self, t: float, level: str, step: int, tag: str, text: str) -> None:
        """One record, into the log or logs of its level."""
        written = format_line(t, level, self._rank(), step, tag, text)
        with self._lock:
            self._debug.write(written)
            if LEVELS[level] >= LEVELS["I"]:
                self._info.write(written)

    @property
    def lost(self) -> int:
        """Records that could not be written."""
        return self._debug.lost + self._info.lost

    def close(self) -> None:
        """Close both files."""
        with self._lock:
            self._debug.close()
            self._info.close()

    def forget(self) -> None:
        """In a forked child: begin anew."""
        self._debug.forget()
        self._info.forget()


def _reset_after_fork() -> None:
    """In a forked child: another thread of the parent may have held a lock."""
    for made in _MADE:
        made._lock = threading.RLock()


os.register_at_fork(after_in_child=lambda: Guard("text log").call_guarded(_reset_after_fork))
