"""The datapoints of one writer: from its journal, or from a sealed page whose journal is missing."""

import json
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from tdbg.core.errors import TdbgError
from tdbg.pages.format import header, layout, manifest
from tdbg.pages.format.dtypes import BY_STORED, DTYPES
from tdbg.pages.format.file_format import (
    DATAPOINT,
    FORMAT,
    JOURNAL_NAME,
    MARK,
    PAGE_NAME,
    decode_json,
    encode_json,
    encode_read_json,
    page_name,
)
from tdbg.pages.format.journal import Frames
from tdbg.pages.format.layout import Layout, Piece, is_whole_number
from tdbg.pages.read.datapoint import Datapoint
from tdbg.pages.read.page_folder import Folder, PageFile, epoch_of

LAYOUTS = 256  # kept; others are read again
PROBLEMS = 1000
_MARK = MARK.encode()


class Problem(NamedTuple):
    """Something that is not as it should be. grave: what was captured is lost, or cannot be trusted."""

    path: PurePath
    text: str
    grave: bool = True

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class Problems(list[Problem]):
    """Those that were met, each once, and not without end."""

    def report(self, path: PurePath, text: str, *, grave: bool = True) -> None:
        """Note one."""
        found = Problem(path, text, grave)
        if len(self) < PROBLEMS and found not in self[-50:]:
            self.append(found)


class Drop(NamedTuple):
    """Datapoints that the writer left out: how many, and why. first, last: their steps, where known."""

    rank: int
    datapoints: int
    reason: str
    first: int | None
    last: int | None


class Source(ABC):
    """One writer's datapoints, in order. opened: the first record of its journal."""

    def __init__(self, folder: Folder, name: str, rank: int, problems: Problems) -> None:
        self.folder, self.name, self.rank = folder, name, rank
        self.path = folder.path / name
        self.problems = problems
        self.opened: dict[str, Any] = {}
        self.writer = name.removesuffix(".journal")  # the name of its journal, without the ending
        self.number = -1  # of its one page
        self.epoch = epoch_of(folder.path)
        self._files: dict[int, PageFile] = {}

    @property
    def order(self) -> tuple[int, str, float, str, int]:
        """Sort key: ranks in order, of one rank folder by folder, writers by the time they began, then pages."""
        began = self.opened.get("time")
        time = float(began) if isinstance(began, int | float) and abs(began) < 1e12 else 0.0
        return self.rank, str(self.folder.path), time, self.writer, self.number

    def __iter__(self) -> Iterator[Datapoint]:
        return (datapoint for datapoint, _ in self.with_bodies())

    @abstractmethod
    def with_bodies(self) -> Iterator[tuple[Datapoint, bytes]]:
        """Each datapoint and its record's JSON text."""

    @abstractmethod
    def iter_containing(self, needles: Iterable[bytes]) -> Iterator[Datapoint]:
        """Those whose records hold one of these texts."""

    def get_page_file(self, number: int) -> PageFile:
        """The file of one page."""
        found = self._files.get(number)
        if found is None:
            names = (page_name(self.rank, number, sealed=sealed) for sealed in (True, False))
            found = self._files[number] = PageFile(self.folder, *names)
        return found

    def _build_datapoint(
        self, record: dict[str, object], layouts: Callable[[object], Layout], text: bytes
    ) -> Datapoint:
        """Raises ValueError for a record that cannot be true."""
        found = record.get("layout")
        if found is None:
            return self._assign_epoch(Datapoint(record, None, None, self.rank, self.writer, _MARK in text))
        number: object = record.get("page")
        page = (
            self._files.get(number) or self.get_page_file(number)
            if type(number) is int and 0 <= number < 10**12
            else None
        )
        if page is None:
            raise ValueError("it has no page number")
        return self._assign_epoch(Datapoint(record, layouts(found), page, self.rank, self.writer, _MARK in text))

    def _assign_epoch(self, found: Datapoint) -> Datapoint:
        found.folder_epoch = self.epoch
        return found


class JournalSource(Source):
    """The datapoints of a journal. Their records are read when they are asked for, the others at once.

    pages: where the data of each page begin. sealed: size by page. drops: what the writer left out. ended: it closed
    the journal, and what it said last.
    """

    def __init__(self, folder: Folder, name: str, problems: Problems) -> None:
        """Raises TdbgError where it cannot be read, or is of another version."""
        found = JOURNAL_NAME.fullmatch(name)
        super().__init__(folder, name, int(found[1]) if found else 0, problems)
        try:
            self.frames = Frames(lambda offset, length: folder.read_range(name, offset, length), folder.get_size(name))
        except FileNotFoundError:
            raise TdbgError(f"{self.path} is gone", "try again") from None
        self.pages: dict[int, int] = {}
        self.sealed: dict[int, int] = {}
        self.drops: list[Drop] = []
        self.ended: dict[str, object] | None = None
        self._layouts: dict[int, int] = {}  # id -> frame
        self._read: OrderedDict[int, Layout] = OrderedDict()
        self._odd: list[int] = []  # datapoints whose records do not begin as ours do
        for index in self.frames.others:
            self._index_record(index)
        others = set(self.frames.others).difference(self._odd)
        self._datapoints = [index for index in range(len(self.frames)) if index not in others]
        self.broken = self.frames.left > 0 and not self._is_cut_short()  # and not only in its last record
        if self.frames.left:
            self._report_problem(f"ends in {self.frames.left:,} bytes of an incomplete record", grave=self.broken)
        if not self.opened and len(self.frames):
            self._report_problem("does not begin with the record of its writer")

    def __len__(self) -> int:
        return len(self._datapoints)

    def with_bodies(self) -> Iterator[tuple[Datapoint, bytes]]:
        for index in self._datapoints:
            body = self.frames.read_body(index)
            found = self._parse_datapoint(index, body)
            if found is not None:
                yield found, body

    def iter_containing(self, needles: Iterable[bytes]) -> Iterator[Datapoint]:
        """Those whose records hold one of these texts, or may hold it in another spelling."""
        wanted = tuple(needles)
        for index in self._datapoints:
            body = self.frames.read_body(index)
            if any(needle in body for needle in wanted) or not body.startswith(DATAPOINT):
                found = self._parse_datapoint(index, body)
                if found is not None:
                    yield found

    def last_seq(self) -> int:
        """The number of the last datapoint; -1 if there is none."""
        for index in reversed(self._datapoints):
            found = self._parse_datapoint(index, self.frames.read_body(index))
            if found is not None:
                return found.seq
        return -1

    def load_layout(self, id: object) -> Layout:
        """A layout of this journal. Raises ValueError if it has none of this id, or one that cannot be true."""
        found = self._read.get(id) if type(id) is int else None
        if found is None:
            if type(id) is not int or id not in self._layouts:
                raise ValueError("its layout is not in the journal")
            found = self._read[id] = layout.parse_layout(self.frames.read_record(self._layouts[id]))
            if len(self._read) > LAYOUTS:
                self._read.popitem(last=False)
        return found

    def _parse_datapoint(self, index: int, body: bytes) -> Datapoint | None:
        try:
            record = decode_json(body)
            if not isinstance(record, dict):
                raise ValueError("it is not a JSON object")
            return self._build_datapoint(record, self.load_layout, body)
        except (ValueError, RecursionError) as error:
            self._report_problem(f"the datapoint at byte {self.frames.starts[index]:,} cannot be read: {error}")
            return None

    def _index_record(self, index: int) -> None:
        """A record that is no datapoint."""
        try:
            record = self.frames.read_record(index)
            kind = record.get("t")
            if kind == "dp":
                self._odd.append(index)
            elif kind == "layout" and is_whole_number(record.get("id")):
                self._layouts.setdefault(record["id"], index)
            elif kind == "open" and index == 0:
                manifest.check_version(record.get("version"), self.path)
                self.opened = record
            elif kind == "page" and is_whole_number(record.get("page")) and is_whole_number(record.get("data")):
                self.pages[record["page"]] = record["data"]
            elif kind == "seal" and is_whole_number(record.get("page")) and is_whole_number(record.get("size")):
                self.sealed[record["page"]] = record["size"]
            elif kind == "drop" and is_whole_number(record.get("count")):
                self._record_drop(record)
            elif kind == "end":
                self.ended = record
            elif kind in ("layout", "page", "seal", "drop"):
                raise ValueError(f"a {kind} record is incomplete")
        except ValueError as error:
            self._report_problem(f"the record at byte {self.frames.starts[index]:,} cannot be read: {error}")

    def _record_drop(self, record: Mapping[str, Any]) -> None:
        first, last = (step if is_whole_number(step := record.get(name)) else None for name in ("first", "last"))
        self.drops.append(Drop(self.rank, record["count"], str(record.get("reason", ""))[:500], first, last))

    def _is_cut_short(self) -> bool:
        """True if what is left can be the beginning of one record: what a kill leaves, or a writer at work."""
        start = self.folder.read_range(self.name, self.frames.end, 8)
        return len(start) < 8 or int.from_bytes(start[:4], "little") + 8 > self.frames.left

    def _report_problem(self, text: str, *, grave: bool = True) -> None:
        self.problems.report(self.path, text, grave=grave)


class SealedSource(Source):
    """The datapoints of one sealed page, out of its own header; of a plain safetensors file, one with all tensors.

    data: where its header ends. first: where the writer began with tensors. number: of the page; -1 of a file of another
    name. after: the datapoints up to this number are left out.
    """

    def __init__(self, folder: Folder, name: str, problems: Problems, after: int = -1) -> None:
        """Raises TdbgError where it cannot be read, is not whole, or is of another version."""
        found = PAGE_NAME.fullmatch(name)
        super().__init__(folder, name, int(found[1]) if found else 0, problems)
        self.number = int(found[2]) if found else -1
        self.file = PageFile(folder, name)
        self.size = self.file.get_size()
        self.after = after
        self.met: set[str] = set()  # the tensors of the header that a record names
        try:
            length = header.length_of(self.file.read_range(0, min(8, self.size)), self.size)
            self.metadata, self.tensors = header.parse_header(self.file.read_range(8, length), self.size)
            self.data = 8 + length
            self.ours = self.metadata.get("format") == FORMAT
            if self.ours:
                self._load_header()
        except ValueError as error:
            raise TdbgError(f"{self.path}: {error}", "it is not a safetensors file, or was cut off") from None

    def get_page_file(self, number: int) -> PageFile:
        """Itself."""
        return self.file

    def iter_containing(self, needles: Iterable[bytes]) -> Iterator[Datapoint]:
        """All of them, whatever their records hold."""
        return iter(self)

    def with_bodies(self) -> Iterator[tuple[Datapoint, bytes]]:
        if not self.ours:
            yield self._build_plain_datapoint(), b""
            return
        for record in self.records:
            try:
                found = self._build_datapoint(record, self._find_layout, _MARK)
            except (ValueError, RecursionError) as error:
                self.problems.report(self.path, f"a datapoint of its header cannot be read: {error}")
                continue
            if found.seq > self.after:
                yield found, encode_read_json(record)

    def _load_header(self) -> None:
        major = self.metadata.get("version", "").partition(".")[0]
        manifest.check_version({"major": int(major) if major.isdecimal() else major}, self.path)
        opened, records, layouts = (self._decode_metadata(name) for name in ("opened", "datapoints", "layouts"))
        if not isinstance(records, list) or not isinstance(layouts, list):
            raise ValueError("its header holds no datapoints")
        self.opened = opened if isinstance(opened, dict) else {}
        first, writer = self._decode_metadata("data"), self._decode_metadata("writer")
        self.first = first if is_whole_number(first) and self.data <= first <= self.size else self.data
        self.writer = writer if isinstance(writer, str) else self.path.stem
        if is_whole_number(self.opened.get("rank")):
            self.rank = self.opened["rank"]
        self.records = [record for record in records if isinstance(record, dict)]
        found = [layout.parse_layout(record) for record in layouts if isinstance(record, dict)]
        self.layouts = {one.id: one for one in found}

    def _decode_metadata(self, name: str) -> object:
        return decode_json(self.metadata.get(name, "null"))

    def _find_layout(self, id: object) -> Layout:
        found = self.layouts.get(id) if is_whole_number(id) else None
        if found is None:
            raise ValueError("its layout is not in the header")
        return found

    def _build_plain_datapoint(self) -> Datapoint:
        pieces = [
            piece for name, stored in self.tensors.items() if (piece := self._build_piece(name, stored)) is not None
        ]
        record = {"key": self.path.stem, "seq": 0, "page": 0, "base": 0, "length": self.size}
        more: dict[str, Any] = {"metadata": self.metadata} if self.metadata else {}
        step, rank = (_parse_number(self.metadata.get(name)) for name in ("step", "rank"))
        if step is not None:  # as a batch that `tdbg run` saved says
            more["step"] = step
        whole_file = Layout(0, pieces, self.size)
        return self._assign_epoch(
            Datapoint(
                {**record, **more}, whole_file, self.file, self.rank if rank is None else rank, self.writer, False
            )
        )

    def _build_piece(self, name: str, stored: header.Stored) -> Piece | None:
        shape, dtype = stored.shape, BY_STORED.get(stored.dtype)
        if stored.dtype == "F4" and shape and not shape[-1] % 2:  # torch counts pairs
            shape, dtype = (*shape[:-1], shape[-1] // 2), DTYPES["float4_e2m1fn_x2"]
        if dtype is None or dtype.count_bytes(shape) != stored.end - stored.begin:
            self.problems.report(self.path, f"{name!r} has an unknown dtype, {stored.dtype[:40]}")
            return None
        return Piece(name, dtype, shape, stored.begin, stored.end - stored.begin)


def encode_needles(key: str | int) -> tuple[bytes, ...]:
    """How a key may stand in a record."""
    text = str(key)
    found = [encode_json(text), json.dumps(text).encode()]
    if text.lstrip("-").isdecimal():
        found.append(text.encode())
    return tuple(dict.fromkeys(found))


def _parse_number(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 16 else None
