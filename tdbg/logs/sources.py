"""Which files a path means, in what order, of which rank; and how their bytes are read.

A path is a file, a folder, a glob, a run directory, or ``-``. The parts of a rotated log come oldest first, by their
number. The rank is taken from the path, and the whole number counts: ``rank1`` is not ``rank12``.
"""

import glob
import gzip
import importlib
import io
import itertools
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tdbg.errors import TdbgError

STDIN = "-"
# base name, number of a rotated part, date of one, packing
PARTS = re.compile(
    r"(?P<base>.+?\.(?:txt|log|out|err|jsonl|json))(?:\.(?P<part>\d{1,4})|[.-](?P<date>\d{4}-?\d\d-?\d\d[\w:-]*))?"
    r"(?P<packed>\.(?:gz|zst))?"
)
RANK_IN_NAME = re.compile(r"(?:^|[^a-z0-9])(?:global[-_]?)?rank[-_=]?(\d+)(?!\d)|_rank(\d+)(?!\d)", re.IGNORECASE)
TASK_IN_NAME = re.compile(r"(?:^|[._-])(?:task|proc|worker)[-_]?(\d+)(?!\d)", re.IGNORECASE)
ATTEMPT = re.compile(r"attempt_\d+")
OWN_KINDS = {"debug": "debug_log_rank", "info": "info_log_rank"}
RUN_FILE = "run.json"


@dataclass(frozen=True, slots=True)
class Source:
    """One file of a log, or stdin."""

    path: str
    rank: int | None = None
    packed: str = ""  # gz or zst
    size: int = 0

    @property
    def seekable(self) -> bool:
        """True if it can be read in units side by side."""
        return self.path != STDIN and not self.packed

    def open(self) -> Any:
        """The bytes, from the beginning; TdbgError where they cannot be read."""
        if self.path == STDIN:
            return _Stdin()
        try:
            raw = open(self.path, "rb", buffering=0)  # noqa: SIM115 - whoever asked closes it
        except OSError as error:
            raise TdbgError(f"{self.path}: {error.strerror}", "check its path and permissions") from None
        if self.packed == "gz":
            return _unzip(raw)
        if self.packed == "zst":
            return _unzstd(raw, self.path)
        return raw


class _Stdin:
    """What comes through a pipe, as it comes; its beginning can be looked at without taking it."""

    def __init__(self) -> None:
        self._buffer: Any = sys.stdin.buffer

    def readinto(self, into: memoryview) -> int:
        """As much as there is, at least a byte; 0 at the end."""
        return int(self._buffer.readinto1(into))

    def read(self, count: int) -> bytes:
        """The beginning, which stays where it is."""
        return bytes(self._buffer.peek(count)[:count])

    def close(self) -> None:
        """It is not ours to close."""


def _unzip(raw: IO[bytes]) -> Any:
    try:
        igzip = importlib.import_module("isal.igzip")  # the extra `fast`: three times as fast
    except ImportError:
        return gzip.GzipFile(fileobj=raw, mode="rb")
    return igzip.GzipFile(fileobj=raw, mode="rb")


def _unzstd(raw: IO[bytes], path: str) -> Any:
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise TdbgError(f"{path} is packed with zstd", "install the extra: pip install 'tdbg[fast]'") from None
    return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True))


def find(paths: Sequence[str], kind: str = "debug") -> list[Source]:
    """The files these paths mean, in the order they are to be read: by log, oldest part first.

    kind: debug, info or both: which of tdbg's two logs of a rank; what a folder has only one of is read in any case.
    Raises TdbgError for a path that is not there, and for one that holds no log.
    """
    found: list[Source] = []
    for path in paths:
        if path == STDIN:
            found.append(Source(STDIN))
            continue
        for file in _files(path, kind):
            source = _source(file)
            if source.path not in {known.path for known in found}:
                found.append(source)
    return found


def _files(path: str, kind: str) -> list[str]:
    if os.path.isdir(path):
        files = _in_folder(Path(path), kind)
        if not files:
            raise TdbgError(
                f"{path} holds no log", "name files, or a folder with .log, .txt, .out, .err or .jsonl files"
            )
        return files
    if os.path.lexists(path):
        return [path]
    matched = sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) else []
    if not matched:
        raise TdbgError(f"there is no {path}", "name a log file, a folder, a run directory, or - for stdin")
    return [file for name in matched for file in ([name] if os.path.isfile(name) else _in_folder(Path(name), kind))]


def _in_folder(folder: Path, kind: str) -> list[str]:
    names = [str(file) for file in folder.rglob("*") if PARTS.fullmatch(file.name) and file.is_file()]
    own = [name for name in names if _own_kind(name)]
    if own:  # of a run directory the logs only; events and the rest are no text for people
        kinds = {_own_kind(name) for name in own}
        wanted = set(OWN_KINDS) if kind == "both" else {kind} if kind in kinds else kinds
        names = [name for name in own if _own_kind(name) in wanted]
    else:
        names = [name for name in names if not name.endswith(".json") and Path(name).name != RUN_FILE]
    return sorted(names, key=_order)


def _own_kind(name: str) -> str:
    base = os.path.basename(name)
    return next((kind for kind, start in OWN_KINDS.items() if base.startswith(start)), "")


def _order(name: str) -> tuple[Any, ...]:
    """By folder and log, numbers as numbers; of one log the highest part is the oldest, the live file the newest."""
    folder, base = os.path.split(name)
    found = PARTS.fullmatch(base)
    if found is None:
        return (_natural(folder), _natural(base), 0, 0, "")
    part = int(found["part"]) if found["part"] else 0
    live = 0 if found["part"] or found["date"] else 1
    return (_natural(folder), _natural(found["base"]), live, -part, found["date"] or "")


def _natural(text: str) -> list[tuple[int, int, str]]:
    return [(0, int(word), "") if word.isdigit() else (1, 0, word) for word in re.split(r"(\d+)", text) if word]


def _source(path: str) -> Source:
    packed = path.rpartition(".")[2]
    packed = packed if packed in ("gz", "zst") else ""
    try:
        size = os.stat(path).st_size
    except OSError as error:
        raise TdbgError(f"{path}: {error.strerror}", "check its path and permissions") from None
    return Source(path, rank_of(path), packed, size)


def rank_of(path: str) -> int | None:
    """The rank that a path names: ``rank3`` in the file's name or a folder's, torchrun's log tree, a task's number."""
    parts = Path(path).parts
    for text in reversed(parts[-4:]):
        found = RANK_IN_NAME.search(text)
        if found:
            return int(found[1] or found[2])
    for above, folder in itertools.pairwise(parts[:-1]):  # torchrun --log-dir: attempt_0/3/stdout.log
        if ATTEMPT.fullmatch(above) and folder.isdigit():
            return int(folder)
    found = TASK_IN_NAME.search(parts[-1]) if parts else None
    return int(found[1]) if found else None


def total_bytes(sources: Iterable[Source]) -> int:
    """How much there is to read, as far as that is known."""
    return sum(source.size for source in sources)
