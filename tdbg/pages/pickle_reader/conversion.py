"""Convert pickled pages to tdbg's own, and verify them value by value."""

import math
import struct
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_short
from tdbg.pages.format.layout import UnstorableError
from tdbg.pages.format.page_writer import Item, PageWriter
from tdbg.pages.pickle_reader import pickle_pages
from tdbg.pages.pickle_reader.datapoint_tree import note_of
from tdbg.pages.pickle_reader.parsed_values import Array
from tdbg.pages.pickle_reader.pickle_pages import LegacyPages
from tdbg.pages.progress_bar import Progress
from tdbg.pages.read.page_set import Datapoint, PageSet

LONG = 1 << 16  # characters: a longer text is stored as a tensor of its bytes, a journal's record is not for it
LOST = 100  # that are told


class Stored(NamedTuple):
    """A legacy datapoint as pages hold it. lost: paths that could not be read, and why."""

    key: str | int
    items: list[Item]
    scalars: dict[str, Any]
    fields: dict[str, object]
    lost: list[str]


class Conversion:
    """Converts what lies at ``source`` into a new folder ``target``, in order, one datapoint in memory at a time.

    lost: what is not in the new pages, and why. refused: names that were not made into values, and how often; a text
    stands for each in the new pages. mismatches: what the comparison found. left_out: the datapoints, by place, that
    are not in the new pages.
    """

    def __init__(self, source: Path, target: Path, **options: Any) -> None:
        """options: those of a PageWriter. Raises TdbgError where there is nothing to convert, or the target is in use."""
        self.source, self.target, self._options = source, target, options
        self.legacy = LegacyPages.from_path(source)
        self.datapoints = self.tensors = self.nbytes = 0
        self.lost: list[str] = []
        self.mismatches: list[str] = []
        self.left_out: set[int] = set()
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise TdbgError(f"{target} already exists", "name a new folder")

    @property
    def refused(self) -> dict[str, int]:
        """What the reader did not make."""
        return self.legacy.refused

    @property
    def problems(self) -> list[str]:
        """What was wrong with the pages."""
        return self.legacy.problems

    @property
    def is_whole(self) -> bool:
        """True if all that was there is in the new pages, and found to be the same."""
        return not (self.lost or self.refused or self.problems or self.mismatches)

    def convert_and_compare(self) -> "Conversion":
        """Convert, then compare. Raises TdbgError if nothing could be read, OSError of the disk."""
        total = sum(page.stat().st_size for page in self.legacy.pages)
        with Progress("converting", total) as progress:
            self._write_pages(progress)
        if not self.datapoints:
            raise TdbgError(f"nothing could be read: {'; '.join(self._collect_reasons()) or 'there are no datapoints'}")
        with Progress("comparing", total) as progress:
            self._compare(progress)
        return self

    def _collect_reasons(self) -> list[str]:
        return [format_short(text, 400) for text in (*self.problems, *self.refused, *self.lost)][:3]

    def _write_pages(self, progress: Progress) -> None:
        with PageWriter(self.target, run=self.source.name, **self._options) as writer:
            for place, point in enumerate(self.legacy):
                found = self._prepare_datapoint(point)
                self._record_lost(*found.lost)
                try:
                    writer.add(found.key, found.items, scalars=found.scalars, **found.fields)
                except UnstorableError as error:
                    self._record_lost(f"{_describe_datapoint(point)}: {error}")
                    self.left_out.add(place)
                    continue
                self._count_stored(found, progress)

    def _count_stored(self, found: Stored, progress: Progress) -> None:
        size = sum(len(item.data) for item in found.items)
        self.datapoints += 1
        self.tensors += len(found.items)
        self.nbytes += size
        progress.advance(size)

    def _record_lost(self, *what: str) -> None:
        self.lost += what[: max(LOST - len(self.lost), 0)]

    def _prepare_datapoint(self, point: pickle_pages.PickledDatapoint) -> Stored:
        found, notes = point.build_flat_tree()
        key = point.key if type(point.key) is int or isinstance(point.key, str) else str(point.key)
        items, scalars, lost = [], {}, []
        inside = {f"{path}/{name}" for path, value in found.items() for name in _list_note_arrays(value)}
        for path, value in found.items():
            if path in inside:
                continue
            if isinstance(value, str) and len(value) > LONG:
                items.append(_build_text_item(path, value))
            elif not isinstance(value, Array):
                scalars[path] = value
            else:
                try:
                    items.append(Item(path, value.dtype, value.shape, value.load_bytes(), note_of(value)))
                except TdbgError as error:
                    lost.append(f"{_describe_datapoint(point)}, {format_short(path)}: {error}")
        noted = {item.path for item in items}  # these carry their notes themselves
        fields: dict[str, object] = {"epoch": point.epoch, "source": self._format_page_path(point.page)}
        fields["notes"] = {path: note for path, note in notes.items() if path not in noted} or None
        return Stored(key, items, scalars, fields, lost)

    def _format_page_path(self, page: Path) -> str:
        return str(page.relative_to(self.source)) if self.source in page.parents else page.name

    # afterwards

    def _compare(self, progress: Progress) -> None:
        """Read both sides again, and compare what they hold."""
        wanted = self._reread_legacy()
        with PageSet.open(self.target) as pages:
            for stored, point in zip_longest(wanted, pages):
                if stored is None or point is None:
                    self.mismatches.append(f"{'more' if stored is None else 'fewer'} datapoints than in the original")
                    return
                self.mismatches += find_differences(stored, point)[: max(LOST - len(self.mismatches), 0)]
                progress.advance(point.nbytes)
            self.mismatches += [str(problem) for problem in pages.problems if problem.grave]

    def _reread_legacy(self) -> Iterator[Stored]:
        known = LegacyPages.from_path(self.source)
        for place, point in enumerate(known):
            if place not in self.left_out:
                yield self._prepare_datapoint(point)


def _describe_datapoint(point: pickle_pages.PickledDatapoint) -> str:
    return f"{point.page}: datapoint {format_short(point.key)}"


def _list_note_arrays(value: object) -> list[str]:
    """The names of the arrays in a note: they stand in the note, and are no leaves of their own."""
    return [name for name, part in value.note.items() if isinstance(part, Array)] if isinstance(value, Array) else []


def _build_text_item(path: str, value: str) -> Item:
    data = value.encode("utf-8", "surrogatepass")
    return Item(path, "uint8", (len(data),), data, {"text": ""})


def find_differences(stored: Stored, point: Datapoint) -> list[str]:
    """Where a datapoint of the new pages is not what was to be stored; values are compared bit by bit."""
    name = f"datapoint {format_short(stored.key)}"
    found = (
        [] if (stored.key, stored.fields["epoch"]) == (point.key, point.epoch) else [f"{name}: key or epoch differs"]
    )
    items = {item.path: item for item in stored.items}
    if list(items) != list(point.tensors):
        return [*found, f"{name}: tensors differ"]
    for path, tensor in point.tensors.items():
        item = items[path]
        same = (item.dtype, item.shape, dict(item.note)) == (tensor.dtype.name, tensor.shape, dict(tensor.note))
        if not same or item.data != tensor.read():
            found.append(f"{name}: {format_short(path)} has other values")
    found += [f"{name}: {format_short(path)}" for path in _find_unequal(stored.scalars, dict(point.scalars))]
    if not _is_identical(stored.fields["notes"] or {}, point.more.get("notes") or {}):
        found.append(f"{name}: notes differ")
    return found


def _find_unequal(a: dict[str, object], b: dict[str, object]) -> list[str]:
    return [
        path for path in a.keys() | b.keys() if path not in a or path not in b or not _is_identical(a[path], b[path])
    ]


def _is_identical(a: Any, b: Any) -> bool:
    """Equal to the bit; a NaN is a NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, complex):
        return _is_identical(a.real, b.real) and _is_identical(a.imag, b.imag)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_is_identical(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_is_identical, a, b))
    return bool(a == b)
