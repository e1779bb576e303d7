"""Writes datapoints to pages, safely enough that a killed process loses none it has acknowledged.

Standard library alone: it runs inside a training rank. The data of a datapoint are written first, then its record in
the journal; without the record they do not exist. Nothing is buffered here, and no tensor is copied.
"""

import errno
import json
import os
import socket
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.core.guard import undo_on_error
from tdbg.core.tables import format_count
from tdbg.pages.format import datapoint_record, disk, manifest
from tdbg.pages.format.file_format import ALIGN, HEADER_LIMIT, MAJOR, MINOR, align_offset, journal_name
from tdbg.pages.format.header import Entries, Placed, bound_header_growth
from tdbg.pages.format.journal import HEAD, JournalFile, encode_frame, frame_body
from tdbg.pages.format.layout import NO_NOTE, Layout, Spec, UnstorableError
from tdbg.pages.format.open_page import OpenPage, least_header_bytes
from tdbg.version import __version__

LAYOUTS = 256  # kept; a structure that comes back later is laid out and recorded again
HEADER_BYTES = 1 << 20
LEAST_HEADER_BYTES = 16 << 10
LAST_WORDS_BYTES = 4096  # of a budget: for the records of drops, seals and the end
PAGE_RECORDS_BYTES = 256  # those of a page's beginning and of its seal
ZEROS = memoryview(bytes(ALIGN))


class BudgetExceeded(TdbgError):
    """The next datapoint would cross the writer's budget; nothing of it was written."""


class Item(NamedTuple):
    """One tensor of a datapoint. dtype: torch's name. data: its bytes in row order, in anything that lies in one piece."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    data: Any
    note: Mapping[str, object] = NO_NOTE


class PageWriter:
    """Writes what one process captures into a folder; safe to call from several threads.

    run: names the run; a folder of another is refused. page_bytes: the size of a page, honoured to one datapoint.
    header_bytes: of it, kept free for the header. durable: survive a power failure too: data and record are on the
    disk when `add` returns. checksums: a CRC-32 of each datapoint's data in its record; with ``durable`` they are the
    default. budget_bytes: of all this writer writes, header room included.

    Raises TdbgError for a folder of another run or version, OSError for one that cannot be read. Files are made with
    the first datapoint, or by `prepare_journal`. In a forked child the writer begins files of its own.
    OSError of the disk reaches the caller: what was acknowledged before is safe, the datapoint at hand is not stored,
    and the next one may be tried.
    """

    def __init__(
        self,
        folder: Path,
        *,
        run: str = "",
        rank: int = 0,
        world_size: int = 1,
        page_bytes: int = 100_000_000,
        header_bytes: int | None = None,
        durable: bool = False,
        checksums: bool | None = None,
        budget_bytes: int | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.run, self.rank, self.world_size = run, rank, world_size
        self.page_bytes, self.budget_bytes = page_bytes, budget_bytes
        self.durable = durable
        self.checksums = durable if checksums is None else checksums
        usual = min(page_bytes, budget_bytes or page_bytes) // 64
        self._header_bytes = header_bytes or min(max(usual, LEAST_HEADER_BYTES), HEADER_BYTES)
        manifest.check_run(self.folder, run)
        self._reset_state()

    def _reset_state(self) -> None:
        """Nothing is written yet: at the beginning, and in a forked child."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._journal: JournalFile | None = None
        self._page: OpenPage | None = None
        self._layouts: OrderedDict[Any, Layout] = OrderedDict()  # by structure
        self._recorded: OrderedDict[int, Entries] = OrderedDict()  # layouts that the journal knows
        self._about: dict[str, object] = {}
        self._earlier_bytes = 0  # of the manifest and the files that are closed
        self._closed = False
        self.seq = 0  # of the next datapoint
        self.dropped = 0

    @property
    def written_bytes(self) -> int:
        """What the writer's files hold, header room included."""
        page = self._page.end if self._page else 0
        return self._earlier_bytes + page + (self._journal.end if self._journal else 0)

    def prepare_journal(self) -> None:
        """Make the folder and the journal now, and not with the first datapoint. Raises OSError and TdbgError."""
        self._detach_after_fork()
        with self._lock:
            self._ensure_journal()

    def plan_layout(self, specs: Sequence[Spec | tuple[Any, ...]]) -> Layout:
        """Where the tensors of one structure go, for `add_flat`: (path, dtype, shape) or with a note, of each.

        The same structure gets the same layout again. Raises UnstorableError.
        """
        self._detach_after_fork()
        return self._layout_of(tuple((path, dtype, tuple(shape), *note) for path, dtype, shape, *note in specs))

    def add(self, key: str | int, items: Sequence[Item], **fields: object) -> int:
        """Store one datapoint, and return its number once it is safe from a kill.

        items: may be empty, where there are scalars alone. fields: those of `add_flat`.
        Raises UnstorableError for what cannot be stored, BudgetExceeded, OSError; then nothing of it is stored.
        Cost: about 1 us a tensor, one write of all data, one of the record.
        """
        self._detach_after_fork()
        if not items:
            return self._write_datapoint(key, None, [], fields)
        structure: tuple[Any, ...] = tuple([(item[0], item[1], tuple(item[2])) for item in items])
        if any(item[4] for item in items):
            structure = tuple([(*spec, item[4]) for spec, item in zip(structure, items, strict=True)])
        layout = self._layout_of(structure)
        return self._write_datapoint(key, layout, _collect_bytes(layout, items), fields)

    def add_flat(self, key: str | int, layout: Layout, buffer: object, **fields: object) -> int:
        """Store one datapoint out of a buffer in which its tensors lie at the layout's offsets, with one write.

        buffer: at least ``layout.length`` bytes, gaps included. fields: scalars (path -> number, text, list ...), keys
        (the id of each row, of a batch that is stored once), split (paths whose first dimension is the rows), step,
        epoch, phase, stats, flags, and whatever else JSON can hold. Raises what `add` raises.
        """
        self._detach_after_fork()
        try:
            data = disk.view_bytes(buffer)
        except (TypeError, ValueError) as error:
            raise UnstorableError(f"the buffer of {key!r}: {error}") from None
        if len(data) < layout.length:
            raise UnstorableError(f"the buffer of {key!r} has {len(data):,} bytes, its layout needs {layout.length:,}")
        return self._write_datapoint(key, layout, [data[: layout.length]], fields)

    def record_drop(self, count: int, reason: str, first: int | None = None, last: int | None = None) -> None:
        """Record that datapoints were not stored. first, last: their steps. Raises OSError."""
        self._detach_after_fork()
        with self._lock:
            self.dropped += count
            journal = self._ensure_journal()
            found = encode_frame({"t": "drop", "count": count, "reason": reason[:500], "first": first, "last": last})
            if self.budget_bytes is None or self.written_bytes + len(found) + 512 <= self.budget_bytes:
                journal.append_frames(found)  # else the number alone stands in the last record

    def flush(self) -> None:
        """Wait until all that was acknowledged is on the disk. Raises OSError."""
        self._detach_after_fork()
        with self._lock:
            if self._page:
                self._page.sync()
            if self._journal:
                self._journal.sync()

    def seal(self) -> None:
        """Seal the page now; the next datapoint begins another. Raises OSError; the page stays readable."""
        self._detach_after_fork()
        with self._lock:
            self._seal_page()

    def close(self) -> None:
        """Seal the page and end the journal. Raises OSError if that fails; the files are closed then all the same."""
        if self._pid != os.getpid():
            return  # the files are the parent's
        with self._lock:
            self._closed = True
            try:
                self._seal_page()
                if self._journal:
                    self._journal.append_frames(
                        encode_frame({"t": "end", "dropped": self.dropped}), durable=self.durable
                    )
            finally:
                journal, self._journal = self._journal, None
                if journal:
                    self._earlier_bytes += journal.end
                    journal.close()

    def __enter__(self) -> "PageWriter":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _detach_after_fork(self) -> None:
        """In a forked child, leave the parent's files alone and begin anew."""
        if self._pid == os.getpid():
            return
        for file in (self._page, self._journal):
            if file:
                file.close()
        self._reset_state()

    def _ensure_journal(self) -> JournalFile:
        if self._closed:
            raise TdbgError("the page writer is closed", "make a new one for the same folder")
        if self._journal is None:
            self._create_journal()
        assert self._journal is not None
        return self._journal

    def _create_journal(self) -> None:
        from tdbg.core.rundir import process_start

        self._check_budget(0)
        run_files.make_folder(self.folder)
        pid, host = os.getpid(), socket.gethostname()
        about = {"run": self.run, "rank": self.rank, "world_size": self.world_size, "producer": f"tdbg {__version__}"}
        self._earlier_bytes = manifest.publish_manifest(self.folder, about)
        journal = self._new_journal(pid)
        version = {"major": MAJOR, "minor": MINOR}
        opened = {"t": "open", "version": version, "time": time.time(), "pid": pid, "host": host}
        opened |= {"start": process_start(pid), **about}

        def remove_journal() -> None:
            journal.path.unlink(missing_ok=True)
            journal.close()

        with undo_on_error(remove_journal):
            journal.append_frames(encode_frame(opened), durable=self.durable)
            if self.durable:
                disk.sync_folder(self.folder)
        self._about = {"writer": journal.path.stem, "opened": opened}
        self._journal = journal

    def _new_journal(self, pid: int) -> JournalFile:
        """A journal of a name that is free: a pid may have been used before, on another host or in another container."""
        for attempt in range(10_000):
            name = f"{pid}-{attempt}" if attempt else str(pid)
            try:
                return JournalFile(self.folder / journal_name(self.rank, name))
            except FileExistsError:
                continue
        raise OSError(errno.EEXIST, "too many journals of one process", str(self.folder))

    def _layout_of(self, structure: tuple[object, ...]) -> Layout:
        with self._lock:
            name: object = structure
            try:
                found = self._layouts.get(name)
            except TypeError:  # a note is a dict, which cannot be looked up
                name = json.dumps(structure, default=str)
                found = self._layouts.get(name)
            if found is None:
                found = _plan_layout(structure)
                self._layouts[name] = found
                if len(self._layouts) > LAYOUTS:
                    self._layouts.popitem(last=False)
            else:
                self._layouts.move_to_end(name)
            return found

    def _write_datapoint(
        self, key: str | int, layout: Layout | None, pieces: list[memoryview], fields: dict[str, Any]
    ) -> int:
        start, rest = datapoint_record.encode_record(key, fields, layout)
        if layout and self.checksums:
            rest = b',"crc":%d%b' % (_compute_checksum(pieces), rest)
        with self._lock:
            journal = self._ensure_journal()
            if layout:
                return self._store_tensors(journal, layout, pieces, start, rest)
            body = b"%b%d%b" % (start, self.seq, rest)
            self._check_budget(HEAD.size + len(body))
            self.seq += 1
            journal.append_frames(frame_body(body), durable=self.durable)
            return self.seq - 1

    def _store_tensors(
        self, journal: JournalFile, layout: Layout, pieces: list[memoryview], start: bytes, rest: bytes
    ) -> int:
        """The data, then the record. Number and place are used up before the record is written, so that whatever
        happens to it they never mean another datapoint."""
        entries = self._recorded.get(layout.id)
        first = frame_body(layout.journal_body) if entries is None else b""
        entries = entries or Entries(layout)
        longest = datapoint_record.encode_placed_record(start, self.seq, 10**11, 10**19, layout, rest)
        page = self._page_for(layout, entries, longest, HEAD.size + len(longest) + len(first))
        page.write_datapoint(pieces, layout.length, durable=self.durable)
        seq, self.seq = self.seq, self.seq + 1
        body = datapoint_record.encode_placed_record(start, seq, page.number, page.end, layout, rest)
        page.record_placed(Placed(seq, page.end, layout, body), entries)
        begun = b"" if page.recorded else encode_frame({"t": "page", "page": page.number, "data": page.data})
        frames = b"".join((begun, first, frame_body(body)))
        with undo_on_error(page.withdraw_last):
            try:
                journal.append_frames(frames, durable=self.durable)
            except OSError:
                if not page.give_back():
                    raise
                journal.append_frames(frames, durable=self.durable)  # it may have been we who took the last of the disk
        page.recorded = True
        self._recorded[layout.id] = entries
        self._recorded.move_to_end(layout.id)
        if len(self._recorded) > LAYOUTS:
            self._recorded.popitem(last=False)
        return seq

    def _page_for(self, layout: Layout, entries: Entries, body: bytes, journal_bytes: int) -> OpenPage:
        """The page that takes this datapoint: the one at hand, or a new one, with room for a larger header if need be."""
        page, growth = self._page, journal_bytes + layout.length
        if page is not None:
            fits = page.end + layout.length <= self.page_bytes or page.end == page.data
            if fits and page.header_bytes + page.bound_header_growth(entries, layout, body) <= page.data:
                self._check_budget(growth)
                return page
        header_bytes = least_header_bytes(self._about) + bound_header_growth(entries, body) + entries.layout_bytes
        data = align_offset(max(header_bytes, self._header_bytes))
        if data > HEADER_LIMIT:
            raise UnstorableError(
                f"{format_count(len(layout.pieces), 'tensor')} in one datapoint are too many for a page",
                "capture fewer layers",
            )
        self._check_budget(growth + data + PAGE_RECORDS_BYTES)
        self._seal_page()
        left = self.page_bytes if self.budget_bytes is None else self.budget_bytes - self.written_bytes
        self._page = OpenPage.create(self.folder, self.rank, data, self._about, min(left, self.page_bytes))
        return self._page

    def _seal_page(self) -> None:
        page, self._page = self._page, None
        if page is None:
            return
        if not page.placed:
            page.discard()
            return
        self._earlier_bytes += page.end
        size = page.seal(durable=self.durable)
        if self._journal:
            self._journal.append_frames(
                encode_frame({"t": "seal", "page": page.number, "size": size}), durable=self.durable
            )

    def _check_budget(self, growth: int) -> None:
        if self.budget_bytes is None or self.written_bytes + growth + LAST_WORDS_BYTES <= self.budget_bytes:
            return
        raise BudgetExceeded(
            f"the next {growth:,} bytes would exceed the page budget of {self.budget_bytes:,} bytes",
            "capture fewer layers or steps, or raise --capture-budget",
        )


def _plan_layout(structure: tuple[Any, ...]) -> Layout:
    try:
        return Layout.from_specs([Spec(*spec) for spec in structure])
    except (TypeError, ValueError) as error:  # a shape of no numbers, a note that JSON cannot hold
        raise UnstorableError(f"a tensor cannot be described: {error}") from None


def _collect_bytes(layout: Layout, items: Sequence[Item]) -> list[memoryview]:
    """The bytes of the tensors, and zeros between them, in the order of the layout."""
    found = []
    for item, piece in zip(items, layout.pieces, strict=True):
        try:
            data = disk.view_bytes(item[3])
        except (TypeError, ValueError) as error:
            raise UnstorableError(f"{piece.path}: {error}") from None
        if len(data) != piece.length:
            raise UnstorableError(
                f"{piece.path}: {len(data):,} bytes do not fit a {piece.dtype.name} tensor of shape {list(piece.shape)}"
            )
        found.append(data)
        if piece.length % ALIGN:
            found.append(ZEROS[: -piece.length % ALIGN])
    return found


def _compute_checksum(pieces: Sequence[memoryview]) -> int:
    found = 0
    for piece in pieces:
        found = zlib.crc32(piece, found)
    return found
