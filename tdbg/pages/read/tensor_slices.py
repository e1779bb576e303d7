"""Slices of a tensor: ``0,:,3:5``. Only the rows of the slice are read."""

import math
from itertools import product

from tdbg.core.errors import TdbgError
from tdbg.pages.read import tensor_values
from tdbg.pages.stats.value_stats import PURE

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, TypeAlias

    import numpy

    from tdbg.pages.read.datapoint import Tensor

    Index: TypeAlias = int | slice
    Array = numpy.ndarray[Any, Any]

CHUNK_BYTES = 4 << 20
JOINED_BYTES = 64 << 10
EXAMPLE = "write numbers and ranges separated by commas, such as 0,:,3:5"


class Part:
    """Values in row order with their shape: a list of Python numbers, or an array where there are many."""

    __slots__ = ("array", "numbers", "shape")

    def __init__(self, shape: "tuple[int, ...]", numbers: "list[object] | None", array: "Array | None" = None) -> None:
        self.shape, self.numbers, self.array = shape, numbers, array

    @property
    def count(self) -> int:
        """How many values."""
        return math.prod(self.shape)

    def to_numbers(self) -> "list[object]":
        """As Python numbers."""
        if self.numbers is not None:
            return self.numbers
        assert self.array is not None
        found: list[Any] = self.array.reshape(-1).tolist()
        return found


def parse_slice(text: str) -> "list[Index]":
    """The parts of ``0,:,3:5``, ``...`` included. Raises TdbgError."""
    found: list[Any] = []
    for word in text.strip("[] ").split(","):
        try:
            if word.strip() == "...":
                found.append(Ellipsis)
            elif ":" in word:
                bounds = [int(part) if part.strip() else None for part in word.split(":")]
                found.append(slice(*bounds))
                if len(bounds) > 3 or bounds[2:] == [0]:
                    raise ValueError
            else:
                found.append(int(word))
        except (ValueError, TypeError):
            raise TdbgError(f"--slice cannot be {text!r}: {word!r} is not an index or a range", EXAMPLE) from None
    if found.count(Ellipsis) > 1:
        raise TdbgError(f"--slice cannot be {text!r}: it has two ...", EXAMPLE)
    return found


def read_slice(tensor: "Tensor", text: str = "", lists: int = PURE) -> Part:
    """The values of a tensor, or of the part that is named; at most so many ``lists`` hold.

    Raises TdbgError for a part that there is none of.
    """
    if not text:
        return _decode_part(tensor.read(), tensor, tensor.shape, lists)
    wanted = _expand_ellipsis(parse_slice(text), tensor, text)
    while wanted and isinstance(wanted[0], int) and _has_rows(tensor):
        tensor, wanted = tensor.row(_normalize_index(wanted[0], tensor.shape[0], text)), wanted[1:]
    if wanted and _has_rows(tensor) and "scales" not in tensor.note:
        return _apply_slice(*_read_rows(tensor, wanted), text)
    return _apply_slice(_decode_part(tensor.read(), tensor, tensor.shape), wanted, text)


def count_slice_bytes(tensor: "Tensor", text: str) -> int:
    """How many bytes `read_slice` reads for a part. Raises TdbgError for a part that there is none of."""
    wanted = _expand_ellipsis(parse_slice(text), tensor, text)
    size = tensor.nbytes
    for index, length in zip(wanted, tensor.shape, strict=False):
        if not _has_rows(tensor) or (isinstance(index, slice) and "scales" in tensor.note):
            break
        if isinstance(index, slice):
            rows = range(length)[index]
            return (abs(rows[-1] - rows[0]) + 1) * (size // length) if rows else 0
        size //= length
    return size


def iter_slice_bytes(tensor: "Tensor", text: str = "") -> "tuple[tuple[int, ...], Iterator[bytes]]":
    """The shape of a part, and its bytes as they are stored, some at a time. Raises TdbgError for a part that there is none of.

    Memory: one of the ranges of bytes that lie side by side, in pieces.
    """
    wanted = _expand_ellipsis(parse_slice(text), tensor, text) if text else []
    if not wanted:
        return tensor.shape, tensor.chunks(CHUNK_BYTES)
    if not _has_rows(tensor):
        raise TdbgError(
            f"{tensor.path} cannot be cut: several values share a byte, or there is none", "leave out slice"
        )
    places = [
        range(size)[index] if isinstance(index, slice) else _normalize_index(index, size, text)
        for index, size in zip(wanted, tensor.shape, strict=True)
    ]
    shape = tuple(len(place) for place in places if isinstance(place, range))
    if 0 in shape:
        return shape, iter(())
    return shape, _join_small(_iter_places(tensor, 0, tensor.shape, places))


def _join_small(found: "Iterator[bytes]") -> "Iterator[bytes]":
    """The same bytes in pieces of some `JOINED_BYTES` or more."""
    pieces: list[bytes] = []
    size = 0
    for piece in found:
        pieces.append(piece)
        size += len(piece)
        if size >= JOINED_BYTES:
            yield b"".join(pieces)
            pieces, size = [], 0
    if pieces:
        yield b"".join(pieces)


def _iter_places(
    tensor: "Tensor", start: int, shape: "tuple[int, ...]", places: "Sequence[int | range]"
) -> "Iterator[bytes]":
    """The bytes of places along each dimension, of what begins at ``start`` of the tensor."""
    whole = math.prod(shape) * tensor.dtype.size
    if all(place == range(size) for place, size in zip(places, shape, strict=True)):
        for at in range(start, start + whole, CHUNK_BYTES):
            yield tensor.read_range(at, min(at + CHUNK_BYTES, start + whole))
        return
    width, first = whole // shape[0], places[0]
    if isinstance(first, int):
        yield from _iter_places(tensor, start + first * width, shape[1:], places[1:])
    elif len(shape) == 1:
        yield from _iter_elements(tensor, start, first)
    elif first.step == 1 and all(place == range(size) for place, size in zip(places[1:], shape[1:], strict=True)):
        inner = (len(first), *shape[1:])
        yield from _iter_places(tensor, start + first.start * width, inner, [range(size) for size in inner])
    elif width <= JOINED_BYTES:
        yield from _iter_cut_rows(tensor, start, shape, places)
    else:
        for place in first:
            yield from _iter_places(tensor, start + place * width, shape[1:], places[1:])


def _iter_cut_rows(
    tensor: "Tensor", start: int, shape: "tuple[int, ...]", places: "Sequence[int | range]"
) -> "Iterator[bytes]":
    """Rows that are cut, as many at once as fit: one read for each element of a column would take hours."""
    first, inner = places[0], math.prod(shape[1:])
    assert isinstance(first, range)
    size = tensor.dtype.size
    width = inner * size
    runs = _find_column_runs(shape[1:], places[1:])
    most = max(CHUNK_BYTES // 16 // (width * abs(first.step)), 1)
    for at in range(0, len(first), most):
        part = first[at : at + most]
        low, high = min(part[0], part[-1]), max(part[0], part[-1]) + 1
        data = tensor.read_range(start + low * width, start + high * width)
        rows = [(place - low) * width for place in part]
        yield b"".join(data[row + left * size : row + right * size] for row in rows for left, right in runs)


def _find_column_runs(shape: "Sequence[int]", places: "Sequence[int | range]") -> "list[list[int]]":
    """The elements of a row that are kept, as ranges of neighbours."""
    kept: list[int] = [0]
    for place, length in zip(places, shape, strict=True):
        kept = [at * length + one for at in kept for one in (place if isinstance(place, range) else (place,))]
    runs: list[list[int]] = []
    for one in kept:
        if runs and runs[-1][1] == one:
            runs[-1][1] = one + 1
        else:
            runs.append([one, one + 1])
    return runs


def _iter_elements(tensor: "Tensor", start: int, places: range) -> "Iterator[bytes]":
    """Elements of a row, of any step, some at a time."""
    size = tensor.dtype.size
    most = max(CHUNK_BYTES // (size * abs(places.step)), 1)
    for at in range(0, len(places), most):
        part = places[at : at + most]
        low, high = min(part[0], part[-1]), max(part[0], part[-1]) + 1
        data = tensor.read_range(start + low * size, start + high * size)
        step = abs(part.step)
        found = data if step == 1 else b"".join(data[i : i + size] for i in range(0, len(data), step * size))
        yield found if part.step > 0 else b"".join(found[i : i + size] for i in range(len(found) - size, -1, -size))


def flat_parts(tensor: "Tensor", size: int = CHUNK_BYTES) -> "Iterator[Array]":
    """The values in row order, some at a time: pieces of ``size`` bytes at most, where a piece can be understood alone."""
    if is_read_whole(tensor):
        yield tensor.array().reshape(-1)
        return
    for data in tensor.chunks(size):
        yield tensor_values.decode_array(data, tensor.dtype, note=tensor.note)


def is_read_whole(tensor: "Tensor") -> bool:
    """True if no piece of it can be understood alone."""
    return "scales" in tensor.note or tensor.dtype.packed > 1


def _expand_ellipsis(wanted: "list[Any]", tensor: "Tensor", text: str) -> "list[Index]":
    """Without the dots; never more parts than dimensions."""
    dimensions = len(tensor_values.value_shape(tensor.dtype, tensor.shape))
    missing = dimensions - len(wanted) + wanted.count(Ellipsis)
    if missing < 0:
        raise TdbgError(
            f"--slice {text!r} has {len(wanted)} parts, but {tensor.path} has {dimensions} dimensions",
            f"its shape is {list(tensor.shape)}",
        )
    at = wanted.index(Ellipsis) if Ellipsis in wanted else len(wanted)
    return [*wanted[:at], *[slice(None)] * missing, *wanted[at + 1 :]]


def _has_rows(tensor: "Tensor") -> bool:
    return tensor.dtype.packed == 1 and len(tensor.shape) > 0 and tensor.nbytes > 0


def _normalize_index(index: int, size: int, text: str) -> int:
    if not -size <= index < size:
        raise TdbgError(f"--slice {text!r}: index {index} is outside a dimension of size {size}", "indices start at 0")
    return index % size


def _read_rows(tensor: "Tensor", wanted: "list[Index]") -> "tuple[Part, list[Index]]":
    """Only the rows from the first to the last that is asked for."""
    first = wanted[0]
    assert isinstance(first, slice)
    size = tensor.shape[0]
    rows = range(*first.indices(size))
    low, high = (min(rows[0], rows[-1]), max(rows[0], rows[-1]) + 1) if rows else (0, 0)
    nbytes = tensor.nbytes // size
    data, shape = tensor.read_range(low * nbytes, high * nbytes), (high - low, *tensor.shape[1:])
    part = _decode_part(data, tensor, shape)
    start = rows[0] - low if rows else 0
    stop = rows[-1] - low + (1 if rows.step > 0 else -1) if rows else 0
    return part, [slice(start, stop if stop >= 0 else None, rows.step), *wanted[1:]]


def _decode_part(data: bytes, tensor: "Tensor", shape: "tuple[int, ...]", lists: int = PURE) -> Part:
    found = tensor_values.value_shape(tensor.dtype, shape)
    if math.prod(found) <= lists:
        return Part(found, tensor_values.decode_numbers(data, tensor.dtype, shape, tensor.note))
    return Part(found, None, tensor_values.decode_array(data, tensor.dtype, shape, tensor.note))


def _apply_slice(part: Part, wanted: "Sequence[Index]", text: str) -> Part:
    if part.array is not None:
        try:
            found = part.array[tuple(wanted)]
        except IndexError as error:
            raise TdbgError(f"--slice {text!r}: {error}", "indices start at 0") from None
        return Part(found.shape, None, found)
    assert part.numbers is not None
    kept: list[Sequence[int]] = []
    for index, size in zip(wanted, part.shape, strict=False):
        kept.append(range(*index.indices(size)) if isinstance(index, slice) else (_normalize_index(index, size, text),))
    kept += [range(size) for size in part.shape[len(wanted) :]]
    steps = [math.prod(part.shape[at + 1 :]) for at in range(len(part.shape))]
    chosen = (
        product(*kept) if all(kept) else ()
    )  # a product keeps its ranges as tuples: beside an empty one may stand any
    flat = [part.numbers[sum(map(int.__mul__, places, steps))] for places in chosen]
    single = {at for at, index in enumerate(wanted) if isinstance(index, int)}
    return Part(tuple(len(places) for at, places in enumerate(kept) if at not in single), flat)
