"""The way from DataLoader workers to the process that started them."""

import json
import os
import select
import stat

LIMIT = min(getattr(select, "PIPE_BUF", 512), 4096)  # bytes that a pipe takes as one piece or not at all
READ = 65536


class WorkerPipe:
    """Small messages through a pipe made before the fork: no file, no thread, no lock, no pickle.

    A worker writes nothing to disk and waits for nothing: a message that does not fit is lost. Neither end
    outlives an exec. What arrives is plain data in JSON.
    """

    def __init__(self) -> None:
        self._read = self._write = -1
        self._rest = b""

    @property
    def is_open(self) -> bool:
        """True if there is an end to write to."""
        return self._write >= 0

    def open_pipe(self) -> None:
        """Make the pipe, once; a forked child that has workers of its own makes its own."""
        if self._read < 0:
            self.close()
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)

    @property
    def address(self) -> str:
        """By which a worker that was not forked finds the pipe: process, descriptor, and what tells it from a later one."""
        return f"{os.getpid()}:{self._write}:{os.fstat(self._write).st_ino}"

    def open_address(self, address: str) -> None:
        """In a spawned worker: open the writing end of the process that started it, where the system lets it (Linux)."""
        try:
            pid, end, inode = map(int, address.split(":"))
            found = os.open(f"/proc/{pid}/fd/{end}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return
        status = os.fstat(found)
        if stat.S_ISFIFO(status.st_mode) and status.st_ino == inode:
            self.close()
            self._write = found
        else:  # the descriptor is another one's by now
            os.close(found)

    def forked(self) -> None:
        """In a child: only its own writing end stays, so that it learns of the parent's end."""
        if self._read >= 0:
            os.close(self._read)
        self._read, self._rest = -1, b""

    def close(self) -> None:
        """Give both ends back."""
        for end in (self._read, self._write):
            if end >= 0:
                os.close(end)
        self._read = self._write = -1

    def send_message(self, message: dict[str, object]) -> bool:
        """Write one message; False if nobody reads any more. One that is too long or finds no room is lost."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if not self.is_open or len(line) > LIMIT:
            return self.is_open
        try:
            os.write(self._write, line)
        except BlockingIOError:
            pass
        except OSError:  # the parent has gone, or no longer wants to know
            return False
        return True

    def receive_messages(self) -> list[dict[str, object]]:
        """Every message that has arrived. Cost: one system call where there is none."""
        if self._read < 0:
            return []
        try:
            found = os.read(self._read, READ)
        except OSError:  # nothing there
            return []
        *lines, self._rest = (self._rest + found).split(b"\n")
        return [message for line in lines if (message := _parse_message(line)) is not None]


def _parse_message(line: bytes) -> dict[str, object] | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
