"""A datapoint and its tensors, whose bytes are read on demand."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_count
from tdbg.pages.format.dtypes import Dtype
from tdbg.pages.format.file_format import unmark_value
from tdbg.pages.format.layout import LARGEST, Layout
from tdbg.pages.read.page_folder import PageFile

if TYPE_CHECKING:
    import numpy

READ_LIMIT = 4 << 30  # bytes that one call reads: a file with a hole may claim any size
PLACE = {"t": str, "key": str, "seq": int, "page": int, "base": int, "length": int, "layout": int, "crc": int}
FIELDS = {"step": int, "epoch": int, "phase": str, "scalars": dict, "stats": dict}
LISTS = {"flags": list, "keys": list, "split": list, "refused": list}
TYPES: dict[str, type] = {**PLACE, **FIELDS, **LISTS}
OPTIONAL = frozenset(TYPES) - {"key", "seq", "base", "length"}  # may be null too


class Tensor:
    """One stored tensor. dtype: of the table in `tdbg.pages.format.dtypes`. shape: torch's. note: scale, zero point and such."""

    __slots__ = ("_page", "at", "dtype", "nbytes", "note", "path", "shape")

    def __init__(
        self,
        path: str,
        dtype: Dtype,
        shape: tuple[int, ...],
        note: Mapping[str, object],
        page: PageFile,
        at: int,
        nbytes: int,
    ) -> None:
        self.path, self.dtype, self.shape, self.note = path, dtype, shape, note
        self.nbytes = nbytes
        self.at = at  # where it begins in its page's file
        self._page = page

    def __repr__(self) -> str:
        return f"<Tensor {self.path} {self.dtype.name}{list(self.shape)}>"

    def read(self) -> bytes:
        """All its bytes, with one read. Raises TdbgError where they are not there, or more than 4 GB."""
        return self.read_range(0, self.nbytes)

    def read_range(self, start: int, stop: int) -> bytes:
        """The bytes from ``start`` up to ``stop`` of them. Raises what `read` raises."""
        start, stop = max(start, 0), min(stop, self.nbytes)
        if stop - start > READ_LIMIT:
            raise TdbgError(
                f"{self.path} in {self._page.path} has {self.nbytes:,} bytes, too many to read at once",
                "look at a slice of it",
            )
        return self._page.read_range(self.at + start, stop - start) if stop > start else b""

    def chunks(self, size: int = 16 << 20) -> Iterator[bytes]:
        """All its bytes in pieces of whole elements, each of at most ``size`` bytes. Raises what `read` raises."""
        size = max(size // self.dtype.size, 1) * self.dtype.size
        for start in range(0, self.nbytes, size):
            yield self.read_range(start, start + size)

    def row(self, index: int) -> "Tensor":
        """One row along the first dimension, as a tensor of its own; nothing is read. Raises TdbgError if there is none."""
        rows = self.shape[0] if self.shape else 0
        if not 0 <= index < rows:
            raise TdbgError(
                f"{self.path} of shape {list(self.shape)} has no row {index}", f"it has {format_count(rows, 'row')}"
            )
        nbytes, rest = divmod(self.nbytes, rows)
        if rest or (self.dtype.counts_values and self.nbytes // rows * self.dtype.packed != math.prod(self.shape[1:])):
            raise TdbgError(f"a row of {self.path} does not start on a byte boundary", "read the whole tensor")
        return Tensor(
            self.path,
            self.dtype,
            self.shape[1:],
            _note_of_row(self.note, index),
            self._page,
            self.at + index * nbytes,
            nbytes,
        )

    def check_size(self) -> None:
        """Raises TdbgError where the page does not hold all its bytes; nothing is read."""
        size = self._page.get_size()
        if self.at + self.nbytes > size:
            raise TdbgError(
                f"{self._page.path} has {size:,} bytes, but should have at least {self.at + self.nbytes:,}",
                "it was cut off; `tdbg inspect-pages verify` shows what it still holds",
            )

    def read_row(self, index: int) -> bytes:
        """The bytes of one row along the first dimension, and no others. Raises TdbgError."""
        return self.row(index).read()

    def numbers(self) -> list[object]:
        """Its values as Python numbers, in row order. For small tensors: about 1 us an element."""
        from tdbg.pages.read import tensor_values

        return tensor_values.decode_numbers(self.read(), self.dtype, self.shape, self.note)

    def array(self) -> "numpy.ndarray[Any, Any]":
        """Its values as a numpy array, widened where numpy has no such type (see `tdbg.pages.read.tensor_values.array`)."""
        from tdbg.pages.read import tensor_values

        return tensor_values.decode_array(self.read(), self.dtype, self.shape, self.note)


def _note_of_row(note: Mapping[str, Any], index: int) -> Mapping[str, object]:
    """What a note about a tensor says of one row: of scales along an axis its own, or one axis less."""
    axis = note.get("axis")
    if type(axis) is not int:
        return note
    if axis > 0:
        return {**note, "axis": axis - 1}
    left = {name: value for name, value in note.items() if name not in ("axis", "scales", "zero_points")}
    try:
        return {**left, "scale": note["scales"][index], "zero_point": note["zero_points"][index]}
    except (LookupError, TypeError):
        raise TdbgError("the scales of a quantised tensor are incomplete", "run `tdbg inspect-pages verify`") from None


class Datapoint:
    """What was captured at once. key: the program's name for it. seq: its number among those of its writer.

    writer: the name of its journal. page: the number of its page, None if it has scalars alone. row: which row this is
    of a batch that is stored once, else None. Texts are as they were captured: not safe for a terminal.
    """

    __slots__ = (
        "_layout",
        "_page",
        "_record",
        "_tensors",
        "base",
        "folder_epoch",
        "key",
        "length",
        "page",
        "rank",
        "row",
        "seq",
        "writer",
    )

    def __init__(
        self, record: dict[str, Any], layout: Layout | None, page: PageFile | None, rank: int, writer: str, marks: bool
    ) -> None:
        """Raises ValueError for a record that cannot be true. marks: it holds values that JSON has no word for."""
        for name, value in record.items():  # what is done here is done for each datapoint of a listing
            usual = TYPES.get(name)
            if usual is not type(value):
                _check_other(name, value)
            elif type(value) is list:
                _check_list(name, value)
        self.rank, self.writer = rank, writer
        self.row: int | None = None
        self.folder_epoch: int | None = None  # that of the folder ``epoch_N`` its page lies in
        self._tensors: dict[str, Tensor] | None = None
        self._layout, self._page, self._record = layout, page, record
        try:
            self.key: str | int = record["key"]
            self.seq: int = record["seq"]
        except KeyError:
            raise ValueError("it has no key or no sequence number") from None
        self.page: int | None = None
        self.base = self.length = 0
        if layout is not None:
            self.page, self.base, self.length = record["page"], record.get("base", -1), record.get("length", -1)
            if self.base < 0 or self.length != layout.length or self.base > LARGEST:
                raise ValueError("its position does not match its layout")
        if self.seq < 0 or self.seq > LARGEST:
            raise ValueError("its sequence number is out of range")
        if marks:
            self._unmark_record()

    def _unmark_record(self) -> None:
        self._record = {name: value if name in PLACE else unmark_value(value) for name, value in self._record.items()}
        if not all(isinstance(self._record.get(name), dict | None) for name in ("scalars", "stats")):
            raise ValueError("its scalars are not a JSON object")

    @property
    def step(self) -> int:
        """The step it was captured in."""
        return self._record.get("step") or 0

    @property
    def epoch(self) -> int | None:
        """The epoch, as the writer knew it, else that of the folder."""
        found: int | None = self._record.get("epoch")
        return self.folder_epoch if found is None else found

    @property
    def phase(self) -> str:
        """train, eval, or what the program calls it; may be empty."""
        return self._record.get("phase") or ""

    @property
    def scalars(self) -> Mapping[str, Any]:
        """Numbers, texts and small structures by path; of a row, its own where they are split."""
        found: dict[str, Any] = self._record.get("scalars") or {}
        if self.row is None:
            return found
        split = ((path, found.get(path)) for path in self.split)
        return {**found, **{p: rows[self.row] for p, rows in split if isinstance(rows, list) and len(rows) > self.row}}

    @property
    def stats(self) -> Mapping[str, object]:
        """What was worked out when it was captured, by path."""
        return self._record.get("stats") or {}

    @property
    def flags(self) -> list[str]:
        """Marks of the writer, such as that a layer did not run."""
        return self._record.get("flags") or []

    @property
    def keys(self) -> list[str | int] | None:
        """Of a batch that is stored once, the id of each row."""
        return self._record.get("keys")

    @property
    def split(self) -> list[str]:
        """The paths whose first dimension is the rows of the batch."""
        return self._record.get("split") or []

    @property
    def refused(self) -> list[str]:
        """What could not be stored, as ``path: why``."""
        return self._record.get("refused") or []

    @property
    def crc(self) -> int | None:
        """CRC-32 of its bytes in the page, gaps included; None if the writer made none."""
        return self._record.get("crc")

    @property
    def more(self) -> Mapping[str, object]:
        """Whatever else the writer told."""
        return {name: value for name, value in self._record.items() if name not in TYPES}

    def __repr__(self) -> str:
        return f"<Datapoint {self.key!r} rank {self.rank} number {self.seq}>"

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """By path, in the order they were captured in; nothing is read."""
        if self._tensors is None:
            self._tensors = self._build_tensors()
        return self._tensors

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors; of a row, the whole batch's. No tensor is looked at."""
        return sum(piece.length for piece in self._layout.pieces) if self._layout else 0

    @property
    def layout(self) -> Layout | None:
        """What its tensors are and where they lie; None if it has none."""
        return self._layout

    @property
    def file(self) -> PageFile | None:
        """The page it lies in; None if it has scalars alone."""
        return self._page

    def chunks(self, size: int = 16 << 20) -> Iterator[bytes]:
        """All its bytes in its page, gaps included, piece by piece: what its checksum is of. Raises TdbgError."""
        for start in range(0, self.length if self._page else 0, size):
            assert self._page is not None
            yield self._page.read_range(self.base + start, min(size, self.length - start))

    def rows(self) -> Iterator["Datapoint"]:
        """Itself; of a batch that is stored once, a datapoint for each row, with the row's own key."""
        if self.keys is None:
            yield self
            return
        for index in range(len(self.keys)):
            yield self.of_row(index)

    def of_row(self, index: int) -> "Datapoint":
        """The datapoint of one row of a batch: what is split gives that row, the rest is the batch's."""
        assert self.keys is not None
        found = Datapoint.__new__(Datapoint)
        for name in Datapoint.__slots__:
            setattr(found, name, getattr(self, name))
        found.key, found.row, found._tensors = self.keys[index], index, None
        return found

    def _build_tensors(self) -> dict[str, Tensor]:
        if self._layout is None or self._page is None:
            return {}
        page, base = self._page, self.base
        found = {
            path: Tensor(path, dtype, shape, note, page, base + offset, length)
            for path, dtype, shape, offset, length, note in self._layout.pieces
        }
        if self.row is None:
            return found
        split = set(self.split)
        return {path: tensor.row(self.row) if path in split else tensor for path, tensor in found.items()}


def _check_other(name: str, value: object) -> None:
    """A field that is not of the usual type: ValueError, unless it may be missing, is unknown, or is a key."""
    usual = TYPES.get(name)
    if usual is None or (value is None and name in OPTIONAL) or (name == "key" and type(value) is int):
        return
    raise ValueError(f"its {name} is not of type {usual.__name__}")


def _check_list(name: str, found: list[object]) -> None:
    if not all(isinstance(item, str) or (name == "keys" and type(item) is int) for item in found):
        raise ValueError(f"its {name} are of a wrong type")
