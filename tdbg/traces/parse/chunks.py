"""The bytes of a trace, block by block, compressed or not. A truncated file yields what it holds."""

import os
import zlib
from collections.abc import Iterator
from typing import Any

from tdbg.core.errors import TdbgError
from tdbg.core.files import open_regular

GZIP = b"\x1f\x8b"
READ = 1 << 18  # bytes that are asked of the disk at once
STEP = 1 << 10  # bytes that are unpacked at once near a damaged place
FOREVER = 1 << 62
ANY_HEADER = 31  # zlib's word for: gzip, with its header


class Blocks:
    """The bytes of one file, unpacked where it is gzip (whatever its name says).

    size: bytes of a block, about. Memory: one block and what packing needs, whatever the size of the file.
    ``torn`` says, after the last block, why the file ended early; ``read`` counts bytes of the file itself.
    Raises TdbgError for a file that cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], size: int = 1 << 20) -> None:
        self.path = os.fspath(path)
        self.size = size
        self.read = 0
        self.torn = ""
        self.is_packed = False  # known from the first block on
        self._left = FOREVER  # bytes that are unpacked in large steps

    def __iter__(self) -> Iterator[bytes]:
        """Blocks of ``size`` bytes, the last one shorter; none for an empty file."""
        parts: list[bytes] = []
        held = 0
        for part in self._iter_chunks():
            parts.append(part)
            held += len(part)
            if held >= self.size:
                yield b"".join(parts)
                parts, held = [], 0
        if held:
            yield b"".join(parts)

    def _iter_chunks(self) -> Iterator[bytes]:
        try:
            with open_regular(self.path) as file:
                self.is_packed = file.read(len(GZIP)) == GZIP
                file.seek(0)
                yield from self._iter_unpacked(file) if self.is_packed else self._iter_plain(file)
        except OSError as error:
            raise TdbgError(f"{self.path}: {error.strerror or error}", "name a trace that can be read") from None

    def _iter_plain(self, file: Any) -> Iterator[bytes]:
        while data := file.read(min(READ, self.size)):
            self.read += len(data)
            yield data

    def _iter_unpacked(self, file: Any) -> Iterator[bytes]:
        """All members of a gzip file; what is behind a torn or damaged place is lost."""
        given, library = 0, _import_zlib()
        try:
            for out in self._iter_unpacked_chunks(file, library):
                given += len(out)
                yield out
            return
        except library.error:
            file.seek(0)
        # The call that failed had unpacked up to a block: once more, in small steps there.
        self._left, self.read = given, 0
        try:
            for out in self._iter_unpacked_chunks(file, zlib):
                if not self._left:
                    yield out
                self._left -= min(self._left, len(out))
        except zlib.error as error:
            self.torn = f"the compressed data is damaged ({error})"

    def _iter_unpacked_chunks(self, file: Any, library: Any) -> Iterator[bytes]:
        """The same, with the library's error at a damaged place."""
        unpack = library.decompressobj(wbits=ANY_HEADER)
        fresh = True  # nothing of this member has been unpacked yet
        while True:
            data = file.read(min(READ, self.size))
            self.read += len(data)
            if not data:
                if not fresh:
                    self.torn = "the compressed data is truncated"
                return
            while data:
                try:
                    out = unpack.decompress(data, min(self.size, self._left) or STEP)
                except library.error:
                    if fresh and data.strip(b"\0") == b"":  # zeros behind the last member are padding
                        return
                    raise
                if out:
                    yield out
                fresh = False
                if unpack.eof:
                    data = unpack.unused_data
                    unpack, fresh = library.decompressobj(wbits=ANY_HEADER), True
                else:
                    data = unpack.unconsumed_tail


def _import_zlib() -> Any:
    """The quickest zlib that is here."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib
