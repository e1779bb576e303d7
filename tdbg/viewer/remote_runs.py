"""Runs on a store that fsspec supports, for the viewer: small files are copied here, pages are read by range."""

import os
import re
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from tdbg.core.errors import TdbgError
from tdbg.core.output import print_messages
from tdbg.core.redaction import redact_text
from tdbg.core.run_files import PIECES_MARKER
from tdbg.core.rundir import STATE_FILE, RunDir, note_copy, write_json
from tdbg.core.tables import format_size, safe
from tdbg.core.urls import Url
from tdbg.pages.format.file_format import JOURNAL_NAME, PAGE_NAME
from tdbg.pages.read.remote_store import Store, describe_gap
from tdbg.pages.read.store_pieces import PieceFile, Version, is_plain_path
from tdbg.rules.verdict import REPORT_FILE
from tdbg.viewer.run_library import RunLibrary, UnknownRunError

LIST_EVERY_S = 10.0
MAX_FILE_BYTES = 256 << 20  # larger ones are left out, and named
MAX_RUN_BYTES = 2 << 30
MAX_COPIES_BYTES = 8 << 30  # of all runs; then the copies that were opened longest ago are removed
IN_USE_S = 60.0  # so long after it was opened a copy stays
MAX_NAMED = 4
UNKNOWN: Version = (0, None)  # of a store that tells neither
OF_RANK = re.compile(r"rank\d{4,}")


class RemoteLibrary(RunLibrary):
    """The runs at a URL, which is that of one run or of a folder of runs. Usable until `close`.

    A run is copied without its pages when it is first opened; files that have changed are copied again. Copies of more
    than `MAX_COPIES_BYTES` are removed, but for those in use, and made again when they are opened. Raises TdbgError for a store that cannot be reached or that holds no run.
    """

    def __init__(self, url: Url) -> None:
        self.url, self.only = url, None
        if url.name in ("", ".", ".."):
            raise TdbgError(f"{url} names no folder", "give the URL of a run, or of a folder of runs")
        self._store = Store(str(url))
        self._copies = tempfile.TemporaryDirectory(prefix="tdbg-view-", ignore_cleanup_errors=True)
        self.folder = Path(self._copies.name)
        self._turn = threading.Lock()  # held while the store is listed
        self._copy_turns: dict[str, threading.Lock] = {}  # one lock per run, held while it is copied
        self._listed: dict[str, dict[str, Version]] = {}  # run -> its files
        self._listed_t = float("-inf")
        self._copied: dict[str, dict[str, Version]] = {}
        self._pieces: dict[str, PieceFile] = {}  # of copied files that grow, as they were when they were copied
        self._copied_t: dict[str, float] = {}
        self._opened_t: dict[str, float] = {}
        self._is_single = self._is_loss_reported = False
        self._failed: set[str] = set()  # runs of which it was said
        self._incomplete: set[str] = set()  # runs of which it was said that their copy is not complete
        self._refresh_list()
        if not self._listed:
            self.close()
            self._store.check_access()
            raise TdbgError(f"there is no run at {url}", "give the URL of a run, or of a folder of runs")
        if self._is_single:
            self.only = RunDir(self.folder / url.name)

    def list_names(self) -> list[str]:
        """Names of the runs in descending order: a name begins with the time, so the newest is first."""
        with self._turn:
            self._refresh_list()
            return sorted(self._listed, reverse=True)

    def open_run(self, name: str) -> RunDir:
        """A copy of that run, at most some seconds behind the store."""
        with self._turn:
            self._refresh_list()
            files, listed_t = self._listed.get(name), self._listed_t
            turn = self._copy_turns.setdefault(name, threading.Lock())
        if files is None:
            raise UnknownRunError("there is no run of that name here", "the list of runs has their names")
        with turn:
            if self._copied_t.get(name, float("-inf")) < listed_t:
                self._copy_run(name, files)
                self._copied_t[name] = listed_t
            self._opened_t[name] = time.monotonic()
        self._remove_old_copies()
        return RunDir(self.folder / name)

    @property
    def label(self) -> str:
        """The URL."""
        return str(self.url)

    def locate_pages(self, name: str) -> str:
        """The URL of the run: its pages are not copied."""
        self.open_run(name)
        return str(self.url if self._is_single else self.url / name)

    def restore_paths(self, answer: bytes) -> bytes:
        """JSON with the URLs of runs instead of the paths of their temporary copies."""
        url = str(self.url).removesuffix(f"/{self.url.name}") if self._is_single else str(self.url)
        for copies in (str(self.folder.resolve()), str(self.folder)):
            answer = answer.replace(_encode_text(copies), _encode_text(url.rstrip("/")))
        return answer

    def close(self) -> None:
        """Remove the copies."""
        self._copies.cleanup()

    def _refresh_list(self) -> None:
        """List the store again, at most every 10 s, and copy from each run what the list of runs shows."""
        if time.monotonic() - self._listed_t < LIST_EVERY_S:
            return
        try:
            listed = self._store.list_versions()
        except TdbgError as error:
            if not self._listed:
                raise
            self._report_loss(error)
            return
        versions = {path: version for path, version in listed.items() if is_plain_path(path)}
        self._is_single = STATE_FILE in versions or any(_is_of_run(path) for path in versions)
        found: dict[str, dict[str, Version]] = {}
        for path, version in versions.items():
            name, _, inside = (self.url.name, "", path) if self._is_single else path.partition("/")
            if inside:
                found.setdefault(name, {})[inside] = version
        self._listed = {
            name: files for name, files in found.items() if STATE_FILE in files or any(map(_is_of_run, files))
        }
        self._listed_t = time.monotonic()
        for name, files in self._listed.items():
            small = {path: files[path] for path in (STATE_FILE, REPORT_FILE) if path in files}
            self._copy_files(name, {path: known for path, known in small.items() if known[0] <= MAX_FILE_BYTES})
            self._write_stub(name)
            self._date_run(name, files)

    def _report_loss(self, error: TdbgError) -> None:
        """Say once that the store no longer answers; the copies stay in use."""
        self._listed_t = time.monotonic()
        if not self._is_loss_reported:
            self._is_loss_reported = True
            print_messages(str(error), "runs are shown as last copied until the store answers again")

    def _write_stub(self, name: str) -> None:
        """Where pages alone were uploaded, or run.json cannot be read."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / STATE_FILE).exists():
            about: dict[str, Any] = {"command": [], "exit": {"code": None, "signal": None}, "name": name}
            write_json(folder / STATE_FILE, about)

    def _date_run(self, name: str, files: dict[str, Version]) -> None:
        """Give run.json the time of the newest file: from that the list of runs tells whether the run goes on."""
        newest = max((version[1] for version in files.values() if version[1] is not None), default=None)
        if newest is not None:
            os.utime(self.folder / name / STATE_FILE, (newest, newest))

    def _copy_run(self, name: str, listed: dict[str, Version]) -> None:
        files = {path: version for path, version in listed.items() if path != PIECES_MARKER and not _is_page(path)}
        chosen: dict[str, Version] = {}
        left_out = []
        total = 0
        for path, version in sorted(files.items(), key=lambda row: row[1][0]):
            size = version[0] or self._ask_size(name, path)
            if size > MAX_FILE_BYTES or total + size > MAX_RUN_BYTES:
                left_out.append(f"{safe(path)} ({format_size(size)})")
                continue
            chosen[path] = version
            total += size
        if left_out and name not in self._copied_t:
            more = f" and {len(left_out) - MAX_NAMED} more" if len(left_out) > MAX_NAMED else ""
            print_messages(f"{safe(name)}: too large to copy, left out: {', '.join(left_out[:MAX_NAMED])}{more}")
        self._copy_files(name, chosen)
        self._note_gap(name, is_in_pieces=PIECES_MARKER in listed)

    def _note_gap(self, name: str, *, is_in_pieces: bool) -> None:
        """Have the pages of a run say that it was not copied to its end, and say it once here."""
        gap = describe_gap(self._store, self._resolve_path(name, "")) if is_in_pieces else ""
        url = str(self.url if self._is_single else self.url / name)
        note_copy(self.folder / name, url, gap)
        if gap and name not in self._incomplete:
            self._incomplete.add(name)
            print_messages(f"{safe(redact_text(url))}: {safe(gap)}")

    def _remove_old_copies(self) -> None:
        """Keep within `MAX_COPIES_BYTES`. What the list of runs shows stays."""
        sizes = {
            name: sum(version[0] for version in list(files.values())) for name, files in list(self._copied.items())
        }
        excess = sum(sizes.values()) - MAX_COPIES_BYTES
        for name, opened_t in sorted(self._opened_t.copy().items(), key=lambda row: row[1]):
            if excess <= 0 or time.monotonic() - opened_t < IN_USE_S:
                return
            turn = self._copy_turns[name]
            if not turn.acquire(blocking=False):
                continue  # it is being opened
            try:
                self._remove_copy(name)
            finally:
                turn.release()
            excess -= sizes.get(name, 0)

    def _remove_copy(self, name: str) -> None:
        self._opened_t.pop(name, None)
        self._copied_t.pop(name, None)
        known = self._copied[name]
        for path in [path for path in known if path not in (STATE_FILE, REPORT_FILE)]:
            del known[path]
            (self.folder / name / path).unlink(missing_ok=True)

    def _ask_size(self, name: str, path: str) -> int:
        """Bytes of a file whose size the listing does not give (http)."""
        try:
            return self._store.get_size(self._resolve_path(name, path))
        except (FileNotFoundError, TdbgError):
            return 0

    def _resolve_path(self, name: str, path: str) -> str:
        return path if self._is_single else f"{name}/{path}"

    def _copy_files(self, name: str, files: dict[str, Version]) -> None:
        """Copy new and changed files. Each appears only when it is complete, with the time it has on the store."""
        known = self._copied.setdefault(name, {})
        for path, version in files.items():
            if known.get(path) == version and version != UNKNOWN:
                continue
            try:
                self._copy_file(name, path, version)
            except FileNotFoundError:
                continue  # it is gone meanwhile
            except (TdbgError, OSError, ValueError, OverflowError) as error:  # the others can still be shown
                self._report_failure(name, path, error)
                continue
            known[path] = version

    def _copy_file(self, name: str, path: str, version: Version) -> None:
        """Copy a file whole, or what it has grown by since it was copied."""
        target, remote = self.folder / name / path, self._resolve_path(name, path)
        pieces, before = self._store.get_piece_file(remote), self._pieces.pop(remote, None)
        if pieces is not None and before is not None and _has_grown(before, pieces, target):
            self._store.download_pieces(remote, pieces, target, since=before.size)
            ready = target
        else:
            ready = target.with_name(f".{target.name}.draft")
            self._store.download_file(remote, ready)
        if version[1] is not None:
            os.utime(ready, (version[1], version[1]))
        if ready != target:
            os.replace(ready, target)
        if pieces is not None:
            self._pieces[remote] = pieces

    def _report_failure(self, name: str, path: str, error: Exception) -> None:
        """Say once of each run what cannot be copied."""
        if name not in self._failed:
            self._failed.add(name)
            print_messages(f"{safe(name)}: cannot copy {safe(path)}: {safe(str(error))}", "what it holds is not shown")


def _encode_text(text: str) -> bytes:
    """As it stands inside of a JSON text."""
    return msgspec.json.encode(text)[1:-1]


def _has_grown(before: PieceFile, now: PieceFile, copy: Path) -> bool:
    """True if the copy is the beginning of what the pieces are now."""
    try:
        is_whole = copy.stat().st_size == before.size
    except OSError:
        return False
    return is_whole and before.edition == now.edition and before.size <= now.size


def _is_page(path: str) -> bool:
    return PAGE_NAME.fullmatch(path.rpartition("/")[2]) is not None


def _is_of_run(path: str) -> bool:
    """True for a journal in a rank's folder: pages of a run, with or without the rest of it."""
    parts = path.split("/")
    return OF_RANK.fullmatch(parts[0]) is not None and len(parts) > 1 and JOURNAL_NAME.fullmatch(parts[-1]) is not None
