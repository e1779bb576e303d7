"""The files that `tdbg join` copies: which, where to, and with their times shifted to one clock.

All are copied, none is linked, so the joined run stays whole whatever becomes of its parts. They are copied as bytes, line by
line where times are shifted; nothing is unpickled. No link is followed.
"""

import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, NamedTuple

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.core.files import MAX_LINE_BYTES, open_regular, parse_json
from tdbg.core.rundir import ALERTS, EVENTS, FINDINGS, PRESSURE, UNWRITTEN, UPLOAD
from tdbg.core.sink_files import FOLDER as SINKS
from tdbg.core.tables import format_size
from tdbg.launch.joined_parts import Member, Part, Place, is_member_name, make_unique

FOLDERS = (
    "hello",
    ALERTS,
    UPLOAD,
    UNWRITTEN,
    SINKS,
    PRESSURE,
)  # a file for each process or host: they are put together
LINES = (FINDINGS, "notes.jsonl")  # appended to one another
OUTPUT = ("stdout*.log", "stderr*.log")  # of `--tee`, one for each agent
OTHER = "other"
BLOCK_BYTES = 1 << 20
ROOM_BYTES = 16 << 20  # that are left free
JSON_TIMES = (EVENTS, "metrics.jsonl")  # wall clock, in the field `t`
TEXT_TIME = re.compile(rb'\A((?:\{"time": ")?)(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6})(?=[ "])')
TEXT_LOG = re.compile(r"(records\.jsonl|(debug|info)_log_rank\d+\.txt)(\.\d+)?")


class Copy(NamedTuple):
    """One file to be copied."""

    source: Path
    target: str  # below the joined run
    nbytes: int
    shift_s: float = 0.0
    appends: bool = False


class Plan(NamedTuple):
    """All of them, and what is left out."""

    copies: list[Copy]
    left_out: list[str]

    @property
    def nbytes(self) -> int:
        """What they take on the disk."""
        return sum(copy.nbytes for copy in self.copies)


def plan_copies(parts: Sequence[Part], places: Iterable[Place], shift_of: Callable[[Part], float]) -> Plan:
    """Every file of the joined run. Raises TdbgError for a link in a part."""
    plan = Plan([], [])
    for place in places:
        shift_s = shift_of(place.member.part)
        for source, name, nbytes in _iter_member_files(place.member, plan.left_out):
            plan.copies.append(Copy(source, f"{place.folder}/{name}", nbytes, shift_s))
    taken: set[str] = set()
    for part in parts:
        plan.copies.extend(_plan_shared_files(part, taken, shift_of(part), plan.left_out))
        plan.copies.extend(_plan_others(part, taken, shift_of(part), plan.left_out))
    return plan


def _iter_member_files(member: Member, left_out: list[str]) -> Iterator[tuple[Path, str, int]]:
    """The files of a process, without those of its restarts below it."""
    base = member.process.path
    for source, name, nbytes in _iter_files(base, left_out):
        if not is_member_name(name.partition("/")[0]) or "/" not in name:
            yield source, name, nbytes


def _plan_shared_files(part: Part, taken: set[str], shift_s: float, left_out: list[str]) -> Iterator[Copy]:
    """What stands beside the folders of the ranks."""
    for folder in FOLDERS:
        for source, name, nbytes in _iter_files(part.run.path / folder, left_out):
            moved_s = shift_s if folder == PRESSURE else 0.0
            yield Copy(source, make_unique(f"{folder}/{name}", taken), nbytes, moved_s)
    outputs = [path for pattern in OUTPUT for path in sorted(part.run.path.glob(pattern))]
    for path in (*(part.run.path / name for name in LINES), *outputs):
        for source, nbytes in _check_file(path, left_out):
            target = path.name if path.name in LINES else make_unique(path.name, taken)
            yield Copy(source, target, nbytes, appends=path.name in LINES)


def _plan_others(part: Part, taken: set[str], shift_s: float, left_out: list[str]) -> Iterator[Copy]:
    """Processes that were no rank: launchers, and crashes before the first step."""
    for folder in sorted((part.run.path / OTHER).glob("*/")):
        target = make_unique(f"{OTHER}/{folder.name}", taken)
        for source, name, nbytes in _iter_files(folder, left_out):
            yield Copy(source, f"{target}/{name}", nbytes, shift_s)


def _iter_files(base: Path, left_out: list[str]) -> Iterator[tuple[Path, str, int]]:
    """The regular files below a folder, each with its name from there and its size."""
    if base.is_symlink():
        raise _refuse_link(base)
    for folder, folders, names in os.walk(base):
        folders.sort()
        for name in folders:
            if os.path.islink(os.path.join(folder, name)):
                raise _refuse_link(os.path.join(folder, name))
        for name in sorted(names):
            path = Path(folder, name)
            for source, nbytes in _check_file(path, left_out):
                yield source, path.relative_to(base).as_posix(), nbytes


def _check_file(path: Path, left_out: list[str]) -> Iterator[tuple[Path, int]]:
    """The file and its size; nothing where it is none. Raises TdbgError for a link."""
    try:
        about = os.lstat(path)
    except OSError:
        return
    if stat.S_ISLNK(about.st_mode):
        raise _refuse_link(path)
    if stat.S_ISREG(about.st_mode):
        yield path, about.st_size
    else:
        left_out.append(f"{path} is left out: it is not a regular file")


def _refuse_link(path: str | Path) -> TdbgError:
    return TdbgError(f"{path} is a symbolic link", "tdbg follows no links in a run directory: remove it first")


def check_room(folder: Path, nbytes: int) -> None:
    """TdbgError where the disk has not enough room."""
    free = shutil.disk_usage(folder).free
    if nbytes + ROOM_BYTES > free:
        raise TdbgError(
            f"joining copies {format_size(nbytes)}, and {folder} has {format_size(free)} left",
            "free disk space, or name another place with -o",
        )


def copy_file(copy: Copy, run: Path) -> None:
    """Copy one file into the joined run. Raises OSError."""
    with open_regular(copy.source) as source:
        target = run / copy.target
        if copy.appends:
            is_torn = _ends_within_a_line(target)
            handle = run_files.open_append(target, makes=True)
            opened: IO[bytes] = os.fdopen(handle, "ab")
            if is_torn:
                opened.write(b"\n")
        else:
            opened = run_files.open_new(target, makes=True)
        with opened as file:
            shift = _find_shift(copy.target, copy.shift_s)
            if shift is None:
                shutil.copyfileobj(source, file, BLOCK_BYTES)
            else:
                file.writelines(shift(line) for line in iter(lambda: source.readline(MAX_LINE_BYTES), b""))


def _ends_within_a_line(path: Path) -> bool:
    """True if the last line of what is there already was cut off."""
    try:
        with open_regular(path) as file:
            return bool(file.seek(0, os.SEEK_END)) and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"
    except OSError:
        return False


def _find_shift(target: str, shift_s: float) -> Callable[[bytes], bytes] | None:
    """How the lines of a file are shifted in time; None where it holds no times, or none is to be changed."""
    if not shift_s:
        return None
    name = os.path.basename(target)
    if name in JSON_TIMES or target.startswith(f"{PRESSURE}/"):
        return lambda line: _shift_json_line(line, shift_s)
    if TEXT_LOG.fullmatch(name):
        return lambda line: _shift_text_line(line, timedelta(seconds=shift_s))
    return None


def _shift_json_line(line: bytes, shift_s: float) -> bytes:
    """The line with its time moved; one that is torn or foreign as it is."""
    try:
        row = parse_json(line)
    except ValueError:
        return line
    if not isinstance(row, dict) or not _shift_field(row, "t", shift_s):
        return line
    values = row.get("values")
    if isinstance(values, dict) and row.get("type") == "observation":
        _shift_field(values, "began_t", shift_s)
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def _shift_field(row: dict[str, Any], name: str, shift_s: float) -> bool:
    value = row.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    row[name] = value + shift_s
    return True


def _shift_text_line(line: bytes, shift: timedelta) -> bytes:
    """The line with the time at its beginning moved, where there is one."""
    found = TEXT_TIME.match(line)
    if found is None:
        return line
    try:
        moved = datetime.fromisoformat(found[2].decode()) + shift
    except (ValueError, OverflowError):
        return line
    return found[1] + moved.isoformat(timespec="microseconds").encode() + line[found.end() :]
