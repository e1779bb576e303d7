"""`--tee`: a copy of the command's output in the run directory, while the command sees what it always saw.

A stream that is a terminal stays one: the command gets a pseudo terminal of the same size, whose output
processing is off, because the real terminal does that once. Any other stream becomes a pipe. Streams that
are one and the same (a terminal, ``2>&1``) stay one, in order, and their copy is ``stdout.log``.
"""

import fcntl
import math
import os
import select
import struct
import sys
import termios
import threading
import time
from pathlib import Path

from tdbg.core import run_files
from tdbg.core.output import print_messages
from tdbg.launch.program_rows import ProgramRows

CHUNK = 65536
# How long the last words of processes that outlive the command are waited for: until silence, or at most. What the
# command itself wrote is in the pipe when it ends, and is passed on however long the reader takes.
SILENCE_S = 0.5
AT_MOST_S = 10.0


class Stream:
    """One stream of the command: read here, written to where it would have gone, and kept."""

    def __init__(self, target: int, log: Path, limit: int, rows: ProgramRows) -> None:
        self.target = target
        self._rows = rows
        self.is_terminal = os.isatty(target)
        self._log_path = log
        self._left = limit
        self._to_read = math.inf
        self._log = run_files.open_append(log)
        self.source, self.child_end = os.openpty() if self.is_terminal else os.pipe()
        if self.is_terminal:
            self._dress_like_target()

    def _dress_like_target(self) -> None:
        mode = termios.tcgetattr(self.target)
        mode[1] &= ~termios.OPOST
        termios.tcsetattr(self.child_end, termios.TCSANOW, mode)
        self.resize_terminal()

    def resize_terminal(self) -> None:
        """Give the pseudo terminal the real one's size."""
        if self.is_terminal and self.source >= 0:
            empty = struct.pack("HHHH", 0, 0, 0, 0)
            size = fcntl.ioctl(self.target, termios.TIOCGWINSZ, empty)
            fcntl.ioctl(self.source, termios.TIOCSWINSZ, size)

    def release_child_end(self) -> None:
        """The command holds it now; without ours, its end is seen."""
        os.close(self.child_end)

    def limit_to_buffered(self) -> None:
        """Copy no more than what may be on its way now: what a pipe can hold."""
        self._to_read = min(self._to_read, _get_pipe_capacity(self.source))

    def copy_available(self) -> bool:
        """Pass on what has come; False when the stream has ended, its limit is reached, or nobody listens any more."""
        try:
            data = os.read(self.source, int(min(CHUNK, self._to_read)))
        except OSError:  # how a pseudo terminal says that its last writer is gone
            data = b""
        self._to_read -= len(data)
        return bool(data) and self._write_log(data) and self._pass_on(data) and self._to_read > 0

    def _pass_on(self, data: bytes) -> bool:
        return self._rows.pass_on(data, self._write_target) if self.is_terminal else self._write_target(data)

    def _write_target(self, data: bytes) -> bool:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.target, view) :]
            except BlockingIOError:
                select.select([], [self.target], [])
            except OSError:  # the reader went away: the command is told at its next write, as without tdbg
                return False
        return True

    def _write_log(self, data: bytes) -> bool:
        if self._log < 0:
            return True
        try:
            if len(data) > self._left:
                raise OSError("the disk budget is used up")
            view = memoryview(data)
            while view:
                done = os.write(self._log, view)
                view, self._left = view[done:], self._left - done
        except OSError as error:
            self._stop_keeping(error.strerror or str(error))
        return True

    def _stop_keeping(self, why: str) -> None:
        os.close(self._log)
        self._log = -1
        print_messages(f"stopped writing {self._log_path}: {why}", "the output itself is complete; the run goes on")

    def close_descriptors(self) -> None:
        """Let go of everything but the target."""
        os.close(self.source)
        self.source = -1
        if self._log >= 0:
            os.close(self._log)
            self._log = -1


class Tee:
    """The command's stdout and stderr, passed on and kept by a thread. rows: what it writes to a terminal goes through."""

    def __init__(self, folder: Path, limit: int, rows: ProgramRows, suffix: str = "") -> None:
        self._rows = rows
        self._streams: list[Stream] = []
        self._ended_read, self._ended_write = os.pipe()
        self._late_from = math.inf  # when the time of processes that outlive the command is over
        self._thread = threading.Thread(target=self._copy_streams, name="tdbg-tee", daemon=True)
        self.stdout = self._open_stream(1, folder / f"stdout{suffix}.log", limit)
        same = self.stdout is not None and _same_file(1, 2)
        self.stderr = self.stdout if same else self._open_stream(2, folder / f"stderr{suffix}.log", limit)

    def _open_stream(self, target: int, log: Path, limit: int) -> int | None:
        if (sys.__stdout__ if target == 1 else sys.__stderr__) is None:  # tdbg was started without this stream
            return None
        stream = Stream(target, log, limit, self._rows)
        self._streams.append(stream)
        return stream.child_end

    def handle_child_start(self) -> None:
        """The child holds its ends now."""
        for stream in self._streams:
            stream.release_child_end()

    def start_thread(self) -> None:
        """Begin to copy."""
        self._thread.start()

    def handle_resize(self) -> None:
        """The terminal changed its size."""
        for stream in self._streams:
            try:
                stream.resize_terminal()
            except OSError:  # it ended in this moment
                continue

    def finish_copying(self) -> None:
        """The command has ended: copy what is still on its way, as fast as it is read, and stop."""
        self._late_from = time.monotonic() + AT_MOST_S
        os.close(self._ended_write)
        self._thread.join()

    def _copy_streams(self) -> None:
        streams = {stream.source: stream for stream in self._streams}
        self._copy_while_running(streams)
        self._copy_rest(streams)
        for stream in streams.values():
            stream.close_descriptors()

    def _copy_while_running(self, streams: dict[int, Stream]) -> None:
        ready: list[int] = []
        while streams and self._ended_read not in ready:
            ready, _, _ = select.select([*streams, self._ended_read], [], [])
            _copy_ready(streams, ready)

    def _copy_rest(self, streams: dict[int, Stream]) -> None:
        """What is still in the pipes, then what processes that outlive the command write, within their time."""
        while streams:
            is_late = time.monotonic() > self._late_from
            if is_late:
                for stream in streams.values():
                    stream.limit_to_buffered()
            ready, _, _ = select.select([*streams], [], [], 0.0 if is_late else SILENCE_S)
            if not ready:
                break
            _copy_ready(streams, ready)


def _copy_ready(streams: dict[int, Stream], ready: list[int]) -> None:
    """Pass on what has come on these streams; one that has ended is let go of."""
    for source in ready:
        if source in streams and not streams[source].copy_available():
            streams.pop(source).close_descriptors()


def _get_pipe_capacity(source: int) -> int:
    """Bytes that a pipe can hold; 16 pages on Linux, so more than usual where pages are large."""
    try:
        return fcntl.fcntl(source, fcntl.F_GETPIPE_SZ)
    except (AttributeError, OSError):  # not on Linux; a pseudo terminal, which holds less
        return CHUNK


def _same_file(one: int, other: int) -> bool:
    try:
        first, second = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (first.st_dev, first.st_ino, first.st_rdev) == (second.st_dev, second.st_ino, second.st_rdev)
