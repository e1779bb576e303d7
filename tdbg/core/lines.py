"""Files of lines that one process appends to: every line whole, opened lazily, kept apart after a fork.

Standard library alone: a rank writes with it.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from threading import RLock

from tdbg.core import run_files

AGAIN = (errno.ENOSPC, errno.EDQUOT, errno.EINTR, errno.EAGAIN)  # what may pass: the next line is tried again


class LineWriter:
    """Appends lines to one file; opens it at the first line, and never raises.

    place: called at the first line, and after a fork; returns the file.
    budget_bytes: what the file may hold; 0 is any amount.
    A full disk, a vanished folder or a spent budget stops the writing, is counted in ``dropped`` and said once through
    ``on_trouble``. A line that was torn, also by a kill of who wrote before, is never joined by the next one.
    Threads take turns. Cost: one ``write`` call a line, about 10 us.
    """

    what = "lines"  # what a person calls them

    def __init__(self, place: Callable[[], Path], budget_bytes: int, on_trouble: Callable[[str], None]) -> None:
        self._place = place
        self._budget_bytes = budget_bytes
        self._on_trouble = on_trouble
        self._fd = -1
        self._pid = 0
        self._torn = False
        self._identity = (0, 0)
        self.path: Path | None = None
        self.written_bytes = 0
        self.dropped = 0
        self._reported_codes: set[str] = set()
        self._unsaid: list[str] = []
        self._turn, self._turn_pid = RLock(), os.getpid()  # a signal handler may write too

    def _get_lock(self) -> "RLock":
        """A new one in a forked child: the parent may have held it at the fork."""
        if self._turn_pid != os.getpid():
            self._turn, self._turn_pid = RLock(), os.getpid()
        return self._turn

    def write_line(self, line: bytes) -> bool:
        """Write one line, its end included; False if it could not be written."""
        with self._get_lock():
            try:
                done = self._write_bytes(line)
            except OSError as error:
                done = False
                self.dropped += 1
                self._queue_trouble("disk", f"cannot write {self.what}: {error.strerror or error}; training goes on")
                if error.errno not in AGAIN:
                    self.close()
            unsaid, self._unsaid = self._unsaid, []
        for text in unsaid:  # whoever is told may wait for something of its own: not within our turn
            self._on_trouble(text)
        return done

    def _queue_trouble(self, code: str, text: str) -> None:
        if code not in self._reported_codes:
            self._reported_codes.add(code)
            self._unsaid.append(text)

    def _write_bytes(self, line: bytes) -> bool:
        if self._pid != os.getpid() or not self._is_ours():
            self._open_file()
        if self._fd < 0:
            self.dropped += 1
            return False
        if self._budget_bytes and self.written_bytes + len(line) > self._budget_bytes:
            self.dropped += 1
            text = f"the disk budget (--disk-budget) is used up: no more {self.what}; training goes on"
            self._queue_trouble("budget", text)
            return False
        whole = b"\n" + line if self._torn else line
        done = os.write(self._fd, whole)
        self.written_bytes += done
        self._torn = done < len(whole)  # a full disk took a part: the next line must not join it
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return True

    def _is_ours(self) -> bool:
        """False if the program closed our file behind our back: its number may be a file of the program's by now.

        Cost: about 1.3 us, one fstat.
        """
        if self._fd < 0:
            return True
        try:
            found = os.fstat(self._fd)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def _open_file(self) -> None:
        self._fd = -1
        try:
            path = self._place()
            self.path = path
            fd = run_files.open_append(path, makes=True)
            found = os.fstat(fd)
            self._fd, self._identity = fd, (found.st_dev, found.st_ino)
            if found.st_size:
                self.written_bytes = found.st_size
                self._torn = not _ends_with_newline(path)
        finally:
            self._pid = os.getpid()  # last: until then a signal handler's line opens the file itself

    def reset_after_fork(self) -> None:
        """In a forked child: the file belongs to the parent, and so may the turn."""
        self._turn, self._turn_pid = RLock(), os.getpid()
        if self._fd >= 0 and self._is_ours():
            os.close(self._fd)
        self._fd, self._pid, self.path = -1, 0, None
        self.written_bytes = self.dropped = 0
        self._reported_codes.clear()

    def close(self) -> None:
        """Close the file; later lines count as dropped."""
        with self._get_lock():
            if self._fd >= 0 and self._is_ours():
                os.close(self._fd)
            self._fd, self._pid = -1, os.getpid()


def _ends_with_newline(path: Path) -> bool:
    """False if the last line of a file has no end."""
    try:
        with run_files.open_read(path) as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except OSError:  # a pipe, a file that may not be read: an empty line more does no harm
        return False
