"""Which files a path means, in what order, of which rank; and how their bytes are read.

A path is a file, a folder, a glob, a run directory, or ``-``. The parts of a rotated log come oldest first, by their
number. The rank is taken from the path, and the whole number counts: ``rank1`` is not ``rank12``.
"""

import contextlib
import importlib
import itertools
import os
import re
import stat
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import IO, Any, NamedTuple

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.core.lazy_pattern import lazy_pattern
from tdbg.logs.log_header import RECORDS

STDIN = "-"
# base name, number of a rotated part, date of one, packing
PARTS = lazy_pattern(
    r"(?P<base>.+?\.(?:txt|log|out|err|jsonl|json))(?:\.(?P<part>\d{1,4})|[.-](?P<date>\d{4}-?\d\d-?\d\d[\w:-]*))?"
    r"(?P<packed>\.(?:gz|zst))?"
)
RANK_IN_NAME = r"(?i)(?:^|[^a-z0-9])(?:global[-_]?)?rank[-_=]?(\d+)(?!\d)|_rank(\d+)(?!\d)"
TASK_IN_NAME = r"(?i)(?:^|[._-])(?:task|proc|worker)[-_]?(\d+)(?!\d)"
ATTEMPT = r"attempt_\d+"
OWN_KINDS = {"debug": "debug_log_rank", "info": "info_log_rank"}
RUN_FILE = "run.json"


class Source(NamedTuple):
    """One file of a log, or stdin."""

    path: str
    rank: int | None = None
    packed: str = ""  # gz or zst
    size: int = 0
    inode: int = 0
    pipe: bool = False  # stdin, or a named one: it can be read once
    tangled: bool = False  # lines of several ranks, mixed

    @property
    def seekable(self) -> bool:
        """True if it can be read in units side by side."""
        return not (self.pipe or self.packed or self.tangled)

    def open_stream(self) -> Any:
        """The bytes, from the beginning; TdbgError where they cannot be read."""
        if self.pipe:
            return _open_pipe(self.path)
        raw = self._open_raw()
        if self.packed == "gz":
            return _Unzip(raw)
        if self.packed == "zst":
            return _Unzstd(raw, self.path)
        return raw

    def _open_raw(self) -> IO[bytes]:
        """The file that was found, even if rotation gave it another name since."""
        try:
            raw = run_files.open_read(self.path, buffering=0)
            if not self.inode or os.fstat(raw.fileno()).st_ino == self.inode:
                return raw
            raw.close()
            problem = "it was replaced by another file"
        except OSError as error:
            problem = error.strerror or "cannot be opened"
        folder = os.path.dirname(self.path) or "."
        for name in os.listdir(folder) if self.inode and os.path.isdir(folder) else ():
            with contextlib.suppress(OSError):
                path = os.path.join(folder, name)
                if name.startswith(os.path.basename(self.path)) and os.stat(path).st_ino == self.inode:
                    return run_files.open_read(path, buffering=0)
        raise TdbgError(f"{self.path}: {problem}", "check its path and permissions; follow a log that rotates with -F")


class _Pipe:
    """What comes through a pipe, as it comes; its beginning can be looked at without taking it."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def readinto(self, into: memoryview) -> int:
        """As much as there is, at least a byte; 0 at the end."""
        return int(self._buffer.readinto1(into))

    def read(self, count: int) -> bytes:
        """The beginning, which stays where it is."""
        return bytes(self._buffer.peek(count)[:count])

    def close(self) -> None:
        """It is read once, by whoever asks: it stays open."""


class _PackedPipe:
    """A gzip stream through a pipe; what was looked at of its beginning is given again."""

    def __init__(self, buffer: Any) -> None:
        self._stream = _Unzip(buffer)
        self._sample = b""

    def readinto(self, into: memoryview) -> int:
        """As that of a file."""
        count = min(len(into), len(self._sample))
        into[:count], self._sample = self._sample[:count], self._sample[count:]
        return count or self._stream.piece_into(into)

    def read(self, count: int) -> bytes:
        """The beginning, which stays where it is."""
        self._sample = self._sample or self._stream.read(count)
        return self._sample

    def close(self) -> None:
        """It is read once, by whoever asks: it stays open."""


_pipes: dict[object, _Pipe | _PackedPipe] = {}  # those that were opened: a second opening would find the rest alone


def _open_pipe(path: str) -> _Pipe | _PackedPipe:
    """Stdin or a named pipe (``<(zcat x.gz)``), unpacked if it is packed."""
    key = sys.stdin if path == STDIN else path
    if key is None:
        raise TdbgError("stdin is closed", "name a file, or pipe something into it")
    if key not in _pipes:
        try:
            buffer = sys.stdin.buffer if path == STDIN else open(path, "rb")  # noqa: SIM115 - see _pipes
        except OSError as error:
            raise TdbgError(f"{path}: {error.strerror}", "check its path and permissions") from None
        found = _Pipe(buffer)
        _pipes[key] = _PackedPipe(buffer) if found.read(2) == b"\x1f\x8b" else found
    return _pipes[key]


class NotPacked(zlib.error):
    """A file is not compressed in the way its name says; the message names the format."""


class _Unpacked(ABC):
    """A packed stream. Where it is damaged, what came before has been read."""

    PIECE_BYTES = 1 << 17  # one that meets damage is lost

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._damage: Exception | None = None

    @abstractmethod
    def piece_into(self, into: memoryview) -> int:
        """Some bytes as they come, 0 at the end; EOFError or zlib.error where it is damaged."""

    def readinto(self, into: memoryview) -> int:
        """As many bytes as there is room for, as a filter is faster with few large pieces; else as `piece_into`."""
        filled = 0
        while filled < len(into) and self._damage is None:
            try:
                got = self.piece_into(into[filled:])
            except (EOFError, zlib.error) as error:
                self._damage, got = error, 0
            if not got:
                break
            filled += got
        if self._damage is not None and not filled:
            raise self._damage
        return filled

    def read(self, count: int) -> bytes:
        """So many bytes; fewer at the end, or before damage."""
        into = memoryview(bytearray(count))
        try:
            return bytes(into[: self.readinto(into)])
        except (EOFError, zlib.error):
            return b""

    def close(self) -> None:
        """Close the file."""
        self._raw.close()


class _Unzip(_Unpacked):
    """A gzip stream, one member after the other."""

    CHUNK_BYTES = 1 << 16
    MAGIC = b"\x1f\x8b"

    def __init__(self, raw: IO[bytes]) -> None:
        super().__init__(raw)
        self._held = b""  # packed bytes
        self._members = 0  # that were begun
        self._inflate: Any = None  # of the member that is being read
        try:
            self._zlib: Any = importlib.import_module("isal.isal_zlib")  # the extra `fast`: three times as fast
        except ImportError:
            self._zlib = zlib

    def piece_into(self, into: memoryview) -> int:
        """Some bytes as they come, 0 at the end; EOFError or zlib.error where it is damaged."""
        while True:
            if not self._held and not (self._inflate is not None and self._inflate.unconsumed_tail):
                self._held = self._raw.read(self.CHUNK_BYTES)
            if self._inflate is None:
                self._held = self._held.lstrip(b"\0")  # padding between members, and at the end
                if not self._held:
                    return 0
                self._begin_member()
            try:
                piece = self._inflate.decompress(self._held, min(len(into), self.PIECE_BYTES))
            except self._zlib.error as error:
                raise zlib.error(str(error)) from None
            at_end = not self._held
            self._held = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            if self._inflate.eof:
                self._inflate = None
            elif not piece and at_end:
                raise EOFError("it is truncated")
            if piece:
                into[: len(piece)] = piece
                return len(piece)

    def _begin_member(self) -> None:
        """Prepare to decompress the bytes at hand; raises NotPacked or zlib.error if they are no gzip member."""
        if not self.MAGIC.startswith(self._held[:2]):
            raise zlib.error("what follows is not gzip data") if self._members else NotPacked("is not gzip data")
        self._members += 1
        self._inflate = self._zlib.decompressobj(31)


class _Unzstd(_Unpacked):
    """A zstd stream, one frame after the other. The library ends quietly with a cut file, so that is looked at here."""

    def __init__(self, raw: IO[bytes], path: str) -> None:
        try:
            zstandard = importlib.import_module("zstandard")
        except ImportError:
            raw.close()
            raise TdbgError(f"{path} is compressed with zstd", "install the extra: pip install 'tdbg[fast]'") from None
        super().__init__(raw)
        self._is_packed = _begins_as_zstd(raw)
        self._error: Any = zstandard.ZstdError
        self._stream: Any = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True, closefd=False)

    def piece_into(self, into: memoryview) -> int:
        """Some bytes as they come, 0 at the end; EOFError or zlib.error where it is damaged."""
        if not self._is_packed:
            raise NotPacked("is not zstd data")
        try:
            got = int(self._stream.readinto1(into[: self.PIECE_BYTES]))
        except self._error as error:
            raise zlib.error(str(error)) from None
        if not got and not _ends_whole(self._raw):
            raise EOFError("it is truncated")
        return got


def _begins_as_zstd(raw: IO[bytes]) -> bool:
    """True if the file begins like a zstd frame or a skippable one, or is empty."""
    head = os.pread(raw.fileno(), 4, 0)
    return b"\x28\xb5\x2f\xfd".startswith(head) or head[1:] == b"\x2a\x4d\x18"


def _ends_whole(raw: IO[bytes]) -> bool:
    """True if the last frame of a zstd file is complete: from block to block (RFC 8878, 3.1.1), unpacking nothing."""
    size, at = os.fstat(raw.fileno()).st_size, 0

    def read_number(width: int) -> int:
        nonlocal at
        found = os.pread(raw.fileno(), width, at)
        at += width
        return int.from_bytes(found, "little")

    while at < size:
        if 0x184D2A50 <= read_number(4) <= 0x184D2A5F:  # a frame to skip
            at += read_number(4)
            continue
        kind = read_number(1)
        single = kind >> 5 & 1
        at += (1 - single) + (0, 1, 2, 4)[kind & 3] + (single, 2, 4, 8)[kind >> 6]
        last = 0
        while not last and at < size:
            block = read_number(3)
            last = block & 1
            at += 1 if block >> 1 & 3 == 1 else block >> 3
        at += 4 * (kind >> 2 & 1) + (1 - last)  # its checksum; one byte too many if there was no last block
    return at == size


def find_sources(paths: Sequence[str], kind: str = "debug") -> list[Source]:
    """The files these paths mean, in the order they are to be read: by log, oldest part first.

    kind: debug, info or both: which of tdbg's two logs of a rank; what a folder has only one of is read in any case.
    Raises TdbgError for a path that is not there, and for one that holds no log.
    """
    found: dict[str, Source] = {}
    for path in paths:
        if path == STDIN:
            found[STDIN] = Source(STDIN, pipe=True)
            continue
        for file in _list_files(path, kind):
            if file not in found:
                found[file] = _describe_source(file)
    return list(found.values())


def _list_files(path: str, kind: str) -> list[str]:
    if os.path.isdir(path):
        files = _in_folder(path, kind)
        if not files:
            raise TdbgError(
                f"{path} holds no log", "name files, or a folder with .log, .txt, .out, .err or .jsonl files"
            )
        return files
    if os.path.lexists(path):
        return [path]
    matched = _expand_glob(path)
    if not matched:
        raise TdbgError(f"there is no {path}", "name a log file, a folder, a run directory, or - for stdin")
    return [file for name in matched for file in ([name] if os.path.isfile(name) else _in_folder(name, kind))]


class NoInfoLogError(TdbgError):
    """The run has other records, but none of a logger's at INFO and above."""


def _expand_glob(path: str) -> list[str]:
    import glob

    return sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) else []


def _in_folder(folder: str, kind: str) -> list[str]:
    found: list[str] = []
    run_files.protect_run_of(folder)
    runs = [folder] if _is_in_run(folder) else []
    for where, _, files in os.walk(folder):
        found += (os.path.join(where, name) for name in files if PARTS.fullmatch(name))
        if RUN_FILE in files:
            runs.append(where)
            run_files.protect_folder(where)
    names = [name for name in found if run_files.is_regular_file(name)]
    others = [name for name in names if not name.endswith(".json") and not _is_below(name, runs)]
    if others:
        return sorted(others, key=_build_sort_key)
    own = [name for name in names if _own_kind(name) or is_records(name)]  # events and the rest are no text for people
    kinds = {_own_kind(name) for name in own} - {""}
    if own and kind == "info" and not kinds:
        raise NoInfoLogError(f"{folder} has no info log", "leave out --type info: there may be other records")
    wanted = set(OWN_KINDS) if kind == "both" else {kind} if kind in kinds else kinds
    names = [name for name in own if _own_kind(name) in wanted or (is_records(name) and kind != "info")]
    return sorted(names, key=_build_sort_key)


def _is_in_run(folder: str) -> bool:
    """True for a part of a run directory, such as the folder of one rank."""
    path = os.path.abspath(folder)
    return any(os.path.isfile(os.path.join(path, *[os.pardir] * up, RUN_FILE)) for up in (1, 2))


def _is_below(name: str, folders: Sequence[str]) -> bool:
    return any(name.startswith(os.path.join(folder, "")) for folder in folders)


def is_records(path: str) -> bool:
    """True for the file of the program's own records in a run directory, or a rotated part of it."""
    return os.path.basename(path).startswith(RECORDS)


def _own_kind(name: str) -> str:
    base = os.path.basename(name)
    return next((kind for kind, start in OWN_KINDS.items() if base.startswith(start)), "")


def _build_sort_key(name: str) -> tuple[Any, ...]:
    """By folder and log, numbers as numbers; of one log the highest part is the oldest, the live file the newest."""
    folder, base = os.path.split(name)
    found = PARTS.fullmatch(base)
    if found is None:
        return (_build_natural_key(folder), _build_natural_key(base), 0, 0, "")
    part = int(found["part"]) if found["part"] else 0
    live = 0 if found["part"] or found["date"] else 1
    return (_build_natural_key(folder), _build_natural_key(found["base"]), live, -part, found["date"] or "")


def _build_natural_key(text: str) -> list[tuple[int, int, str]]:
    return [(0, int(word), "") if word.isdigit() else (1, 0, word) for word in re.split(r"(\d+)", text) if word]


def _describe_source(path: str) -> Source:
    packed = path.rpartition(".")[2]
    packed = packed if packed in ("gz", "zst") else ""
    try:
        status = os.stat(path)
    except OSError as error:
        raise TdbgError(f"{path}: {error.strerror}", "check its path and permissions") from None
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode) or _is_harmless(path, status.st_mode)):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a device or a socket"
        raise TdbgError(f"{path} is {kind}, not a log", "name a file, a pipe, or - for stdin")
    if not stat.S_ISREG(status.st_mode):
        return Source(path, rank_of(path), pipe=True)
    return Source(path, rank_of(path), packed, status.st_size, status.st_ino)


def _is_harmless(path: str, mode: int) -> bool:
    """True for what ends by itself though it is a device: a terminal, /dev/null."""
    return stat.S_ISCHR(mode) and (os.path.realpath(path) == os.devnull or _is_terminal(path))


def _is_terminal(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.isatty(fd)
    finally:
        os.close(fd)


def rank_of(path: str) -> int | None:
    """The rank that a path names: ``rank3`` in the file's name or a folder's, torchrun's log tree, a task's number."""
    parts = [part for part in path.split(os.sep) if part]
    for text in reversed(parts[-4:]):
        found = re.search(RANK_IN_NAME, text) if "rank" in text.lower() else None
        if found:
            return int(found[1] or found[2])
    for above, folder in itertools.pairwise(parts[:-1]):  # torchrun --log-dir: attempt_0/3/stdout.log
        if folder.isdigit() and re.fullmatch(ATTEMPT, above):
            return int(folder)
    name = parts[-1] if parts else ""
    found = re.search(TASK_IN_NAME, name) if any(sign.isdigit() for sign in name) else None
    return int(found[1]) if found else None


def total_bytes(sources: Iterable[Source]) -> int:
    """How much there is to read, as far as that is known."""
    return sum(source.size for source in sources)
