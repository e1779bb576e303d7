"""Durable writes at an offset, each complete or absent as far as the caller can tell. Standard library alone."""

import ctypes
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tdbg.core import run_files

KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
PIECES = min(os.sysconf("SC_IOV_MAX"), 1024) if os.sysconf_names.get("SC_IOV_MAX") else 16


def view_bytes(data: Any) -> memoryview:
    """The bytes of anything that lies in memory in one piece, not copied. Raises ValueError or TypeError for others."""
    found = memoryview(data)
    if not found.c_contiguous:
        raise ValueError("its memory is not contiguous")
    if found.itemsize == 1 and found.ndim == 1:
        return found
    if not found.nbytes:
        return memoryview(b"")
    try:
        return found.cast("B")
    except (TypeError, ValueError):  # a format that has no cast (ctypes' own): copied after all
        return memoryview(found.tobytes())


def write_at(fd: int, pieces: Sequence[memoryview], offset: int) -> int:
    """Write the pieces one behind the other from ``offset``; returns where they end.

    Goes on after a short write. Raises OSError; then any part of the bytes may have been written.
    """
    for first in range(0, len(pieces), PIECES):
        some = pieces[first : first + PIECES]
        wanted = sum(map(len, some))
        done = _write_vectored(fd, some, offset) if wanted else 0
        if done < wanted:
            _write_remaining(fd, some, done, offset)
        offset += wanted
    return offset


def _write_remaining(fd: int, pieces: Sequence[memoryview], done: int, offset: int) -> None:
    """The rest of pieces of which ``done`` bytes are written."""
    for piece in pieces:
        size = len(piece)
        while done < size:
            count = _write_vectored(fd, [piece[done:]], offset + done)
            if not count:
                raise OSError(errno.EIO, "the disk accepts no more bytes and reports no error")
            done += count
        done -= size
        offset += size


def _write_vectored(fd: int, pieces: Sequence[memoryview], offset: int) -> int:
    if len(pieces) == 1:
        return os.pwrite(fd, pieces[0], offset)
    if hasattr(os, "pwritev"):
        return os.pwritev(fd, pieces, offset)
    os.lseek(fd, offset, os.SEEK_SET)
    return os.writev(fd, pieces)


def _load_fallocate() -> Any:
    found = getattr(ctypes.CDLL(None), "fallocate64", None) if sys.platform == "linux" else None
    if found is not None:
        found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return found


_allocate = _load_fallocate()


def reserve_blocks(fd: int, offset: int, length: int) -> bool:
    """Have the blocks of a part of a file given out at once, its size as it is; False where that cannot be.

    A write that has to ask for blocks page by page may take five times as long (measured on ext4). Blocks behind the
    end go back with the next truncate. Never writes zeros in their stead, as ``posix_fallocate`` does.
    """
    return _allocate is not None and _allocate(fd, KEEP_SIZE, offset, length) == 0


def publish_file(ready: Path, path: Path) -> None:
    """Let a whole file appear under its name; FileExistsError if there is one, and both stay. Raises OSError."""
    try:
        run_files.link_file(ready, path)
        run_files.remove_file(ready)
    except FileExistsError:
        raise
    except OSError:  # no hard links there
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        run_files.rename_file(ready, path)


def is_ours(fd: int, file: tuple[int, int]) -> bool:
    """False if the program closed the file behind our back: its number may be a file of the program's by now.

    Cost: about 1 us.
    """
    try:
        return fd >= 0 and identify_file(fd) == file
    except OSError:
        return False


def check_ours(fd: int, file: tuple[int, int]) -> None:
    """OSError if the number is another file's by now, or none: it must not be written to."""
    if not is_ours(fd, file):
        raise OSError(errno.EBADF, "the program closed a file that tdbg is writing captured data to")


def identify_file(fd: int) -> tuple[int, int]:
    """Which file a descriptor is; OSError if it is none any more."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def sync(fd: int) -> None:
    """Data, and the length of the file, on the disk."""
    getattr(os, "fdatasync", os.fsync)(fd)


class OwnFile:
    """A file that is being written, for as long as its descriptor is still that file's and no other's."""

    _fd, _identity = -1, (-1, -1)  # until there is a file

    def __init__(self, path: Path) -> None:
        """Create it. Raises FileExistsError if there is one of this name."""
        self._fd = run_files.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._identity = identify_file(self._fd)
        self.path = path

    def is_ours(self) -> bool:
        """False once it is closed, whoever did that."""
        return is_ours(self._fd, self._identity)

    def check_ownership(self) -> None:
        """OSError if the program closed it behind our back: its number must not be written to."""
        check_ours(self._fd, self._identity)

    def sync(self) -> None:
        """All that is written on the disk."""
        self.check_ownership()
        sync(self._fd)

    def close(self) -> None:
        """Leave the file as it is. Does nothing the second time."""
        fd, ours = self._fd, self.is_ours()
        self._fd = -1
        if ours:
            os.close(fd)

    def __del__(self) -> None:
        """A writer that was dropped without `close` leaves its files as a crash would, and no descriptor open."""
        OwnFile.close(self)


def sync_folder(folder: Path) -> None:
    """The names in a folder on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
