"""Build and parse the header of a sealed page, which is a safetensors header. Standard library alone.

Source: https://huggingface.co/docs/safetensors (an 8-byte little-endian length, a JSON object, then the bytes; tensors
leave no byte out and share none).
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tdbg.pages.format.dtypes import BY_STORED
from tdbg.pages.format.file_format import FORMAT, HEADER_LIMIT, MAJOR, MINOR, align_offset, decode_json
from tdbg.pages.format.layout import Layout, Piece, is_shape, is_whole_number, tensor_names

LENGTH_BYTES = 8
NUMBER = 20  # digits of an offset, at most
PAD = f'"pad/{"9" * 9}":{{"dtype":"U8","shape":[],"data_offsets":[,]}},' + "9" * 3 * NUMBER
SKELETON_BYTES = 600  # what a header holds beside its tensors and records, and the page's own three pads


class Placed(NamedTuple):
    """A datapoint in a page. base: its first byte in the file. body: its record, as the journal has it."""

    seq: int
    base: int
    layout: Layout
    body: bytes


class Stored(NamedTuple):
    """A tensor as a header names it. dtype: safetensors' name. begin, end: bytes in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Entries:
    """The entries of a layout in a page's header, but for number and place of the datapoint."""

    def __init__(self, layout: Layout) -> None:
        self.pieces = [
            (_format_entry_tail(name, p), p.offset, p.offset + p.length) for name, p in _iter_named_pieces(layout)
        ]
        tails = sum(len(tail.encode()) for tail, _, _ in self.pieces)
        pads = (len(layout.find_gaps()) + 1) * len(PAD)
        self.bytes = tails + len(self.pieces) * (6 + 3 * NUMBER) + pads  # never more than that
        self.layout_bytes = _quoted_bytes(layout.journal_body) + 1

    def format_entries(self, seq: int, base: int) -> list[str]:
        """The entries of one datapoint. base: from the first byte behind the header."""
        return [f'"{seq:08d}/{tail}{base + begin},{base + end}]}}' for tail, begin, end in self.pieces]


def _iter_named_pieces(layout: Layout) -> Iterable[tuple[str, Piece]]:
    return zip(tensor_names(layout.pieces), layout.pieces, strict=True)


def _format_entry_tail(name: str, piece: Piece) -> str:
    shape = ",".join(map(str, piece.dtype.stored_shape(piece.shape)))
    text = json.dumps(name, ensure_ascii=False)[1:-1]
    return f'{text}":{{"dtype":"{piece.dtype.stored}","shape":[{shape}],"data_offsets":['


def _quoted_bytes(body: bytes) -> int:
    """The length of a record as text within a JSON text."""
    return len(body) + body.count(b'"') + body.count(b"\\")


def bound_header_growth(entries: Entries, body: bytes) -> int:
    """The most bytes that one more datapoint adds to a header, without its layout."""
    return entries.bytes + _quoted_bytes(body) + 1


def build_header(
    placed: Sequence[Placed], entries: Mapping[int, Entries], about: Mapping[str, object], data: int, size: int
) -> bytes:
    """The first bytes of a sealed page: the length, the JSON text, blanks up to a multiple of 64.

    entries: of each layout, by its id. about: what `__metadata__` tells of the writer, JSON values. data: where the
    tensors begin. size: where the file ends. The bytes that no tensor uses, before and between them, become tensors
    named ``pad/...``. Raises ValueError if it would be longer than ``data``.
    """
    metadata = _format_metadata(placed, {**about, "data": data})
    room = LENGTH_BYTES + SKELETON_BYTES + len(metadata.encode())
    room += sum(entries[one.layout.id].bytes for one in placed) + len(PAD)
    room = min(align_offset(room), data)
    texts = [f'"__metadata__":{metadata}']
    for seq, base, layout, _ in placed:
        texts += entries[layout.id].format_entries(seq, base - room)
    texts += _format_padding(placed, room, size)
    text = ("{" + ",".join(texts) + "}").encode()
    if len(text) > min(room - LENGTH_BYTES, HEADER_LIMIT):
        raise ValueError(f"the header of a page needs {len(text):,} bytes, but has room for {room - LENGTH_BYTES:,}")
    return (room - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "little") + text.ljust(room - LENGTH_BYTES)


def _format_metadata(placed: Sequence[Placed], about: Mapping[str, object]) -> str:
    layouts = {one.layout.id: one.layout for one in placed}
    found = {
        "format": FORMAT,
        "version": f"{MAJOR}.{MINOR}",
        **{name: json.dumps(value, separators=(",", ":")) for name, value in about.items() if value is not None},
        "layouts": "[" + ",".join(layout.journal_body.decode() for layout in layouts.values()) + "]",
        "datapoints": "[" + ",".join(one.body.decode() for one in placed) + "]",
    }
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def _format_padding(placed: Sequence[Placed], room: int, size: int) -> list[str]:
    """What lies between ``room`` and ``size`` and belongs to no tensor, as tensors of bytes."""
    gaps, at = [], room
    for one in sorted(placed, key=lambda one: (one.base, one.layout.length)):
        gaps.append((at, one.base - at))
        gaps += [(one.base + begin, length) for begin, length in one.layout.find_gaps()]
        at = one.base + one.layout.length
    gaps.append((at, size - at))
    return [
        f'"pad/{number}":{{"dtype":"U8","shape":[{length}],"data_offsets":[{begin - room},{begin - room + length}]}}'
        for number, (begin, length) in enumerate(gap for gap in gaps if gap[1])
    ]


def length_of(start: bytes, size: int) -> int:
    """The length of the JSON text, from a file's first eight bytes. Raises ValueError for one that cannot be true."""
    length = int.from_bytes(start, "little")
    if len(start) < LENGTH_BYTES or not length:
        raise ValueError("it has no header")
    if LENGTH_BYTES + length > size:
        raise ValueError(f"its header claims {length:,} bytes, but the file has {size:,}")
    if length > HEADER_LIMIT:
        raise ValueError(f"its header has {length:,} bytes, more than the limit of {HEADER_LIMIT:,}")
    return length


def parse_header(text: bytes, size: int) -> tuple[dict[str, str], dict[str, Stored]]:
    """``__metadata__`` and the tensors of a header. size: of the whole file.

    Raises ValueError for a header that lies: types, shapes that do not fit the bytes, bytes beyond the file or shared.
    """
    found = decode_json(text)
    if not isinstance(found, dict):
        raise ValueError("its header is not a JSON object")
    metadata = found.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata values are not all strings")
    data = LENGTH_BYTES + len(text)
    tensors = {name: _parse_stored(name, entry, data, size) for name, entry in found.items()}
    at, last = data, ""
    for name, stored in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if stored.begin < at:
            raise ValueError(f"the tensors {last[:80]!r} and {name[:80]!r} share bytes")
        at, last = stored.end, name
    return metadata, tensors


def _parse_stored(name: str, entry: object, data: int, size: int) -> Stored:
    dtype, shape, offsets = (
        (entry.get(key) for key in ("dtype", "shape", "data_offsets")) if isinstance(entry, dict) else (None,) * 3
    )
    if not isinstance(dtype, str) or not is_shape(shape) or not isinstance(offsets, list) or len(offsets) != 2:
        raise ValueError(f"the entry of the tensor {name[:80]!r} is incomplete")
    begin, end = offsets
    if not is_whole_number(begin) or not is_whole_number(end) or not begin <= end <= size - data:
        raise ValueError(f"the tensor {name[:80]!r} lies beyond the end of the file")
    if dtype in BY_STORED and math.prod(shape) * BY_STORED[dtype].size != end - begin:
        raise ValueError(f"the tensor {name[:80]!r}: its shape does not match its {end - begin:,} bytes")
    return Stored(dtype, tuple(shape), data + begin, data + end)
