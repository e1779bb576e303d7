"""The bytes of a trace, block by block, packed or not. What is torn gives what it holds."""

import os
import zlib
from collections.abc import Iterator
from typing import Any

from tdbg.errors import TdbgError

GZIP = b"\x1f\x8b"
READ = 1 << 18  # bytes that are asked of the disk at once
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

    def __iter__(self) -> Iterator[bytes]:
        """Blocks of ``size`` bytes, the last one shorter; none for an empty file."""
        parts: list[bytes] = []
        held = 0
        for part in self._parts():
            parts.append(part)
            held += len(part)
            if held >= self.size:
                yield b"".join(parts)
                parts, held = [], 0
        if held:
            yield b"".join(parts)

    def _parts(self) -> Iterator[bytes]:
        try:
            with open(self.path, "rb") as file:
                first = file.read(min(READ, self.size))
                self.read = len(first)
                yield from self._unpacked(first, file) if first[:2] == GZIP else self._plain(first, file)
        except OSError as error:
            raise TdbgError(f"{self.path}: {error.strerror or error}", "name a trace that can be read") from None

    def _plain(self, data: bytes, file: Any) -> Iterator[bytes]:
        while data:
            yield data
            data = file.read(min(READ, self.size))
            self.read += len(data)

    def _unpacked(self, data: bytes, file: Any) -> Iterator[bytes]:
        """All members of a gzip file; what is behind a torn or damaged place is lost."""
        library = _zlib()
        unpack = library.decompressobj(wbits=ANY_HEADER)
        fresh = True  # nothing of this member has been unpacked yet
        while True:
            while data:
                try:
                    out = unpack.decompress(data, self.size)
                except library.error as error:
                    if not (fresh and data.strip(b"\0") == b""):  # zeros behind the last member are padding
                        self.torn = f"the packed data is damaged ({error})"
                    return
                if out:
                    yield out
                fresh = False
                if unpack.eof:
                    data = unpack.unused_data
                    unpack, fresh = library.decompressobj(wbits=ANY_HEADER), True
                else:
                    data = unpack.unconsumed_tail
            data = file.read(min(READ, self.size))
            self.read += len(data)
            if not data:
                if not fresh:
                    self.torn = "the packed data ends early"
                return


def _zlib() -> Any:
    """The quickest zlib that is here."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib
