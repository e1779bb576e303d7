"""Runs that lie on a store, for commands that read a run directory: what they need of it is copied to a temporary folder.

Files in pieces come as whole ones. Of a file that is needed at its ends alone, the ends are fetched and the rest is a hole.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Self

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.core.output import print_messages
from tdbg.core.redaction import redact_text
from tdbg.core.rundir import AGENTS, EVENTS, FINDINGS, STATE_FILE, RunDir, note_copy
from tdbg.core.tables import format_size
from tdbg.core.urls import Url, is_url, parse_location
from tdbg.launch.run_upload import CLAIMS
from tdbg.pages.format.file_format import JOURNAL_NAME, MANIFEST, PAGE_NAME
from tdbg.pages.read.remote_store import Store, describe_gap
from tdbg.pages.read.store_pieces import is_plain_path

FETCHED_BYTES = 8 << 20  # larger files are fetched one by one, the others side by side
BATCH_BYTES = 64 << 20
HEAD_BYTES, TAIL_BYTES = 64 << 10, 1 << 20  # of a file that is needed at its ends
ROOM_BYTES = 16 << 20  # that stay free
LOGS = re.compile(r".+_log_rank\d+\.txt(\.\d+)?|records\.jsonl|.+\.log")
TRACES = re.compile(r".+\.pt\.trace\.json(\.gz)?")


class Wanted(NamedTuple):
    """What a command needs of a run. names_others: it lists the names of the other files."""

    is_needed: Callable[[str], bool]
    ends_alone: bool = False
    names_others: bool = False


def _is_of_pages(name: str) -> bool:
    return name == MANIFEST or bool(JOURNAL_NAME.fullmatch(name) or PAGE_NAME.fullmatch(name))


def _is_for_report(path: str) -> bool:
    name = path.rpartition("/")[2]
    is_tensor = name.endswith(".safetensors") or _is_of_pages(name)
    return not (is_tensor or LOGS.fullmatch(name) or TRACES.fullmatch(name))


def _is_for_status(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return name in (STATE_FILE, EVENTS, FINDINGS, "owner.json") or folder in ("hello", AGENTS)


def _is_for_logs(path: str) -> bool:
    name = path.rpartition("/")[2]
    return path == STATE_FILE or bool(LOGS.fullmatch(name))


def _is_for_metrics(path: str) -> bool:
    return path == STATE_FILE or path.rpartition("/")[2] == "metrics.jsonl"


WANTED = {
    "report": Wanted(_is_for_report, names_others=True),
    "status": Wanted(_is_for_status, ends_alone=True),
    "logs": Wanted(_is_for_logs),
    "metrics": Wanted(_is_for_metrics),
    "all": Wanted(lambda path: True),
}


def is_on_store(word: str) -> bool:
    """True for a URL, and for a folder that holds a run in pieces."""
    place = parse_location(word)
    return isinstance(place, Url) or os.path.isfile(place / run_files.PIECES_MARKER)


def copy_run(word: str, out: Path, wanted: Wanted) -> str:
    """Make ``out`` an ordinary run directory; returns, and says, what is missing of a run that was not copied whole.

    Raises TdbgError where no run is, or no room for it.
    """
    try:
        return _copy_run(word, out, wanted)
    except OSError as error:
        raise TdbgError(
            f"cannot copy {redact_text(word)}: {error.strerror or error}",
            "free disk space, or name a folder that can hold these file names",
        ) from None


def _copy_run(word: str, out: Path, wanted: Wanted) -> str:
    store = Store(word if is_url(word) else f"file://{Path(word).absolute()}")
    sizes = {
        path: size
        for path, size in store.list_files().items()
        if is_plain_path(path) and not path.startswith(f"{CLAIMS}/") and path != run_files.PIECES_MARKER
    }
    if STATE_FILE not in sizes:
        store.check_access()
        raise TdbgError(
            f"there is no run at {redact_text(word)}", "give the URL of a run; `tdbg view URL` lists a folder of runs"
        )
    chosen = {path: size for path, size in sizes.items() if wanted.is_needed(path)}
    _check_room(out, sum(min(size, HEAD_BYTES + TAIL_BYTES) if wanted.ends_alone else size for size in chosen.values()))
    gap = describe_gap(store)
    if gap:
        print_messages(f"{redact_text(word)}: {gap}")
    batched: set[str] = set()
    for batch in _iter_batches(chosen, wanted):
        _copy_batch(store, batch, out)
        batched |= batch.keys()
    for path, size in chosen.items():
        if path not in batched:
            _copy_file(store, path, size, out, wanted)
    for path in sizes.keys() - chosen.keys() if wanted.names_others else ():
        _write_file(out / path, b"")
    return gap


def fetch_run(word: str, out: Path) -> int:
    """Make an ordinary run directory of a run on a store; returns how many files it has.

    It is made under another name and renamed when it is whole. Raises TdbgError, and then leaves nothing.
    """
    if os.path.lexists(out):
        raise TdbgError(f"{out} already exists", "name a directory that does not exist with -o")
    if not out.absolute().parent.is_dir():
        raise TdbgError(f"there is no folder {out.parent}", "create it first, or name another place with -o")
    draft = out.absolute().with_name(f".{out.name}.joining-{os.getpid()}")
    try:
        run_files.make_folder(draft)
        run_files.set_private(draft)
        copy_run(word, draft, WANTED["all"])
        run_files.rename_file(draft, out)
    except OSError as error:
        raise TdbgError(f"cannot write {error.filename or out}: {error.strerror or error}", "name another -o") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return sum(path.is_file() for path in out.rglob("*"))


def _check_room(out: Path, nbytes: int) -> None:
    free = shutil.disk_usage(out.parent).free
    if nbytes + ROOM_BYTES > free:
        raise TdbgError(
            f"{format_size(nbytes)} of the run are needed, and {out.parent} has {format_size(free)} left",
            "free disk space, or name another folder by -o or TMPDIR",
        )


def _iter_batches(sizes: Mapping[str, int], wanted: Wanted) -> Iterator[dict[str, int]]:
    """Files that are fetched side by side; run.json is not among them, since it may be replaced at any time."""
    limit = HEAD_BYTES + TAIL_BYTES if wanted.ends_alone else FETCHED_BYTES
    batch: dict[str, int] = {}
    nbytes = 0
    for path, size in sizes.items():
        if path == STATE_FILE or not 0 < size <= limit:
            continue
        batch[path] = size
        nbytes += size
        if nbytes > BATCH_BYTES:
            yield batch
            batch, nbytes = {}, 0
    if batch:
        yield batch


def _copy_batch(store: Store, batch: Mapping[str, int], out: Path) -> None:
    found = store.read_all(batch)
    for path, data in found.items():
        _write_file(out / path, data)
    for path in batch.keys() - found.keys():
        _copy_file(store, path, 0, out, WANTED["all"])


def _copy_file(store: Store, path: str, size: int, out: Path, wanted: Wanted) -> None:
    """Copy one file, or its ends; one that is gone meanwhile, as the unsealed form of a page, is left out."""
    try:
        _download_file(store, path, size, out, wanted)
    except FileNotFoundError:
        if path == STATE_FILE:
            raise TdbgError(f"{redact_text(store.url)}/{path} is gone", "try again") from None


def _download_file(store: Store, path: str, size: int, out: Path, wanted: Wanted) -> None:
    if not wanted.ends_alone or size <= HEAD_BYTES + TAIL_BYTES:
        store.download_file(path, out / path)
        return
    with run_files.open_new(out / path, makes=True) as file:
        file.write(store.read_range(path, 0, HEAD_BYTES))
        file.seek(size - TAIL_BYTES)
        file.write(store.read_range(path, size - TAIL_BYTES, size))


def _write_file(path: Path, data: bytes) -> None:
    with run_files.open_new(path, makes=True) as file:
        file.write(data)


class RunCopies(AbstractContextManager["RunCopies"]):
    """Temporary copies of runs on stores; they are removed at the end of the block."""

    def __init__(self, wanted: str) -> None:
        self._wanted = WANTED[wanted]
        self._folder = tempfile.TemporaryDirectory(prefix="tdbg-run-", ignore_cleanup_errors=True)
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._folder.cleanup()

    def replace_urls(self, words: Iterable[str]) -> list[str]:
        """The words, with the path of a copy in place of each run on a store, and the path that a file:// URL means."""
        return [
            self.copy_run(word) if is_on_store(word) else str(parse_location(word)) if is_url(word) else word
            for word in words
        ]

    def copy_run(self, word: str) -> str:
        """The path of a copy of what the command needs."""
        self._count += 1
        name = re.sub(r"[^\w.-]", "-", word.rstrip("/").rpartition("/")[2]).strip(".") or "run"
        out = Path(self._folder.name, str(self._count), name)
        run_files.make_folder(out.parent)
        gap = copy_run(word, out, self._wanted)
        note_copy(out, redact_text(word), gap)
        return str(RunDir(out).path)
