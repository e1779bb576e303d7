"""Files that grow, on a store whose objects do not: each is kept as pieces that are never written again.

A piece of ``rank0000/events.jsonl`` is ``rank0000/events.jsonl.pieces/0001-000000000000-000000004096``: which file of
that name it is of (one that was rotated away and begun anew is the next), its first byte, and the byte after its last.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tdbg.core.lazy_pattern import lazy_pattern

FOLDER = ".pieces"
_PIECE = lazy_pattern(r"(?P<path>[^/].*)\.pieces/(?P<edition>\d{4,9})-(?P<start>\d{12,18})-(?P<stop>\d{12,18})")
MAX_DEPTH = 8  # of folders in a run
Version = tuple[int, float | None]  # bytes of a file, and when it was written


class Piece(NamedTuple):
    """Some bytes of a file, and the object that holds them. skipped: bytes of the object that come before them."""

    start: int
    stop: int
    name: str
    skipped: int = 0


class PieceFile(NamedTuple):
    """A file that is kept in pieces: those from its beginning up to the first gap, in order."""

    edition: int
    pieces: tuple[Piece, ...]
    written_t: float | None  # when the last of them was written

    @property
    def size(self) -> int:
        """Bytes up to the first gap."""
        return self.pieces[-1].stop if self.pieces else 0

    def list_ranges(self, start: int, stop: int) -> list[tuple[str, int, int]]:
        """The objects that hold these bytes, each with the range in it."""
        return [
            (
                piece.name,
                piece.skipped + max(start - piece.start, 0),
                piece.skipped + min(stop, piece.stop) - piece.start,
            )
            for piece in self.pieces
            if piece.start < stop and start < piece.stop
        ]


def name_piece(path: str, edition: int, start: int, stop: int) -> str:
    """The object that holds these bytes of a file."""
    return f"{path}{FOLDER}/{edition:04d}-{start:012d}-{stop:012d}"


def is_piece(name: str) -> bool:
    """True for the name of a piece."""
    return _PIECE.fullmatch(name) is not None


def find_piece_files(listed: Mapping[str, Version]) -> dict[str, PieceFile]:
    """The files that are kept in pieces, by their own names. listed: all objects by name."""
    found: dict[str, dict[int, list[tuple[Piece, float | None]]]] = {}
    for name, (size, written_t) in listed.items():
        match = _PIECE.fullmatch(name)
        if match is None:
            continue
        piece = Piece(int(match["start"]), int(match["stop"]), name)
        if size in (0, piece.stop - piece.start):  # 0: the listing does not tell (http)
            found.setdefault(match["path"], {}).setdefault(int(match["edition"]), []).append((piece, written_t))
    return {path: _join_pieces(*max(editions.items())) for path, editions in found.items()}


def _join_pieces(edition: int, listed: Iterable[tuple[Piece, float | None]]) -> PieceFile:
    rows = sorted(listed, key=lambda row: (row[0].start, -row[0].stop))
    written = [written_t for _, written_t in rows if written_t is not None]
    return PieceFile(edition, tuple(_iter_joined(piece for piece, _ in rows)), max(written, default=None))


def _iter_joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Each piece that goes on where the one before it ends, without what that one has too.

    Pieces overlap where the answer to a write was lost, and where two supervisors copied the same file.
    """
    end = 0
    for piece in pieces:
        if piece.start <= end < piece.stop:
            yield piece._replace(start=end, skipped=end - piece.start)
            end = piece.stop


def is_plain_path(path: str) -> bool:
    """True for a relative path that stays below its folder, is not too deep, and has no hidden part."""
    parts = path.split("/")
    if len(parts) > MAX_DEPTH or "\0" in path or "\\" in path:
        return False
    return all(part and not part.startswith(".") and len(os.fsencode(part)) < 200 for part in parts)
