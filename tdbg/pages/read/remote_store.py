"""Pages on a store that fsspec supports (S3, GCS, Azure, HTTP, memory and others), read by range.

fsspec is loaded here and nowhere else, and this file only where a URL is given.
"""

import contextlib
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tdbg.core.errors import TdbgError
from tdbg.core.redaction import redact_text
from tdbg.core.run_files import PIECES_MARKER
from tdbg.core.urls import Url, check_url
from tdbg.pages.format.file_format import JOURNAL_NAME, MANIFEST, PAGE_NAME
from tdbg.pages.read.page_folder import DEPTH, Folder, holds_pages
from tdbg.pages.read.store_pieces import FOLDER, PieceFile, Version, find_piece_files, is_piece, name_piece

JOURNAL_BYTES = 64 << 20  # a journal up to this size is fetched at once, and kept
FIRST_BYTES = 1 << 20, 64 << 20  # files and all files that are fetched side by side when a place is opened
SMALL_BYTES = 1 << 20  # reads of this size that follow each other are fetched together
AHEAD_BYTES = 256 << 10, 8 << 20  # how much of what follows is fetched with them: at first, and at most
GAP_BYTES = 4 << 10
PART_BYTES = 8 << 20  # of a piece, at most so much is held in memory
PIECE_BYTES = 8 << 20  # of a growing file, at most so much is copied at a time
DAMAGED = "the copy is damaged; read the run directory on the machine of the run"
GROWTH_BYTES = 64 << 10  # by which a small file may have grown since it was listed
MARKER_BYTES = 16 << 10  # at most
LATEST_T = 1 << 34  # a time that a calendar has
TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
# Where a file appears when all of it has come; elsewhere it is given its name afterwards.
WHOLE = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "r2", "http", "https"))


class Store:
    """One file system of fsspec, with errors that a person can act on. Names are URLs.

    A file that is kept in pieces is listed and read as one. FileNotFoundError stays what it is; everything else becomes
    a TdbgError. Credentials are those that the libraries find in the environment or in their own settings.
    """

    def __init__(self, url: str) -> None:
        """Raises TdbgError for a protocol that nothing here can speak."""
        check_protocol(url)
        import fsspec

        self.url = url
        scheme, _, rest = url.partition("://")
        self.protocol = scheme.lower()
        with self.translate_errors(url):
            self.fs, self.root = fsspec.core.url_to_fs(f"{self.protocol}://{rest}", use_listings_cache=False)
        self.root = self.root.rstrip("/")
        self._pieced: dict[str, PieceFile] = {}  # as last listed

    def list_files(self) -> dict[str, int]:
        """Bytes of each file below the store's own URL, by its path from there. Cost: a listing of all of it."""
        return {path: size for path, (size, _) in self.list_versions().items()}

    def list_versions(self) -> dict[str, tuple[int, float | None]]:
        """Like `list_files`, with the time each file was written in seconds since 1970, or None if it is unknown."""
        listed = self._list_objects("")
        self._pieced = find_piece_files(listed)
        whole = {path: version for path, version in listed.items() if not is_piece(path)}
        return whole | {path: (found.size, found.written_t) for path, found in self._pieced.items()}

    def get_piece_file(self, path: str) -> PieceFile | None:
        """The pieces of a file, as last listed; None for one that is kept whole."""
        return self._pieced.get(path)

    def _list_objects(self, folder: str) -> dict[str, Version]:
        """What is below a folder, by its path from the store's URL."""
        with self.translate_errors(self._format_url(folder)):
            try:
                found = self.fs.find(self._resolve_path(folder), detail=True)
            except FileNotFoundError:
                return {}
        start = f"{self.root}/"
        return {
            path.removeprefix(start): (int(about.get("size") or 0), _read_time(about))
            for path, about in found.items()
            if path.startswith(start) and _is_file(about)
        }

    def list_names(self) -> list[str]:
        """Everything below the store's own URL that is no folder, by its path from there; links and devices too."""
        with self.translate_errors(self._format_url("")):
            try:
                found = self.fs.find(self.root)
            except FileNotFoundError:
                return []
        return [path.removeprefix(f"{self.root}/") for path in found]

    def get_size(self, path: str) -> int:
        """Bytes of a file. path: from the store's URL; empty for itself. Raises FileNotFoundError."""
        if path in self._pieced:
            return self._pieced[path].size
        try:
            with self.translate_errors(self._format_url(path)):
                about = self.fs.info(self._resolve_path(path))
            if about.get("type") == "file":
                return int(about.get("size") or 0)
        except FileNotFoundError:
            pass
        with contextlib.suppress(TdbgError):  # a server that lists nothing
            self._pieced |= find_piece_files(self._list_objects(f"{path}{FOLDER}")) if path else {}
        if path not in self._pieced:
            raise FileNotFoundError(self._format_url(path))
        return self._pieced[path].size

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """These bytes of a file, with one request for each object that holds some. Raises FileNotFoundError."""
        with self.translate_errors(self._format_url(path)):
            return b"".join(self._fetch_part(path, *found) for found in self._list_ranges(path, start, stop))

    def _fetch_part(self, path: str, name: str, start: int, stop: int) -> bytes:
        """These bytes of an object. TdbgError for a piece that is shorter than its name says: what follows would move."""
        data = bytes(self.fs.cat_file(self._resolve_path(name), start=start, end=stop))
        if name != path and len(data) != stop - start:
            raise TdbgError(f"{self._format_url(name)} is not as long as its name says", DAMAGED)
        return data

    def read_all(self, sizes: Mapping[str, int]) -> dict[str, bytes]:
        """Several whole files of these sizes, side by side where the library can; those that failed are left out.

        A file that is kept whole may have been replaced by one that is a little longer.
        """
        rows = [
            (path, *found)
            for path, size in sizes.items()
            for found in self._list_ranges(path, 0, size if path in self._pieced else size + GROWTH_BYTES)
        ]
        with self.translate_errors(self._format_url("")):
            places = [self._resolve_path(name) for _, name, _, _ in rows]
            starts, stops = [start for _, _, start, _ in rows], [stop for _, _, _, stop in rows]
            found = self.fs.cat_ranges(places, starts, stops, on_error="return")
        parts: dict[str, list[bytes]] = {}
        bad: set[str] = set()
        for (path, name, start, stop), data in zip(rows, found, strict=True):
            if isinstance(data, Exception) or (name != path and len(data) != stop - start):
                bad.add(path)
            else:
                parts.setdefault(path, []).append(bytes(data))
        return {path: b"".join(read) for path, read in parts.items() if path not in bad}

    def _list_ranges(self, path: str, start: int, stop: int) -> list[tuple[str, int, int]]:
        """The objects that hold these bytes of a file, each with the range in it."""
        found = self._pieced.get(path)
        return [(path, start, stop)] if found is None else found.list_ranges(start, stop)

    def put_piece(self, path: str, edition: int, start: int, data: bytes) -> None:
        """Add bytes to a file that is kept in pieces."""
        self.put_file(name_piece(path, edition, start, start + len(data)), data)

    def put_file(self, path: str, source: Path | bytes) -> None:
        """Copy a file, or bytes, to a name under which it appears when it is whole."""
        with self.translate_errors(self._format_url(path)):
            target = self._resolve_path(path)
            if self.protocol in WHOLE:
                self._write_target(target, source)
                return
            folder, _, name = target.rpartition("/")
            draft = f"{folder}/.{name}.uploading"
            self.fs.makedirs(folder, exist_ok=True)
            self._write_target(draft, source)
            self.fs.mv(draft, target)

    def remove_file(self, path: str) -> None:
        """Take a file away."""
        with self.translate_errors(self._format_url(path)):
            self.fs.rm_file(self._resolve_path(path))

    def remove_empty_folder(self, path: str) -> None:
        """Take away a folder that holds nothing, where the store has folders."""
        if self.protocol not in WHOLE:
            with contextlib.suppress(Exception):  # guard: each of these libraries has errors of its own
                self.fs.rmdir(self._resolve_path(path))

    def download_file(self, path: str, target: Path) -> None:
        """Copy a file here."""
        target.parent.mkdir(parents=True, exist_ok=True)
        pieces = self._pieced.get(path)
        if pieces is not None:
            self.download_pieces(path, pieces, target)
            return
        with self.translate_errors(self._format_url(path)):
            self.fs.get_file(self._resolve_path(path), str(target))

    def download_pieces(self, path: str, pieces: PieceFile, target: Path, since: int = 0) -> None:
        """Copy a file here that is kept in pieces. since: so many bytes are here already, and the rest is added."""
        with self.translate_errors(self._format_url(path)), target.open("ab") as file:
            file.truncate(since)
            for name, start, stop in pieces.list_ranges(since, pieces.size):
                for first in range(start, stop, PART_BYTES):
                    file.write(self._fetch_part(path, name, first, min(first + PART_BYTES, stop)))

    def check_access(self) -> None:
        """TdbgError if it is known already that nothing can be kept there: no answer, no credentials, no bucket."""
        with self.translate_errors(self._format_url("")):
            try:
                self.fs.ls(self.root, detail=False)
            except FileNotFoundError:
                bucket = self.root.lstrip("/").partition("/")[0]
                if self.protocol in WHOLE and bucket and not self.fs.exists(bucket):
                    raise TdbgError(f"{self.protocol}://{bucket} does not exist", "make it, or name another") from None

    @contextlib.contextmanager
    def translate_errors(self, what: str) -> Iterator[None]:
        """Tell what a library raised in a line, and what to do about it."""
        try:
            yield
        except (TdbgError, FileNotFoundError):
            raise
        except Exception as error:  # guard: each of these libraries has errors of its own
            lines = str(error).strip().splitlines() or [""]
            text = redact_text(f"{type(error).__name__}: {lines[0]}"[:300])
            raise TdbgError(f"{what}: {text}", _suggest_fix(error)) from error

    def _write_target(self, target: str, source: Path | bytes) -> None:
        if isinstance(source, bytes):
            self.fs.pipe_file(target, source)
        else:
            self.fs.put_file(str(source), target)

    def _resolve_path(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def _format_url(self, path: str) -> str:
        """What messages call it, without a secret."""
        return redact_text(f"{self.url.rstrip('/')}/{path}" if path else self.url)


def _read_time(about: Mapping[str, Any]) -> float | None:
    """When a file was written, if its store says so; each library has its own name for this field."""
    for name in TIMES:
        found = about.get(name)
        if isinstance(found, datetime):
            return found.timestamp()
        if isinstance(found, int | float):
            return float(found)
    return None


def _is_file(about: Mapping[str, Any]) -> bool:
    """False for a link, a pipe or a device of a local store: a run is not read through one."""
    return about.get("type", "file") == "file" and not about.get("islink")


def _suggest_fix(error: Exception) -> str:
    words = f"{type(error).__name__} {error}".lower()
    if any(word in words for word in ("credential", "permission", "denied", "forbidden", "accesskey", "token")):
        return "check the credentials in the environment, such as AWS_PROFILE or AWS_ACCESS_KEY_ID"
    return "check the address (for S3 also AWS_ENDPOINT_URL), the network and the credentials in the environment"


def check_protocol(url: str) -> None:
    """TdbgError for a URL that nothing here can speak, or with a password in it. Cost: loads fsspec, opens nothing."""
    check_url(url)
    try:
        import fsspec
    except ImportError:
        raise TdbgError(f"{url} needs fsspec", "install it: pip install 'tdbg[remote]'") from None
    protocol = url.partition("://")[0]
    try:
        fsspec.get_filesystem_class(protocol.lower())
    except ValueError:
        raise TdbgError(f"unknown URL scheme {protocol}://", "write s3://, gs://, abfs:// or https://") from None
    except ImportError as error:
        raise TdbgError(f"{protocol}:// needs another library", str(error).splitlines()[0]) from None


def open_remote_folders(url: Url) -> tuple[list[Folder], str]:
    """The folders with pages at and below a URL, in order; of a file its folder and its name. FileNotFoundError."""
    if JOURNAL_NAME.fullmatch(url.name) or PAGE_NAME.fullmatch(url.name) or url.suffix == ".safetensors":
        store = Store(str(url.parent))
        return [RemoteFolder(store, url.parent, {url.name: store.get_size(url.name)})], url.name
    store = Store(str(url))
    folders: dict[tuple[str, ...], dict[str, int]] = {}
    for path, size in store.list_files().items():
        *parts, name = path.split("/")
        if len(parts) <= DEPTH and not any(part.startswith(".") for part in parts):
            folders.setdefault(tuple(parts), {})[name] = size
    if not folders:
        store.check_access()
        store.get_size("")
        return [RemoteFolder(Store(str(url.parent)), url.parent, {})], url.name
    found = [
        RemoteFolder(store, url.joinpath(*parts), sizes, "/".join(parts))
        for parts, sizes in sorted(folders.items())
        if holds_pages(sizes)
    ]
    _fetch_first(store, found)
    return list(found), ""


def _fetch_first(store: Store, folders: Sequence["RemoteFolder"]) -> None:
    """What is read of every folder in any case, as far as it is small: there may be a thousand of them."""
    wanted: dict[str, int] = {}
    total = 0
    for folder in folders:
        for path, size in folder.iter_essential_files():
            if 0 < size <= FIRST_BYTES[0] and total + size <= FIRST_BYTES[1]:
                wanted[path] = size
                total += size
    found = store.read_all(wanted) if wanted else {}
    for folder in folders:
        folder.cache_files(found)


def legacy_pages(url: Url) -> list[str]:
    """The pages of other tools at and below a URL, by their paths from there; "" is the URL itself."""
    from tdbg.pages.pickle_reader import pickle_pages

    store = Store(str(url))
    if pickle_pages.PAGE.fullmatch(url.name):
        return [""]
    return [path for path in store.list_files() if pickle_pages.is_place_of_page(path.split("/"))]


def describe_gap(store: Store, folder: str = "") -> str:
    """What is missing of a run that was not copied to its end, in words; "" where nothing is known to be.

    folder: of the run, with its slash. Cost: one request.
    """
    try:
        about = json.loads(store.read_range(f"{folder}{PIECES_MARKER}", 0, MARKER_BYTES))
    except (TdbgError, FileNotFoundError, ValueError, RecursionError):
        return ""
    if not isinstance(about, dict) or about.get("complete") is not False:
        return ""
    t, host, path = (about.get(name) for name in ("t", "host", "path"))
    is_time = isinstance(t, int | float) and 0 <= t < LATEST_T
    when = f", last written at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(t))}" if is_time else ""
    where = (
        f"; the whole run is in {path[:300]} on {host[:100]}" if isinstance(path, str) and isinstance(host, str) else ""
    )
    return f"the copy is not complete{when}{where}"


@contextlib.contextmanager
def download_files(url: Url, paths: Iterable[str]) -> Iterator[Path]:
    """A temporary folder of the URL's own name with copies of these files, for those who need them on a disk."""
    with tempfile.TemporaryDirectory(prefix="tdbg-") as folder:
        place, store = Path(folder, url.name), Store(str(url))
        for path in paths:
            try:
                store.download_file(path, place / path)
            except FileNotFoundError:
                raise TdbgError(f"there is no {url / path}", "check its spelling") from None
        yield place


class RemoteFolder(Folder):
    """The files of one folder of a store. What lies there is seen as it was when it was listed.

    A journal is fetched whole, once; of pages only what is asked for, and some of what follows where one reads on.
    """

    def __init__(self, store: Store, path: Url, sizes: dict[str, int], inside: str = "") -> None:
        """sizes: of its files, as they were listed. inside: its path from the store's URL."""
        super().__init__(path)
        self._store, self._sizes, self._inside = store, sizes, inside
        self._kept: dict[str, bytes] = {}  # whole files
        self._ahead = Ahead()

    def list_names(self) -> list[str]:
        return sorted(self._sizes)

    def has_file(self, name: str) -> bool:
        return name in self._sizes

    def get_size(self, name: str) -> int:
        if name not in self._sizes:
            self._sizes[name] = self._store.get_size(self._resolve_path(name))
        return self._sizes[name]

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        size = self.get_size(name)
        stop = min(offset + length, size)
        if stop <= offset:
            return b""
        with self._lock:
            if name not in self._kept and size <= JOURNAL_BYTES and JOURNAL_NAME.fullmatch(name):
                self._kept[name] = self._fetch_range(name, 0, size)
            if name in self._kept:
                return self._kept[name][offset:stop]
            return self._ahead.read_range(name, offset, stop, size, self._fetch_range)

    def close(self) -> None:
        self._kept.clear()
        self._ahead = Ahead()

    def iter_essential_files(self) -> Iterator[tuple[str, int]]:
        """The path from the store's URL, and the size, of what is read in any case."""
        names = (name for name in self._sizes if name == MANIFEST or JOURNAL_NAME.fullmatch(name))
        return ((self._resolve_path(name), self._sizes[name]) for name in names)

    def cache_files(self, files: Mapping[str, bytes]) -> None:
        """Take those that are its own of what was fetched."""
        self._kept |= {
            name: files[self._resolve_path(name)] for name in self._sizes if self._resolve_path(name) in files
        }

    def _fetch_range(self, name: str, start: int, stop: int) -> bytes:
        try:
            return self._store.read_range(self._resolve_path(name), start, stop)
        except FileNotFoundError:
            raise TdbgError(f"{self.path / name} is gone", "try again") from None

    def _resolve_path(self, name: str) -> str:
        return f"{self._inside}/{name}" if self._inside else name


class Ahead:
    """Small reads that follow each other: the second fetches what comes after it too, the next ones more and more."""

    def __init__(self) -> None:
        self._name, self._start, self._end = "", 0, 0  # of what was fetched last
        self._data = b""
        self._more = 0

    def read_range(self, name: str, start: int, stop: int, size: int, fetch: Any) -> bytes:
        """The bytes from ``start`` up to ``stop`` of a file of ``size`` bytes; ``fetch(name, start, stop)`` gets them."""
        if name == self._name and self._start <= start and stop <= self._start + len(self._data):
            return self._data[start - self._start : stop - self._start]
        follows = name == self._name and self._start <= start <= self._end + GAP_BYTES
        self._more = min(max(2 * self._more, AHEAD_BYTES[0]), AHEAD_BYTES[1]) if follows else 0
        more = self._more if stop - start < SMALL_BYTES else 0
        found: bytes = fetch(name, start, min(stop + more, size))
        self._name, self._start, self._end = name, start, start + len(found)
        self._data = found if more else b""
        return found[: stop - start]
