"""Folders that hold pages, and their files, read by range. Their contents are not trusted."""

import os
import re
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.pages.format.file_format import JOURNAL_NAME, PAGE_NAME

OPEN_FILES = 8
DEPTH = 8  # folders below the one that is asked for
EPOCH = re.compile(r"epoch_(\d{1,12})")


def epoch_of(path: PurePath) -> int | None:
    """The epoch of a page, or of a folder of pages, by the innermost ``epoch_N`` folder that it lies in."""
    absolute = path.absolute() if isinstance(path, Path) else path
    match = next((match for part in reversed(absolute.parts) if (match := EPOCH.fullmatch(part))), None)
    return int(match[1]) if match else None


class Folder:
    """The files of one folder, read by range; a few are kept open. Safe to use from several threads."""

    def __init__(self, path: PurePath) -> None:
        self.path = path
        self._open: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def list_names(self) -> list[str]:
        """The files' names, in text order. Raises TdbgError."""
        try:
            return sorted(os.listdir(self.path))
        except OSError as error:
            raise _build_read_error(self.path, error) from None

    def has_file(self, name: str) -> bool:
        """True if there is a file of this name."""
        return os.path.isfile(self.path / name)

    def get_size(self, name: str) -> int:
        """Bytes of a file. Raises FileNotFoundError, and TdbgError for anything but a plain file that can be read."""
        with self._lock:
            return os.fstat(self._open_file(name)).st_size

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        """Bytes of a file; fewer where it ends. Raises what `get_size` raises."""
        with self._lock:
            fd = self._open_file(name)
            try:
                found = os.pread(fd, length, offset)
                while len(found) < length and (more := os.pread(fd, length - len(found), offset + len(found))):
                    found += more  # one call gives 2 GB at most
                return found
            except OSError as error:
                raise _build_read_error(self.path / name, error) from None

    def close(self) -> None:
        """Close what is open; reading opens it again."""
        with self._lock:
            while self._open:
                os.close(self._open.popitem()[1])

    def __del__(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _open_file(self, name: str) -> int:
        fd = self._open.get(name)
        if fd is not None:
            return fd
        path = os.path.join(self.path, name)
        try:
            fd = run_files.open_file(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe of that name must not hold us up
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _build_read_error(path, error) from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise TdbgError(f"{path} is not a regular file", "it was not written by tdbg: remove it")
        self._open[name] = fd
        if len(self._open) > OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        return fd


def _build_read_error(path: PurePath | str, error: OSError) -> TdbgError:
    return TdbgError(f"{path}: {error.strerror or error}", "check its path and permissions")


class PageFile:
    """One page, whatever it is called at the moment: a ``.part`` gets its final name when it is sealed."""

    def __init__(self, folder: Folder, sealed: str, part: str = "") -> None:
        self._folder = folder
        self._names = (sealed, part, sealed) if part else (sealed,)

    @property
    def folder(self) -> PurePath:
        """Where it lies."""
        return self._folder.path

    @property
    def path(self) -> PurePath:
        """What it is called, for people."""
        names = filter(self._folder.has_file, self._names)
        return self._folder.path / next(names, self._names[0])

    def get_size(self) -> int:
        """Bytes of it. Raises TdbgError if it is not there."""
        return self._folder.get_size(self._resolve_name())

    def read_range(self, offset: int, length: int) -> bytes:
        """These bytes. Raises TdbgError if the page does not hold them all."""
        name = self._resolve_name()
        size = self._folder.get_size(name)
        if offset + length > size:  # looked at before the memory is taken
            raise TdbgError(
                f"{self._folder.path / name} has {size:,} bytes, but should have at least {offset + length:,}",
                "it was cut off; `tdbg inspect-pages verify` shows what it still holds",
            )
        found = self._folder.read_range(name, offset, length)
        if len(found) != length:
            raise TdbgError(f"{self._folder.path / name} became shorter while it was read", "try again")
        return found

    def _resolve_name(self) -> str:
        """The name that opens. A page that is sealed between two tries is found at the third."""
        for name in self._names:
            try:
                self._folder.get_size(name)
                return name
            except FileNotFoundError:
                continue
        raise TdbgError(f"{self._folder.path / self._names[0]} is missing", "was it copied with the other files?")


def find_page_folders(path: Path) -> Iterator[Path]:
    """The folders at and below ``path`` that hold pages or journals, in text order; links are not followed."""
    depth = len(path.parts)
    for where, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if len(Path(where).parts) - depth >= DEPTH:
            folders.clear()
        if holds_pages(files):
            yield Path(where)


def holds_pages(names: Iterable[str]) -> bool:
    """True if one of these files is a page or a journal."""
    return any(JOURNAL_NAME.fullmatch(name) or PAGE_NAME.fullmatch(name) for name in names)


def open_page_folders(path: Path) -> tuple[list[Folder], str]:
    """The folders that hold pages at and below a path; of a file its folder and its name. Raises FileNotFoundError."""
    run_files.protect_run_of(path)
    if path.is_dir():
        return [Folder(folder) for folder in find_page_folders(path)], ""
    if path.exists():
        return [Folder(path.parent)], path.name
    raise FileNotFoundError(path)
