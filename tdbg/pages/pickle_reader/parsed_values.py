"""The inert values that a pickled page is parsed into: they can be inspected, and never run anything.

Big data is not in them. An Array knows where its bytes lie, and reads them when it is asked to.
"""

import math
from collections.abc import Mapping
from typing import Any

from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_short
from tdbg.pages.format.dtypes import DTYPES
from tdbg.pages.format.layout import DIMENSIONS, LARGEST
from tdbg.pages.pickle_reader.byte_source import ByteSource, Latin1Source, WindowSource
from tdbg.pages.pickle_reader.strided_views import gather_view, view_span

EXPANDED_BYTES = 256 << 20  # of a view that repeats its storage: what may be made of it
FLIPPED = bytes(byte ^ 0x80 for byte in range(256))


class Global:
    """A name that a page may mention, such as ``torch.float32``."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Refused:
    """What stands where a page asked for something that is not on the list; it was not imported and not called.

    why: where the name is on the list and its arguments are wrong. parts: what the page gave it, inert as well.
    """

    __slots__ = ("module", "name", "parts", "why")

    def __init__(self, module: str, name: str, why: str = "", parts: list[object] | None = None) -> None:
        self.module, self.name, self.why = module, name, why
        self.parts: list[object] = [] if parts is None else parts

    @property
    def label(self) -> str:
        """``module.name``, fit for a terminal."""
        return format_short(f"{self.module}.{self.name}")

    def __str__(self) -> str:
        return f"<refused {self.label}: {self.why}>" if self.why else f"<refused {self.label}>"

    __repr__ = __str__


class Named(tuple[Any, ...]):
    """A tuple whose type has a name, such as ``torch.return_types.max``."""

    type_name: str

    @classmethod
    def from_values(cls, type_name: str, values: tuple[object, ...]) -> "Named":
        found = cls(values)
        found.type_name = type_name
        return found


class Blob:
    """A long run of bytes, or of text, that stays in the page."""

    __slots__ = ("_bytes", "meaning", "offset", "size", "source", "text")

    def __init__(self, source: ByteSource, offset: int, size: int, text: bool = False) -> None:
        self.source, self.offset, self.size, self.text = source, offset, size, text
        self.meaning: object = None  # what it was found to hold: a page may ask again and again
        self._bytes: Blob | None = None

    def open_window(self) -> ByteSource:
        return WindowSource(self.source, self.offset, self.size)

    def load_bytes(self) -> bytes:
        return self.source.read_range(self.offset, self.size)

    def as_bytes(self) -> "Blob":
        """The bytes that this text stands for, a character each; ValueError if it holds others."""
        if self._bytes is None:
            source = Latin1Source(self.open_window())
            self._bytes = Blob(source, 0, source.size)
        return self._bytes


class Storage:
    """The memory of one or more tensors. dtype: empty if it has none of its own. offset: None until it is found."""

    __slots__ = ("dtype", "nbytes", "offset", "source")

    def __init__(self, dtype: str, nbytes: int, source: ByteSource | None = None, offset: int | None = None) -> None:
        self.dtype, self.nbytes, self.source, self.offset = dtype, nbytes, source, offset

    def read_range(self, offset: int, count: int) -> bytes:
        """Raises TdbgError where the page does not hold all of it."""
        if self.source is None or self.offset is None:
            raise TdbgError("the page ends before this tensor's data", "what was captured there is lost")
        data = self.source.read_range(self.offset + offset, count)
        if len(data) != count:
            raise TdbgError("the page ends inside this tensor's data", "what was captured there is lost")
        return data


class Array:
    """A tensor or an array: torch's name of its dtype, its shape, and where its bytes lie.

    strides, start: in elements; checked to stay inside the storage. swapped: the most significant byte first.
    conj, neg: the sign that torch keeps beside the data. note: scale and zero point of a quantised one.
    Raises ValueError if the description is not true.
    """

    __slots__ = ("_conj", "_neg", "_start", "_storage", "_strides", "_swapped", "dtype", "note", "shape")

    def __init__(
        self,
        storage: Storage,
        dtype: str,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        start: int = 0,
        *,
        swapped: bool = False,
        conj: bool = False,
        neg: bool = False,
        note: Mapping[str, object] | None = None,
    ) -> None:
        self.dtype, self.shape, self.note = dtype, shape, dict(note or {})
        self._storage, self._start = storage, start
        self._swapped, self._conj, self._neg = swapped, conj, neg
        parse_sizes(shape)
        self._strides = contiguous_strides(shape) if strides is None else parse_sizes(strides)
        self._validate_extent()

    @property
    def value_count(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all its values, one after the other."""
        return DTYPES[self.dtype].count_bytes(self.shape)

    def __repr__(self) -> str:
        return f"Array({self.dtype}, {list(self.shape)})"

    def _validate_extent(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"{format_short(self.dtype)} is not a known dtype")
        if len(self._strides) != len(self.shape):
            raise ValueError("the number of strides does not match the number of dimensions")
        if not 0 <= self._start < LARGEST or self.nbytes >= LARGEST:
            raise ValueError("it is larger than any memory")
        if not self.value_count:
            return
        width = DTYPES[self.dtype].size
        if DTYPES[self.dtype].counts_values:
            if self._start or self._strides != contiguous_strides(self.shape):
                raise ValueError("a view of packed sub-byte values is not supported")
            reach = self.nbytes
        else:
            reach = self._start * width + view_span(self.shape, self._strides, width)
        if reach > self._storage.nbytes:
            raise ValueError(f"it reaches {reach} bytes into a storage of {self._storage.nbytes} bytes")

    def load_bytes(self) -> bytes:
        """All values, C-contiguous and little-endian. Memory: the result; of a view twice that, and 64 MiB."""
        width = DTYPES[self.dtype].size
        if self.nbytes > max(EXPANDED_BYTES, self._storage.nbytes):
            raise TdbgError(
                f"a view of {self.nbytes} bytes is made from a storage of {self._storage.nbytes} bytes",
                "the view repeats values, so it is not converted",
            )
        if DTYPES[self.dtype].counts_values or self._strides == contiguous_strides(self.shape):
            data = self._storage.read_range(self._start * width, self.nbytes) if self.value_count else b""
        else:
            data = gather_view(self._storage.read_range, self._start * width, self.shape, self._strides, width)
        return self._apply_order_and_signs(data) if self._swapped or self._conj or self._neg else data

    def _apply_order_and_signs(self, data: bytes) -> bytes:
        """The values as they were meant: byte order and signs."""
        about = DTYPES[self.dtype]
        width = about.size // 2 if about.kind == "complex" else about.size
        found = bytearray(data)
        if self._swapped:
            for at in range(width):
                found[at::width] = data[width - 1 - at :: width]
        if self._neg:
            found[width - 1 :: width] = found[width - 1 :: width].translate(FLIPPED)
        if self._conj:
            found[2 * width - 1 :: 2 * width] = found[2 * width - 1 :: 2 * width].translate(FLIPPED)
        return bytes(found)


class Sparse:
    """A sparse tensor: its layout (``sparse_coo``), its shape, and the arrays it is kept as."""

    __slots__ = ("layout", "parts", "shape")

    def __init__(self, layout: str, shape: tuple[int, ...], parts: dict[str, Array]) -> None:
        self.layout, self.shape, self.parts = layout, shape, parts

    def __repr__(self) -> str:
        return f"Sparse({self.layout}, {list(self.shape)})"


def parse_sizes(found: object) -> tuple[int, ...]:
    """A shape or strides as a file gives them; ValueError if they are none."""
    if not isinstance(found, tuple) or len(found) > DIMENSIONS:
        raise ValueError(f"sizes and strides must be a tuple of at most {DIMENSIONS} numbers")
    for number in found:
        if type(number) is not int or not 0 <= number < LARGEST:
            raise ValueError("sizes and strides must be whole numbers from 0")
    return found


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of an array whose last dimension runs fastest."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
