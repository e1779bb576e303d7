"""Decompress a joblib page into a temporary file, block by block, since a page is read at many places.

Few pages are packed, so that what unpacks them is imported when there is one.
Bounded: memory by the blocks, the file by what the packed one can honestly hold. What is broken is read up to there.
"""

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

from tdbg.core.errors import TdbgError
from tdbg.pages.pickle_reader.byte_source import ByteSource, SpoolSource

BLOCK_BYTES = 1 << 20
RATIO, LEAST_BYTES = 200, 256 << 20  # activations pack 2 to 20 times; more than 200 is a trap or all zeros
DISK_SHARE = 2  # at most half of what the disk has left
MEMORY_BYTES = 256 << 20  # of lzma's dictionary
UNREAD = {b"\x04\x22\x4d\x18": "lz4", b"\x28\xb5\x2f\xfd": "zstd", b"ZF": "joblib's format before 0.10"}


class _Unpacker(Protocol):
    """What bz2 and lzma give; zlib is made to look alike."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Zlib:
    """gzip and zlib alike."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=47)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """At most so many bytes; data that were not needed for them are kept."""
        found = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = not self._inner.unconsumed_tail and len(found) < max_length
        return found


def _create_lzma() -> _Unpacker:
    import lzma

    return lzma.LZMADecompressor(memlimit=MEMORY_BYTES)


def _create_bz2() -> _Unpacker:
    import bz2

    return bz2.BZ2Decompressor()


KINDS: dict[bytes, Callable[[], _Unpacker]] = {
    b"\x78": _Zlib,
    b"\x1f\x8b": _Zlib,
    b"BZh": _create_bz2,
    b"\xfd7zXZ": _create_lzma,
    b"\x5d\x00": _create_lzma,
}


def decompress_page(source: ByteSource, problems: list[str]) -> ByteSource:
    """The page itself: ``source`` if it is not packed, else a temporary file. TdbgError if nothing here unpacks it."""
    start = source.read_range(0, 8)
    for magic, name in UNREAD.items():
        if start.startswith(magic):
            raise TdbgError(f"it is compressed with {name}, which is not supported", "decompress it first")
    make = next((make for magic, make in KINDS.items() if start.startswith(magic)), None)
    return _spool_decompressed(source, make, problems) if make else source


def _spool_decompressed(source: ByteSource, make: Callable[[], _Unpacker], problems: list[str]) -> SpoolSource:
    import lzma
    import shutil
    import tempfile

    file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the Spool
    limit = max(LEAST_BYTES, RATIO * source.size)
    limit = min(limit, shutil.disk_usage(tempfile.gettempdir()).free // DISK_SHARE)
    written = 0
    try:
        for data in _iter_decompressed(source, make):
            if written + len(data) > limit:
                problems.append(f"it decompresses to more than {limit} bytes; the rest is left out")
                break
            written += file.write(data)
        file.flush()
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
        problems.append(f"its compressed data is corrupt: {error}")
    return SpoolSource(file, written)


def _iter_decompressed(source: ByteSource, make: Callable[[], _Unpacker]) -> Iterator[bytes]:
    """The unpacked data, of one stream behind the other. EOFError if the last of them is cut off."""
    unpacker, at, data = make(), 0, b""
    while True:
        if unpacker.eof and unpacker.unused_data:
            data, unpacker = unpacker.unused_data, make()
        elif unpacker.eof or unpacker.needs_input:
            data = source.read_range(at, BLOCK_BYTES)
            at += len(data)
            if not data and unpacker.eof:
                return
            if not data:
                raise EOFError("it ends too early")
            unpacker = make() if unpacker.eof else unpacker
        else:
            data = b""
        yield unpacker.decompress(data, BLOCK_BYTES)
