"""A run directory below a URL: what has grown is copied as pieces that are never written again.

Files that are appended to (events, records, logs, journals) are copied piece by piece, captured pages when they are
sealed, other files whole; small ones that are replaced (run.json, report.json) are copied again. A reader of the store
finds, at any time, a run directory that is some seconds or minutes old.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.core.host import host_name
from tdbg.core.rundir import PREFLIGHT_FOLDER
from tdbg.pages.format.file_format import JOURNAL_NAME, MANIFEST, PAGE_NAME
from tdbg.pages.page_upload import Upload
from tdbg.pages.read.page_folder import holds_pages
from tdbg.pages.read.remote_store import PIECE_BYTES, Store
from tdbg.rules.kept_verdict import FILE as KEPT_VERDICT

SCHEMA = 1
CLAIMS = "claims"  # a folder of the store with an object for the run that lies there
FAILURES = 3  # files that fail before the others are not tried any more: it is the store then
SMALL_BYTES = 1 << 20  # a larger file is copied only when it has not changed since the last look
COMPARED_BYTES = 256  # at the end of what was copied, by which a file is told from another of its name
BOOT, WOKE = "boot", "boot/woke"
LEFT_OUT = (PREFLIGHT_FOLDER, BOOT, CLAIMS)  # start-up code and files of the program: of no use to a reader
APPENDED = re.compile(r".+\.jsonl|.+_log_rank\d+\.txt(\.\d+)?|.+\.log|native_stack\.txt")


class PlaceTakenError(TdbgError):
    """The URL holds a run, or other files, already."""


class LocalError(TdbgError):
    """A file of the run directory cannot be read; the store has no part in it."""


class Version(NamedTuple):
    """By what a file is told from another, or from an earlier one, of its name."""

    inode: int
    size: int
    mtime_ns: int


class Growth(NamedTuple):
    """How much of a file that grows is on the store, and the last bytes of that."""

    inode: int
    edition: int
    size: int
    end: bytes


def claim_place(store: Store, token: str) -> None:
    """Take the URL of a store for one run. Raises PlaceTakenError where something is there, TdbgError where it fails.

    Of two that come at the same time neither gets it: both are there to be told.
    """
    store.check_access()
    mine = f"{CLAIMS}/{token}"
    store.put_file(mine, token.encode())
    try:
        others = [path for path in store.list_names() if path != mine]
    except TdbgError:
        with contextlib.suppress(TdbgError, FileNotFoundError):
            store.remove_file(mine)  # else the next try finds it, and takes it for another run's
        raise
    if others:
        with contextlib.suppress(TdbgError, FileNotFoundError):  # where nothing may be deleted
            store.remove_file(mine)
            store.remove_empty_folder(CLAIMS)
        raise PlaceTakenError(
            f"{store.url} already holds a run, or other files",
            "choose another --run-dir; hosts that share no disk need a URL each, and `tdbg join` makes one run of them",
        )


class RunUpload:
    """Copies what is new of a run directory, each time it is told to.

    files, nbytes: what was copied. Called by a later process it goes on where the earlier one ended.
    """

    def __init__(self, run: Path, url: str, *, stays: Callable[[Path], bool] = lambda folder: True) -> None:
        """stays: False for a folder of pages that may be removed before the end. TdbgError for a URL of no use."""
        self.run, self.store = run, Store(url)
        self._pages = Upload(run, url, stays=stays, in_pieces=True)
        self._there: dict[str, tuple[int, float | None]] | None = None
        self._grown: dict[str, Growth] = {}
        self._copied: dict[str, Version] = {}  # files that are copied whole
        self._seen: dict[str, Version] = {}
        self._names: set[str] = set()
        self._nbytes = 0

    @property
    def files(self) -> int:
        """How many files are on the store, as far as they were copied from here."""
        return len(self._names) + self._pages.files

    @property
    def nbytes(self) -> int:
        """Bytes that were copied from here."""
        return self._nbytes + self._pages.nbytes

    def upload_new_files(self, *, last: bool = False) -> None:
        """Copy what is new. Raises TdbgError where something could not be copied; the next call goes on."""
        before, failed = self.nbytes, 0
        error: TdbgError | None = None
        if not self._names:
            self._write_marker(False)
        for path in self._iter_local_files():
            try:
                self._upload_file(path, last=last)
            except TdbgError as found:
                error, failed = error or found, failed + (not isinstance(found, LocalError))
            if failed == FAILURES:
                break
        try:
            if failed < FAILURES:
                self._pages.upload_new_files(last=last)
        except TdbgError as found:
            error = error or found
        if error is not None:
            raise error
        if last or self.nbytes != before:
            self._write_marker(last)

    def _iter_local_files(self) -> Iterator[str]:
        """Every file that is not a page's, by its path in the run directory."""
        if (self.run / WOKE).exists():
            yield WOKE
        for where, folders, names in os.walk(self.run):
            inside = Path(where).relative_to(self.run)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            if not inside.parts:
                folders[:] = [name for name in folders if name not in LEFT_OUT]
            has_pages = holds_pages(names)
            for name in sorted(names):
                if _is_copied(name) and not (has_pages and _is_of_pages(name)):
                    yield (inside / name).as_posix()

    def _upload_file(self, path: str, *, last: bool) -> None:
        try:
            if APPENDED.fullmatch(path.rpartition("/")[2]):
                self._upload_growth(path)
            else:
                self._upload_whole(path, last=last)
        except FileNotFoundError:
            if (self.run / path).exists():
                raise TdbgError(f"{self.store.url} does not exist", "make it, or name another") from None
        except OSError as error:  # a link, a device, no permission: tdbg wrote none of these
            if (self.run / path).is_file():
                raise LocalError(
                    f"cannot read {self.run / path}: {error.strerror or error}", "replace it by a readable file"
                ) from None

    def _upload_growth(self, path: str) -> None:
        with run_files.open_read(self.run / path) as file:
            about = os.fstat(file.fileno())
            known = self._grown.get(path) or self._find_growth(path, about.st_ino)
            file.seek(known.size - len(known.end))
            if known.inode != about.st_ino or file.read(len(known.end)) != known.end:  # it was rotated, or cut off
                known = Growth(about.st_ino, known.edition + 1, 0, b"")
                file.seek(0)
            while data := file.read(min(PIECE_BYTES, max(about.st_size - known.size, 0))):
                self.store.put_piece(path, known.edition, known.size, data)
                end = (known.end + data[-COMPARED_BYTES:])[-COMPARED_BYTES:]
                known = known._replace(size=known.size + len(data), end=end)
                self._grown[path] = known
                self._count(path, len(data))

    def _find_growth(self, path: str, inode: int) -> Growth:
        """What an earlier process has left of a file of this name."""
        self._list_there()
        found = self.store.get_piece_file(path)
        if found is None:
            return Growth(inode, 1, 0, b"")
        end = self.store.read_range(path, max(found.size - COMPARED_BYTES, 0), found.size)
        return Growth(inode, found.edition, found.size, end)

    def _upload_whole(self, path: str, *, last: bool) -> None:
        with run_files.open_read(self.run / path) as file:
            about = os.fstat(file.fileno())
            version = Version(about.st_ino, about.st_size, about.st_mtime_ns)
            if self._copied.get(path) == version:
                return
            if about.st_size <= SMALL_BYTES:
                self.store.put_file(path, file.read())
            elif self._is_settled(path, version, last=last):
                self.store.put_file(path, self.run / path)
            else:
                return
        self._copied[path] = version
        self._count(path, version.size)

    def _is_settled(self, path: str, version: Version, *, last: bool) -> bool:
        """True for a large file that has not changed since the last look and is not on the store."""
        before, self._seen[path] = self._seen.get(path), version
        size, written_t = self._list_there().get(path, (-1, None))
        if path not in self._copied and size == version.size and (written_t or 0.0) > version.mtime_ns / 1e9:
            self._copied[path] = version  # by an earlier process
            return False
        return last or before == version

    def _list_there(self) -> dict[str, tuple[int, float | None]]:
        """What the store held when it was first asked."""
        if self._there is None:
            self._there = self.store.list_versions()
        return self._there

    def _count(self, path: str, nbytes: int) -> None:
        self._names.add(path)
        self._nbytes += nbytes

    def _write_marker(self, last: bool) -> None:
        about = {"schema": SCHEMA, "t": round(time.time(), 3), "complete": last}
        where = {"host": host_name(), "path": str(self.run.absolute())}
        self.store.put_file(run_files.PIECES_MARKER, (json.dumps(about | where) + "\n").encode())


def _is_copied(name: str) -> bool:
    """False for drafts, locks and what is of use on this disk alone."""
    return not name.startswith(".") and not name.endswith(".lock") and name != KEPT_VERDICT


def _is_of_pages(name: str) -> bool:
    return name == MANIFEST or bool(JOURNAL_NAME.fullmatch(name) or PAGE_NAME.fullmatch(name))


def is_final(error: BaseException) -> bool:
    """True if the next try will fail as this one did: no permission, no bucket, a place that is taken."""
    cause = error.__cause__
    if isinstance(error, TdbgError) and cause is None:
        return True
    refusals = (PermissionError, NotImplementedError, NotADirectoryError, FileExistsError, IsADirectoryError)
    return isinstance(cause, refusals) or "credential" in type(cause).__name__.lower()
