"""Where the tensors of one datapoint lie, relative to its first byte. Datapoints of one structure share a layout.

Standard library alone: it is made inside a training rank.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeGuard

from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_count
from tdbg.pages.format.dtypes import DTYPES, Dtype
from tdbg.pages.format.file_format import ALIGN, FRAME_LIMIT, align_offset, encode_json, unmark_value

DIMENSIONS = 64  # numpy's limit, and far beyond torch's use
LARGEST = 1 << 62  # bytes: offsets stay within 64 bits, whatever is added to them
NO_NOTE: Mapping[str, object] = {}
_ids = itertools.count()  # of this process: never twice, whichever writer asks, in a forked child neither


class UnstorableError(TdbgError):
    """This datapoint cannot be stored for what it holds; the others can."""


class Spec(NamedTuple):
    """One tensor of a structure. dtype: torch's name. note: what a reader needs beyond it (scale, zero_point ...)."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    note: Mapping[str, object] = NO_NOTE


class Piece(NamedTuple):
    """One tensor of a layout. offset: from the datapoint's first byte. length: bytes."""

    path: str
    dtype: Dtype
    shape: tuple[int, ...]
    offset: int
    length: int
    note: Mapping[str, object] = NO_NOTE


class Layout:
    """The pieces of one structure. length: bytes from the datapoint's base to its end, a multiple of 64."""

    def __init__(self, id: int, pieces: Sequence[Piece], length: int) -> None:
        self.id = id
        self.pieces = tuple(pieces)
        self.length = length
        self.rows = {piece.path: piece.shape[0] if piece.shape else -1 for piece in pieces}
        self._body = b""

    @classmethod
    def from_specs(cls, specs: Iterable[Spec]) -> "Layout":
        """Lay the tensors out one behind the other, each at a multiple of 64.

        Raises UnstorableError for an unknown dtype, an impossible shape and two tensors of one path.
        """
        at, pieces = 0, []
        for path, name, shape, note in specs:
            dtype = DTYPES.get(name)
            if dtype is None:
                raise UnstorableError(f"{path}: tensors of dtype {name} cannot be stored", "convert them first")
            length = dtype.count_bytes(shape)
            pieces.append(Piece(path, dtype, tuple(shape), at, length, note))
            at = align_offset(at + length)
        found = cls(next(_ids), pieces, at)
        found._check_limits()
        return found

    def _check_limits(self) -> None:
        if len(self.rows) != len(self.pieces):
            twice = Counter(piece.path for piece in self.pieces).most_common(1)[0][0]
            raise UnstorableError(f"two tensors of one datapoint are named {twice!r}", "give each a path of its own")
        if self.length > LARGEST:
            raise UnstorableError("a datapoint of more than 2**62 bytes cannot be stored")
        if len(self.journal_body) > FRAME_LIMIT:
            raise UnstorableError(
                f"{format_count(len(self.pieces), 'tensor')} in one datapoint are too many", "capture fewer layers"
            )

    @property
    def journal_body(self) -> bytes:
        """Its record in a journal."""
        if not self._body:
            items = [[p.path, p.dtype.name, list(p.shape), p.offset, p.length, p.note] for p in self.pieces]
            self._body = encode_json({"t": "layout", "id": self.id, "length": self.length, "items": items})
        return self._body

    def find_gaps(self) -> list[tuple[int, int]]:
        """The bytes between and behind the pieces that belong to none: (offset, length) of each."""
        if not self.pieces:
            return [(0, self.length)] if self.length else []
        ends = [piece.offset + piece.length for piece in self.pieces]
        starts = [piece.offset for piece in self.pieces[1:]] + [self.length]
        return [(end, start - end) for end, start in zip(ends, starts, strict=True) if start > end]


def parse_layout(record: Mapping[str, object]) -> Layout:
    """A layout out of its record, every field looked at. Raises ValueError for one that cannot be true."""
    id, length, items = (record.get(name) for name in ("id", "length", "items"))
    if not is_whole_number(id) or not is_whole_number(length) or not isinstance(items, list) or length % ALIGN:
        raise ValueError("a layout without id, length or items")
    pieces = [_parse_piece(item) for item in items]
    at = 0
    for piece in pieces:
        if piece.offset < at:
            raise ValueError(f"the tensors of a layout overlap at {piece.path!r}")
        at = piece.offset + piece.length
    if at > length or length > LARGEST:
        raise ValueError("a tensor of a layout lies beyond its end")
    if len({piece.path for piece in pieces}) != len(pieces):
        raise ValueError("two tensors of a layout share a path")
    return Layout(id, pieces, length)


def _parse_piece(item: object) -> Piece:
    if not isinstance(item, list) or len(item) < 6:
        raise ValueError("an item of a layout has too few fields")
    path, name, shape, offset, length, note = item[:6]
    if (
        not isinstance(path, str)
        or not isinstance(note, dict)
        or not is_whole_number(offset)
        or not is_whole_number(length)
    ):
        raise ValueError("an item of a layout has a field of a wrong type")
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise ValueError(f"{path!r} is of an unknown dtype, {str(name)[:40]!r}")
    if not is_shape(shape) or dtype.count_bytes(shape) != length:
        raise ValueError(f"{path!r}: its shape does not match its {length} bytes")
    note = unmark_value(note) if note else NO_NOTE
    if not isinstance(note, dict):
        raise ValueError(f"{path!r}: its note is not a JSON object")
    return Piece(path, dtype, tuple(shape), offset, length, note)


def is_whole_number(value: object) -> TypeGuard[int]:
    """True for a whole number from 0 that fits into 63 bits, and for no bool."""
    return type(value) is int and 0 <= value < 1 << 63


def is_shape(value: object) -> TypeGuard[list[int]]:
    """True for a list of whole numbers that can be a tensor's shape; the product is bounded too."""
    return (
        isinstance(value, list)
        and len(value) <= DIMENSIONS
        and all(is_whole_number(size) for size in value)
        and math.prod(value) < LARGEST
    )


def tensor_names(pieces: Iterable[Piece]) -> list[str]:
    """The names of the pieces in a sealed page's header, each one of its own.

    Other readers take valid Unicode only: what is none (undecodable bytes in a name) becomes question marks there.
    """
    names: dict[str, None] = {}
    for piece in pieces:
        name = clean = piece.path.encode("utf-8", "replace").decode()
        while name in names:
            name = f"{clean}#{len(names)}"
        names[name] = None
    return list(names)
