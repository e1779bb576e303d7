"""The journal: what was captured, record by record, each with a checksum. Standard library alone.

A frame is the length of its body and the body's CRC-32 (zlib's), four bytes each, little-endian, then the body: one
JSON object in UTF-8. What stands behind the first frame that is not whole does not count.
"""

import os
import struct
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tdbg.core import run_files
from tdbg.pages.format import disk
from tdbg.pages.format.file_format import DATAPOINT, FRAME_LIMIT, decode_json, encode_json

HEAD = struct.Struct("<II")
BLOCK_BYTES = 4 << 20

Read = Callable[[int, int], bytes]  # offset, length -> that many bytes, fewer at the end


def encode_frame(record: Mapping[str, object]) -> bytes:
    """The frame of one record. Raises TypeError or ValueError for what JSON cannot hold."""
    return frame_body(encode_json(record))


def frame_body(body: bytes) -> bytes:
    """The frame of a record that is JSON already. Raises ValueError for one above the limit."""
    if len(body) > FRAME_LIMIT:
        raise ValueError(f"a record of {len(body):,} bytes is too long")
    return HEAD.pack(len(body), zlib.crc32(body)) + body


def iter_records(
    source: bytes | bytearray | memoryview | str | os.PathLike[str],
) -> Iterator[tuple[int, dict[str, object]]]:
    """(offset, record) of each good frame, in order, up to the first bad one; bodies that are no objects are left out.

    source: the bytes, or the path of a journal. Raises OSError where it cannot be read.
    """
    data = run_files.read_bytes(source) if isinstance(source, str | os.PathLike) else bytes(source)
    frames = Frames(lambda offset, length: data[offset : offset + length], len(data))
    for index in range(len(frames)):
        try:
            yield frames.starts[index], frames.read_record(index)
        except ValueError:
            continue


class Frames:
    """The good frames of one journal. Where they lie is known at once, their bodies are read when asked for.

    end: the offset behind the last good frame. left: the bytes behind it that do not count. others: the indices of
    those that do not begin as a datapoint does.
    Memory: 16 bytes a frame and a block of 4 MB, whatever the journal holds. Cost: 0.5 us a frame and the checksum.
    """

    def __init__(self, read: Read, size: int) -> None:
        self.starts = array("Q")
        self.lengths = array("Q")
        self.others: list[int] = []
        self._read = read
        self._block, self._at = b"", 0
        self.end = self._scan_frames(size)
        self.left = max(size - self.end, 0)  # a writer at work may have added to it meanwhile

    def __len__(self) -> int:
        return len(self.starts)

    def read_body(self, index: int) -> bytes:
        """The JSON text of one frame. Raises ValueError if the file does not hold it any more."""
        start, length = self.starts[index] + HEAD.size, self.lengths[index]
        if not self._at <= start <= start + length <= self._at + len(self._block):
            self._load_block(self.starts[index], HEAD.size + length)
        begin = start - self._at
        found = self._block[begin : begin + length]
        if len(found) != length:
            raise ValueError("the journal has become shorter")
        return found

    def read_record(self, index: int) -> dict[str, Any]:
        """One frame as an object. Raises ValueError if it is none."""
        found = decode_json(self.read_body(index))
        if not isinstance(found, dict):
            raise ValueError("a record is not a JSON object")
        return found

    def _load_block(self, offset: int, wanted: int) -> bytes:
        self._block, self._at = self._read(offset, max(wanted, BLOCK_BYTES)), offset
        return self._block

    def _scan_frames(self, size: int) -> int:
        at = 0
        while True:
            here = self._scan_block(self._load_block(at, BLOCK_BYTES), at)
            at += here
            if here:
                continue
            if len(self._block) < HEAD.size:
                return at
            length = HEAD.unpack_from(self._block)[0]
            larger = HEAD.size + length
            if not len(self._block) < larger <= min(HEAD.size + FRAME_LIMIT, size - at):
                return at
            here = self._scan_block(self._load_block(at, larger), at)
            at += here
            if not here:
                return at

    def _scan_block(self, block: bytes, at: int) -> int:
        """Note the good frames of a block; returns where the first one starts that is bad, or goes on behind it."""
        starts, lengths, unpack, size = self.starts, self.lengths, HEAD.unpack_from, len(block)
        data, here, checksum = memoryview(block), 0, zlib.crc32
        while here + 8 <= size:
            length, check = unpack(block, here)
            stop = here + 8 + length
            if stop > size or not 0 < length <= FRAME_LIMIT or checksum(data[here + 8 : stop]) != check:
                break
            if not block.startswith(DATAPOINT, here + 8):
                self.others.append(len(starts))
            starts.append(at + here)
            lengths.append(length)
            here = stop
        return here


class JournalFile(disk.OwnFile):
    """A journal that is being written: frames are added one behind the other, each whole or not at all."""

    def __init__(self, path: Path) -> None:
        """Create it. Raises FileExistsError if there is one of this name."""
        super().__init__(path)
        self.end = 0
        self._torn = False

    def append_frames(self, frames: bytes, *, durable: bool = False) -> None:
        """Raises OSError; then none of the frames counts, and the next ones take their place."""
        self.check_ownership()
        if self._torn:
            os.ftruncate(self._fd, self.end)  # half a frame of an earlier try, which nothing may follow
        self._torn = True
        disk.write_at(self._fd, [memoryview(frames)], self.end)
        if durable:
            disk.sync(self._fd)
        self.end += len(frames)
        self._torn = False

    def close(self) -> None:
        """Take off what a failed write left behind, and close. Does nothing the second time."""
        try:
            if self._torn and self.is_ours():
                os.ftruncate(self._fd, self.end)
        finally:
            super().close()
