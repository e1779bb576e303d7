"""A datapoint as a plain tree: nested dicts and lists whose leaves are arrays, numbers and text.

A page is a graph: its parts may be shared, may hold themselves, and may double their size at each level. The tree is
bounded in depth and in number, so that whoever walks over it needs no care.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tdbg.core.errors import TdbgError
from tdbg.pages.format.dtypes import DTYPES
from tdbg.pages.format.nested_outputs import build_path_steps, dict_note
from tdbg.pages.pickle_reader.byte_source import MemorySource
from tdbg.pages.pickle_reader.parsed_values import Array, Blob, Global, Named, Refused, Sparse, Storage
from tdbg.pages.pickle_reader.pickle_machine import Unbuilt

DEPTH = 64
VALUES = 1_000_000
TEXT_BYTES = 16 << 20
CHANNELS = 1 << 16  # whose scales are written out
SCALARS = (str, int, float, bool, complex, type(None))

Leaf = Array | str | int | float | bool | complex | None


class FlatTree(NamedTuple):
    """Leaves by path (``FeatureMap/stats/mean``), and by path what a leaf cannot say.

    notes: ``{"tuple": NAME}``, ``{"list": ""}``, ``{"set": ""}``, ``{"dict": ""}`` of an empty one,
    ``{"dict": {STEP: KEY}}`` of keys that are no text or hold a ``/``, ``{"bytes": ""}``,
    ``{"sparse": LAYOUT, "shape": [...]}``, ``{"refused": NAME}``, and the note of an Array.
    """

    values: dict[str, Leaf]
    notes: dict[str, dict[str, Any]]


class TreeBuilder:
    """Makes the tree of one datapoint. refuse: is told of what was left out."""

    def __init__(self, refuse: Callable[[Refused], Refused]) -> None:
        self._refuse = refuse
        self._open: set[int] = set()  # containers that are being walked through
        self._count = 0

    def build_tree(self, found: object) -> object:
        """The value with nothing shared in it; a Refused where it would be too deep, too large, or without an end."""
        while isinstance(found, Unbuilt):
            found = found.value
        self._count += 1
        if isinstance(found, SCALARS):
            return found
        if isinstance(found, Blob):
            return self._decode_text(found) if found.text else Bytes.from_data(found.size, found)
        if isinstance(found, bytes):
            return Bytes.from_data(len(found), found)
        if isinstance(found, Global):
            return str(found)
        if isinstance(found, Storage):
            return Array(found, "uint8", (found.nbytes,))
        if isinstance(found, dict | list | tuple | set | frozenset | Refused):
            return self._build_container(found)
        return found  # Array, Sparse

    def _build_container(self, found: object) -> object:
        if self._full:
            return self._left_out(f"more than {VALUES} values")
        if id(found) in self._open:
            return self._left_out("it contains itself")
        if len(self._open) >= DEPTH:
            return self._left_out(f"it is nested more than {DEPTH} levels deep")
        self._open.add(id(found))
        try:
            return self._build_children(found)
        finally:
            self._open.remove(id(found))

    @property
    def _full(self) -> bool:
        return self._count > VALUES

    def _build_children(self, found: Any) -> object:
        if isinstance(found, dict):
            return {
                _normalize_key(key): self.build_tree(value) for key, value in self._iter_within_limit(found.items())
            }
        if isinstance(found, Refused):
            return Refused(found.module, found.name, found.why, list(self._iter_built(found.parts)))
        if isinstance(found, set | frozenset):
            return frozenset(_normalize_key(item) for item in self._iter_within_limit(found))
        if isinstance(found, Named):
            return Named.from_values(found.type_name, tuple(self._iter_built(found)))
        return type(found)(self._iter_built(found))

    def _iter_built(self, items: Iterable[object]) -> Iterator[object]:
        for item in self._iter_within_limit(items):
            yield self.build_tree(item)

    def _iter_within_limit(self, items: Iterable[object]) -> Iterator[Any]:
        """The items, as long as there is room in the tree."""
        for item in items:
            if self._full:
                self._left_out(f"more than {VALUES} values")
                return
            yield item

    def _decode_text(self, found: Blob) -> object:
        if found.size > TEXT_BYTES:
            return self._left_out(f"text of {found.size} bytes")
        self._count += found.size >> 8
        return found.load_bytes().decode("utf-8", "replace")

    def _left_out(self, why: str) -> Refused:
        return self._refuse(Refused("pickle", "value", why))


class Bytes(Array):
    """Plain bytes of a page, as an array of uint8."""

    __slots__ = ()

    @classmethod
    def from_data(cls, size: int, data: bytes | Blob) -> "Bytes":
        source, offset = (MemorySource(data), 0) if isinstance(data, bytes) else (data.source, data.offset)
        return cls(Storage("uint8", size, source, offset), "uint8", (size,), note={"bytes": ""})


def _normalize_key(found: object) -> object:
    return str(found) if isinstance(found, Global | Refused | bytes) else found


def flatten_outputs(outputs: Any) -> FlatTree:
    """The leaves of a datapoint's outputs, each under its path. A path that two of them have is told apart by ``~2``."""
    flat = FlatTree({}, {})
    _flatten_value(outputs, "", flat)
    return flat


def _flatten_value(found: Any, path: str, flat: FlatTree) -> None:
    if isinstance(found, Sparse):
        note: dict[str, object] = {"sparse": found.layout, "shape": list(found.shape)}
        children: Iterable[tuple[object, object]] = found.parts.items()
    elif isinstance(found, dict):
        keys = build_path_steps(found)
        note, children = dict_note(keys), ((step, found[key]) for step, key in keys.items())
    elif isinstance(found, tuple):
        note, children = {"tuple": getattr(found, "type_name", "")}, enumerate(found)
    elif isinstance(found, list):
        note, children = {"list": ""}, enumerate(found)
    elif isinstance(found, frozenset):
        note, children = {"set": ""}, enumerate(sorted(found, key=repr))
    elif isinstance(found, Refused):
        note, children = {"refused": found.label}, enumerate(found.parts)
        flat.values[path] = str(found)
    else:
        flat.values[path] = found
        note = dict(found.note) if isinstance(found, Array) else {}
        children = [(key, value) for key, value in note.items() if isinstance(value, Array)]  # scales of the channels
        note = {key: value for key, value in note.items() if not isinstance(value, Array)}
    if note:
        flat.notes[path] = note
    for step, value in children:
        _flatten_value(value, f"{path}/{step}" if path else str(step), flat)


def note_of(found: Array) -> dict[str, object]:
    """The note of an array as pages hold it: the scales of its channels as lists. Raises TdbgError for too many."""
    return {key: _list_numbers(value) if isinstance(value, Array) else value for key, value in found.note.items()}


def _list_numbers(found: Array) -> list[object]:
    from tdbg.pages.read import tensor_values

    if found.value_count > CHANNELS:
        raise TdbgError(f"{found.value_count:,} channels with separate scales are too many", "it is not converted")
    return tensor_values.decode_numbers(found.load_bytes(), DTYPES[found.dtype], found.shape)
