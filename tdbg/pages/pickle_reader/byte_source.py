"""Sources of bytes that are read in place (a file, a part of one, text that stands for bytes), and a reader over them.

Whoever follows a page holds offsets, not data. A source gives any range of itself and knows its size.
"""

import bisect
import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

from tdbg.core import run_files
from tdbg.core.errors import TdbgError

BLOCK_BYTES = 1 << 13  # small: behind every big block of data a page has a few hundred bytes of opcodes
TEXT_BLOCK_BYTES = 1 << 16
LINE_BYTES = 64 << 20  # of a text opcode; protocol 0 writes a whole tensor as one


class TruncatedError(Exception):
    """A stream cannot be followed any further: it ends too early, makes no sense, or asks for too much."""


class ByteSource(Protocol):
    """Bytes at offsets 0 to ``size``."""

    size: int

    def read_range(self, offset: int, count: int) -> bytes:
        """``count`` bytes from ``offset``; fewer at the end."""


class FileSource:
    """A regular file, opened anew for every read, unless it is held."""

    def __init__(self, path: Path) -> None:
        """Look at the file; TdbgError if it is none that can be read."""
        self.path = path
        self._descriptor: int | None = None
        try:
            about = path.stat()
        except OSError as error:
            raise TdbgError(f"{path}: {error.strerror}", "check its path and permissions") from None
        if not stat.S_ISREG(about.st_mode):
            raise TdbgError(f"{path}: is not a regular file", "name a page, which is a file on disk")
        self.size = about.st_size
        self._mark = (about.st_size, about.st_mtime_ns, about.st_ino)

    @contextlib.contextmanager
    def keep_open(self) -> Iterator[None]:
        """Keep the file open meanwhile: for those who read it in many small pieces."""
        self._descriptor = self._open_unchanged()
        try:
            yield
        finally:
            os.close(self._descriptor)
            self._descriptor = None

    def read_range(self, offset: int, count: int) -> bytes:
        """One pread, or several where the system gives less than it was asked for."""
        if self._descriptor is not None:
            return _read_fully(self._descriptor, offset, count)
        descriptor = self._open_unchanged()
        try:
            return _read_fully(descriptor, offset, count)
        finally:
            os.close(descriptor)

    def _open_unchanged(self) -> int:
        try:
            descriptor = run_files.open_file(self.path, os.O_RDONLY)
        except OSError as error:
            raise TdbgError(f"{self.path}: {error.strerror}", "check its path and permissions") from None
        about = os.fstat(descriptor)
        if self._mark != (about.st_size, about.st_mtime_ns, about.st_ino):
            os.close(descriptor)
            raise TdbgError(f"{self.path}: it was changed while it was being read", "read it again")
        return descriptor


def _read_fully(descriptor: int, offset: int, count: int) -> bytes:
    if offset >= 1 << 63:  # a file may claim that; the system takes no such number
        return b""
    try:
        data = os.pread(descriptor, count, offset)
        while len(data) < count and (more := os.pread(descriptor, count - len(data), offset + len(data))):
            data += more
    except OSError as error:
        raise TdbgError(f"the disk gave an error: {error.strerror}", "copy the file elsewhere and try again") from None
    return data


class SpoolSource:
    """A temporary file without a name, which goes when this object does."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self.size = size

    def read_range(self, offset: int, count: int) -> bytes:
        return _read_fully(self._file.fileno(), offset, count)


class MemorySource:
    """Bytes that are at hand."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read_range(self, offset: int, count: int) -> bytes:
        return self._data[offset : offset + count]


class WindowSource:
    """A part of another source."""

    def __init__(self, source: ByteSource, offset: int, size: int) -> None:
        self._source, self._offset, self.size = source, offset, size

    def read_range(self, offset: int, count: int) -> bytes:
        return self._source.read_range(self._offset + offset, max(0, min(count, self.size - offset)))


class Latin1Source:
    """Bytes that were written as text, one character each, in UTF-8 (how protocols 1 and 2 write bytes).

    Goes through the text once, block by block, and remembers where each begins; ValueError if it is no such text.
    """

    def __init__(self, text: ByteSource) -> None:
        self._text = text
        self._encoded: list[int] = [0]
        self._begins: list[int] = [0]
        while self._encoded[-1] < text.size:
            data, end = self._decode_block(self._encoded[-1])
            self._encoded.append(end)
            self._begins.append(self._begins[-1] + len(data))
        self.size = self._begins[-1]

    def _decode_block(self, at: int) -> tuple[bytes, int]:
        raw = self._text.read_range(at, TEXT_BLOCK_BYTES)
        if not raw:
            raise TruncatedError("it ends too early")
        if len(raw) > 1 and raw[-1] >= 0xC0 and at + len(raw) < self._text.size:
            raw = raw[:-1]  # the first half of a character
        return raw.decode("utf-8").encode("latin-1"), at + len(raw)

    def read_range(self, offset: int, count: int) -> bytes:
        end = min(offset + count, self.size)
        found = bytearray()
        at = max(0, bisect.bisect_right(self._begins, offset) - 1)
        while at < len(self._begins) - 1 and self._begins[at] < end:
            data, _ = self._decode_block(self._encoded[at])
            found += data[max(0, offset - self._begins[at]) : end - self._begins[at]]
            at += 1
        return bytes(found)


class ByteReader:
    """Runs over a source through a buffer. What it is asked for and cannot give raises TruncatedError."""

    def __init__(self, source: ByteSource, at: int = 0, block_bytes: int = BLOCK_BYTES) -> None:
        self.source = source
        self._block_bytes = block_bytes
        self._buffer = b""
        self._base = at  # offset of the buffer's first byte
        self._at = 0

    @property
    def position(self) -> int:
        """Offset of the byte that comes next."""
        return self._base + self._at

    @property
    def bytes_left(self) -> int:
        """Bytes from here to the end."""
        return self.source.size - self.position

    def read_byte(self) -> int:
        """The next byte."""
        try:
            found = self._buffer[self._at]
        except IndexError:
            self._fill_buffer(1)
            found = self._buffer[0]
        self._at += 1
        return found

    def take_bytes(self, count: int) -> bytes:
        """The next ``count`` bytes; for what is small."""
        end = self._at + count
        if end > len(self._buffer):
            self._fill_buffer(count)
            end = count
            if end > len(self._buffer):
                raise TruncatedError("it ends too early")
        found = self._buffer[self._at : end]
        self._at = end
        return found

    def read_uint(self, count: int) -> int:
        """An unsigned number of ``count`` bytes, little-endian."""
        return int.from_bytes(self.take_bytes(count), "little")

    def skip(self, count: int) -> int:
        """Go over ``count`` bytes without reading them; returns the offset of the first."""
        begin = self.position
        if count < 0 or count > self.source.size - begin:
            raise TruncatedError(f"{count} bytes are expected, but only {self.source.size - begin} are left")
        self._at += count
        if self._at > len(self._buffer):
            self._buffer, self._base, self._at = b"", begin + count, 0
        return begin

    def read_line(self, limit: int = LINE_BYTES) -> bytes:
        """Up to the next line feed, which is not part of it."""
        while (end := self._buffer.find(b"\n", self._at)) < 0:
            held = len(self._buffer) - self._at
            if held >= limit:
                raise TruncatedError(f"a line is longer than {limit} bytes")
            self._fill_buffer(min(2 * held, limit))
            if len(self._buffer) == held:
                raise TruncatedError("it ends too early")
        if end - self._at > limit:
            raise TruncatedError(f"a line is longer than {limit} bytes")
        found = self._buffer[self._at : end]
        self._at = end + 1
        return found

    def _fill_buffer(self, count: int) -> None:
        """Have the next ``count`` bytes in the buffer, or what there is of them; TruncatedError if there is nothing."""
        at = self.position
        data = self.source.read_range(at, max(count, self._block_bytes))
        if not data:
            raise TruncatedError("it ends too early")
        self._buffer, self._base, self._at = data, at, 0
