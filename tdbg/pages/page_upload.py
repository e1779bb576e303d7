"""Copy sealed pages, journals and manifests to a store, while they are written or afterwards.

A reader of the store never sees half a file, nor a datapoint whose page is not there: a page appears before the part
of the journal that tells of it, and of a journal only that part is copied. Who reads in between finds what is in a
page that no journal tells of in the page's own header.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tdbg.core.errors import TdbgError
from tdbg.pages.format.file_format import JOURNAL_NAME, MANIFEST, PAGE_NAME, page_name
from tdbg.pages.read.page_folder import Folder, find_page_folders
from tdbg.pages.read.page_sources import JournalSource, Problems
from tdbg.pages.read.remote_store import PIECE_BYTES, Store
from tdbg.pages.repair.verification import is_writer_alive

GROWN = 1.25  # a journal is copied again when it has grown so much: all its copies are five times its size at most
FAILURES = 3  # folders that fail before the others are not tried any more: it is the store then
HEAD_BYTES = 4096  # of a journal, by which it is told from another of its name


class Upload:
    """Copies what is new in a folder, each time it is told to.

    nbytes: what was copied, journals as often as they were. Called again, by this process or a later one, it copies only what is not there.
    """

    def __init__(
        self,
        source: Path,
        url: str,
        *,
        host: str = "",
        stays: Callable[[Path], bool] = lambda folder: True,
        progress: Callable[[int], object] = lambda nbytes: None,
        in_pieces: bool = False,
    ) -> None:
        """host: copy only what was written on this one. stays: False for a folder that may be removed before the end.
        progress: told the bytes of each file. in_pieces: what a journal has grown by is an object of its own.
        Raises TdbgError for a URL that nothing here can speak."""
        self.source, self.store = source, Store(url)
        self.nbytes = 0
        self._host, self._stays, self._progress = host, stays, progress
        self._in_pieces = in_pieces
        self._there: dict[str, int] | None = None  # what the store holds, by path
        self._copied: set[str] = set()
        self._known: set[str] = set()  # journals of which it is certain that they are ours
        self._foreign: set[str] = set()  # journals that another host writes
        self._seen: dict[Path, dict[str, int]] = {}

    @property
    def files(self) -> int:
        """How many files were copied, a journal once."""
        return len(self._copied)

    def upload_new_files(self, *, last: bool = False) -> None:
        """Copy what is new; with ``last`` also the pages that were never sealed and whose writers are dead.

        Raises TdbgError where something could not be copied; what was copied stays, and the next call goes on.
        """
        if last:
            self._there = None  # others may have copied meanwhile
        failed: list[TdbgError] = []
        for path in find_page_folders(self.source):
            if last or self._stays(path):
                try:
                    self._try_upload_folder(path, last=last)
                except TdbgError as error:
                    failed.append(error)
            if len(failed) == FAILURES:
                break
        if failed:
            raise failed[0]

    def _try_upload_folder(self, path: Path, *, last: bool) -> None:
        folder = Folder(path)
        try:
            self._upload_folder(folder, last=last)
        except FileNotFoundError:
            if path.exists():
                raise TdbgError(f"{self.store.url} does not exist", "make it, or name another") from None
        finally:
            folder.close()

    def _upload_folder(self, folder: Folder, *, last: bool) -> None:
        names = [name for name in folder.list_names() if JOURNAL_NAME.fullmatch(name) or PAGE_NAME.fullmatch(name)]
        sizes = {name: folder.get_size(name) for name in names if not name.endswith(".part")}
        if not last and self._seen.get(Path(folder.path)) == sizes:
            return
        found = [
            name
            for name in names
            if JOURNAL_NAME.fullmatch(name) and self._resolve_remote_path(folder, name) not in self._foreign
        ]
        journals = [JournalSource(folder, name, Problems()) for name in found]
        ours = [one for one in journals if self._is_ours(folder, one)]
        if ours:
            self._check_run_conflict(folder, names)
        for journal in ours:
            self._upload_writer(folder, journal, last=last)
        if last and not self._host:
            sealed_names = {page_name(one.rank, number, sealed=True) for one in journals for number in one.pages}
            for name in names:
                if name.endswith(".safetensors") and name not in sealed_names:
                    self._upload_page(folder, name)
        self._seen[Path(folder.path)] = sizes

    def _is_ours(self, folder: Folder, journal: JournalSource) -> bool:
        host = journal.opened.get("host")
        if self._host and host and host != self._host:
            self._foreign.add(self._resolve_remote_path(folder, journal.name))
        return self._host in ("", host)

    def _upload_writer(self, folder: Folder, journal: JournalSource, *, last: bool) -> None:
        """The pages of one writer, then its journal; the journal's beginning before them, as it says whose they are."""
        if folder.has_file(MANIFEST) and self._resolve_remote_path(folder, MANIFEST) not in self._list_uploaded():
            self._upload_file(folder, MANIFEST)
        if self._resolve_remote_path(folder, journal.name) not in self._list_uploaded():
            self._upload_journal(folder, journal, 1.0)
        for number in sorted(journal.pages):
            sealed, part = (page_name(journal.rank, number, sealed=sealed) for sealed in (True, False))
            if folder.has_file(sealed):
                self._upload_page(folder, sealed)
            elif last and folder.has_file(part) and not is_writer_alive(journal):
                self._upload_page(folder, part)
        self._upload_journal(folder, journal, 1.0 if last else GROWN)

    def _upload_page(self, folder: Folder, name: str) -> None:
        if self._list_uploaded().get(self._resolve_remote_path(folder, name)) == folder.get_size(name):
            return
        self._upload_file(folder, name)
        part = self._resolve_remote_path(folder, name.replace(".safetensors", ".part"))
        if name.endswith(".safetensors") and part in self._list_uploaded():
            self.store.remove_file(part)
            del self._list_uploaded()[part]

    def _upload_journal(self, folder: Folder, journal: JournalSource, grown: float) -> None:
        """Copy it again, or what is new of it, if it is larger by this factor than what is there."""
        end, path = self._find_uploadable_end(folder, journal), self._resolve_remote_path(folder, journal.name)
        there = self._list_uploaded().get(path, 0)
        if end <= grown * there:
            return
        if not self._in_pieces:
            self._upload_file(folder, journal.name, folder.read_range(journal.name, 0, end))
            return
        for start in range(there, end, PIECE_BYTES):
            nbytes = min(PIECE_BYTES, end - start)
            self.store.put_piece(path, 1, start, folder.read_range(journal.name, start, nbytes))
            self._note_copied(path, start + nbytes, nbytes)

    def _find_uploadable_end(self, folder: Folder, journal: JournalSource) -> int:
        """Where the part of a journal ends whose pages are there."""
        rank, listed = journal.rank, self._list_uploaded()
        names = {n: [page_name(rank, n, sealed=sealed) for sealed in (True, False)] for n in journal.pages}
        missing = {
            n
            for n, both in names.items()
            if not any(self._resolve_remote_path(folder, name) in listed for name in both)
        }
        for index in journal.frames.others if missing else ():
            with suppress(ValueError):  # a record that is none
                record = journal.frames.read_record(index)
                if record.get("t") == "page" and record.get("page") in missing:
                    return journal.frames.starts[index]
        return journal.frames.end

    def _check_run_conflict(self, folder: Folder, names: list[str]) -> None:
        """TdbgError if journals of another run are at the place of this folder."""
        for path, size in self._list_uploaded().items():
            above, _, name = path.rpartition("/")
            if path in self._known or above != self._resolve_remote_folder(folder) or not JOURNAL_NAME.fullmatch(name):
                continue
            length = min(size, HEAD_BYTES)
            if name not in names or self.store.read_range(path, 0, length) != folder.read_range(name, 0, length):
                raise TdbgError(
                    f"{self.store.url}/{path} is the journal of another run", "name a URL that holds nothing yet"
                )
            self._known.add(path)

    def _upload_file(self, folder: Folder, name: str, data: bytes | None = None) -> None:
        path, size = self._resolve_remote_path(folder, name), folder.get_size(name) if data is None else len(data)
        self.store.put_file(path, Path(folder.path) / name if data is None else data)
        self._note_copied(path, size, size)

    def _note_copied(self, path: str, size: int, nbytes: int) -> None:
        """size: of the file on the store. nbytes: what of it was copied now."""
        self._list_uploaded()[path] = size
        self._known.add(path)
        self._copied.add(path)
        self.nbytes += nbytes
        self._progress(nbytes)

    def _list_uploaded(self) -> dict[str, int]:
        if self._there is None:
            self._there = self.store.list_files()
        return self._there

    def _resolve_remote_path(self, folder: Folder, name: str) -> str:
        inside = self._resolve_remote_folder(folder)
        return f"{inside}/{name}" if inside else name

    def _resolve_remote_folder(self, folder: Folder) -> str:
        inside = folder.path.relative_to(self.source).as_posix()
        return "" if inside == "." else inside


def pages_bytes(source: Path) -> Iterator[int]:
    """Bytes of each page at and below a folder, for a bar."""
    for path in find_page_folders(source):
        folder = Folder(path)
        yield from (folder.get_size(name) for name in folder.list_names() if PAGE_NAME.fullmatch(name))
        folder.close()
