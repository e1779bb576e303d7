"""The traces that a path names: one file, a folder, or a run with its ranks, attempts and windows."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tdbg.errors import TdbgError

ENDINGS = (".json", ".json.gz")
TRACE = re.compile(r"\.pt\.trace\.json(\.gz)?$")
TIME = re.compile(r"\.(\d{10,})\.pt\.trace\.json")
RANK = re.compile(r"(?<![a-z])rank[-_ ]?(\d+)", re.IGNORECASE)
ATTEMPT = re.compile(r"attempt(\d+)$")
BEGINNING = 1 << 16  # bytes that are looked at to tell whether a file is a trace
DEEP = 6  # folders below the one that is named


@dataclass(frozen=True, slots=True)
class Found:
    """One trace: where it is, and what its path tells. ``window``: which of its rank, from 0, in the order of time."""

    path: Path
    rank: int | None
    attempt: int = 0
    window: int = 0

    @property
    def label(self) -> str:
        """Its rank, attempt and window, as far as they tell it from others."""
        parts = [f"rank {self.rank}"] if self.rank is not None else [self.path.name]
        parts += [f"attempt {self.attempt}"] if self.attempt else []
        return ", ".join([*parts, *([f"window {self.window}"] if self.window else [])])


def traces(where: str, wanted: Callable[[int], bool] | None = None) -> list[Found]:
    """The traces at a path, by rank, attempt and time; a run may be named as everywhere.

    wanted: which ranks. Raises TdbgError where there is none.
    """
    base = _place(where)
    if base.is_file():
        return [Found(base, _rank(base))]
    files = sorted(_files(base), key=lambda path: (_rank(path) or 0, _attempt(path), _time(path), path.name))
    found: list[Found] = []
    counts: dict[tuple[int | None, int, Path], int] = {}
    for path in files:
        rank, attempt = _rank(path), _attempt(path)
        key = (rank, attempt, path.parent if rank is None else base)
        window = counts[key] = counts.get(key, -1) + 1
        if wanted is None or rank is None or wanted(rank):
            found.append(Found(path, rank, attempt, 0 if rank is None else window))
    if not found:
        what = "of these ranks" if files else "in it or below it"
        raise TdbgError(f"{where}: there is no trace {what}", "`tdbg profile -- COMMAND` makes one")
    return found


def newest(found: Sequence[Found]) -> list[Found]:
    """Of each rank the last window of the last attempt; what tells no rank is kept."""
    last: dict[object, Found] = {}
    for one in found:
        last[one.path if one.rank is None else one.rank] = one
    return list(last.values())


def _place(where: str) -> Path:
    from tdbg.rundir import RunDir

    if not where:
        return RunDir.open(None).path
    path = Path(where)
    if os.path.exists(path):
        return path
    try:
        return RunDir.open(where).path
    except TdbgError:
        raise TdbgError(
            f"{where}: there is no such file, folder or run", "name a trace, or a folder of traces"
        ) from None


def _files(base: Path) -> list[Path]:
    """Files whose name says trace; where there is none, every JSON file that begins as one."""
    named: list[Path] = []
    others: list[Path] = []
    for folder, folders, names in os.walk(base):
        if len(Path(folder).relative_to(base).parts) >= DEEP:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            if name.endswith(ENDINGS) and not name.startswith("."):
                (named if TRACE.search(name) else others).append(Path(folder, name))
    return named or [path for path in others if _is_trace(path)]


def _is_trace(path: Path) -> bool:
    from tdbg.traces.chunks import Blocks

    try:
        begin = next(iter(Blocks(path, BEGINNING)), b"").lstrip()
    except TdbgError:
        return False
    return b'"traceEvents"' in begin or (begin[:1] == b"[" and b'"ph"' in begin)


def _rank(path: Path) -> int | None:
    """The rank that a path tells: of the file's name, or else of the nearest folder."""
    for part in reversed(path.parts[-4:]):
        match = RANK.search(part)
        if match:
            return int(match[1])
    return None


def _attempt(path: Path) -> int:
    match = next((found for part in path.parts if (found := ATTEMPT.match(part))), None)
    return int(match[1]) if match else 0


def _time(path: Path) -> int:
    match = TIME.search(path.name)
    return int(match[1]) if match else path.stat().st_mtime_ns
