"""Find the traces that a path names: one file, a folder, or a run with its ranks, attempts and windows."""

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.core.files import why_unreadable
from tdbg.core.output import print_messages
from tdbg.core.rundir import RUNS
from tdbg.core.tables import format_count, join_limited
from tdbg.core.urls import is_url
from tdbg.traces.parse.merged_traces import PARTS

ENDINGS = (".json", ".json.gz")
TRACE = re.compile(r"\.pt\.trace\.json(\.gz)?$")
TIME = re.compile(r"\.(\d{10,})\.pt\.trace\.json")
RANK = re.compile(r"(?<![a-z])rank[-_ ]?(\d{1,9})(?!\d)", re.IGNORECASE)
ATTEMPT = re.compile(r"attempt(\d{1,9})$")
MERGED = re.compile(
    rb'^\{"tdbgRanks":\[(\d{1,9}(?:,\d{1,9})*)\]'
)  # how `tdbg trace slice` begins a file of several ranks
BEGINNING = 1 << 16  # bytes that are looked at to tell whether a file is a trace
MAX_NAMED = 16  # ranks that are named
DEEP = 6  # folders below the one that is named
NONE_YET = "`tdbg profile -- COMMAND` makes one"
OF_A_LINK = "name what a link points to, or a trace that is a regular file"


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One trace: where it is, and what its path tells. ``window``: which of its rank, from 0, in the order of time.

    part: which of the ranks that `tdbg trace slice` merged into the file; None where it is one trace.
    """

    path: Path
    rank: int | None
    attempt: int = 0
    window: int = 0
    part: int | None = None

    @property
    def label(self) -> str:
        """Its rank, attempt and window, as far as they tell it from others."""
        parts = [f"rank {self.rank}"] if self.rank is not None else [self.path.name]
        parts += [f"attempt {self.attempt}"] if self.attempt else []
        return ", ".join([*parts, *([f"window {self.window}"] if self.window else [])])


def find_traces(where: str, wanted: Callable[[int], bool] | None = None) -> list[TraceFile]:
    """The traces at a path, by rank, attempt and time; a run may be named as everywhere.

    where: empty for the newest run here that has traces; a folder of several runs is the newest of them that has any,
    and it is said. wanted: which ranks. Raises TdbgError where there is none.
    """
    base = _resolve_place(where)
    if base.is_file():
        return _traces_in_file(base, wanted)
    there, left_out = _list_files(base)
    files = sorted(
        _newest_run_only(there),
        key=lambda path: (_parse_rank(path) or 0, _parse_attempt(path), _get_time_key(path), path.name),
    )
    found: list[TraceFile] = []
    counts: dict[tuple[int | None, int, Path], int] = {}
    for path in files:
        rank, attempt = _parse_rank(path), _parse_attempt(path)
        if rank is None and _slice_ranks(path):
            found += [one for one in _slice_parts(path) if wanted is None or wanted(one.rank or 0)]
            continue
        key = (rank, attempt, path.parent if rank is None else base)
        window = counts[key] = counts.get(key, -1) + 1
        if wanted is None or rank is None or wanted(rank):
            found.append(TraceFile(path, rank, attempt, 0 if rank is None else window))
    if files and not found:
        known = sorted({rank for path in files for rank in (_slice_ranks(path) or [_parse_rank(path) or 0])})
        raise TdbgError(f"{base}: there is no trace of these ranks", f"there are traces of {_list_ranks(known)}")
    if not found:
        raise _no_trace_error(base, left_out)
    if left_out:
        print_messages(_describe_left_out(left_out))
    return found


def _no_trace_error(base: Path, left_out: Sequence[str]) -> TdbgError:
    """What is said where there is no trace, or none that is read."""
    if base.is_dir() and not left_out:
        return TdbgError(f"{base}: there is no trace in it or below it", NONE_YET)
    why = _describe_left_out(left_out) if base.is_dir() else f"{base} is left out: {why_unreadable(base)}"
    return TdbgError(f"there is no trace that can be read: {why}", OF_A_LINK)


def _describe_left_out(left_out: Sequence[str]) -> str:
    more = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
    return f"{left_out[0]}{more}"


def _list_ranks(ranks: Sequence[int]) -> str:
    """``rank 0``, or ``the ranks 0, 1 and 98 more``."""
    return f"{'rank' if len(ranks) == 1 else 'the ranks'} {join_limited(ranks, MAX_NAMED)}"


def _traces_in_file(path: Path, wanted: Callable[[int], bool] | None) -> list[TraceFile]:
    """The trace in a file; of a slice of several ranks each of them."""
    parts = _slice_parts(path)
    found = [one for one in parts if wanted is None or wanted(one.rank or 0)]
    if parts and not found:
        known = ", ".join(str(one.rank) for one in parts)
        raise TdbgError(f"{path}: there is no trace of these ranks", f"the slice holds the ranks {known}")
    return found or [TraceFile(path, _parse_rank(path))]


def _slice_parts(path: Path) -> list[TraceFile]:
    """The traces that `tdbg trace slice` merged into a file; none for any other file."""
    counts: Counter[int] = Counter()
    found = []
    for part, rank in enumerate(_slice_ranks(path)):
        found.append(TraceFile(path, rank, window=counts[rank], part=part))
        counts[rank] += 1
    return found


def select_newest_windows(found: Sequence[TraceFile]) -> list[TraceFile]:
    """Of each rank the last window of the last attempt; what tells no rank is kept."""
    last: dict[object, TraceFile] = {}
    for one in found:
        last[one.path if one.rank is None else one.rank] = one
    return list(last.values())


def run_name(path: Path) -> str:
    """The name of the run that a trace is of; its own name where it is of none."""
    run = run_folder(path)
    return run.name if run is not None else path.name


def run_folder(path: Path) -> Path | None:
    """The folder of the run that a trace is of; None where it is of none."""
    from tdbg.core.rundir import STATE_FILE

    return next((folder for folder in path.parents if (folder / STATE_FILE).is_file()), None)


def _newest_run_only(files: list[Path]) -> list[Path]:
    """Of the traces of several runs those of the newest: ranks of two runs never met."""
    from tdbg.core.rundir import STATE_FILE

    of: dict[Path, Path | None] = {}  # a folder is looked up once
    for path in files:
        if path.parent not in of:
            of[path.parent] = run_folder(path)
    runs = {run for run in of.values() if run is not None}
    if len(runs) < 2:
        return files
    newest = max(runs, key=lambda run: ((run / STATE_FILE).stat().st_mtime, run.name))
    print_messages(f"there are traces of {format_count(len(runs), 'run')}: using the newest, {newest}")
    return [path for path in files if of[path.parent] == newest]


def _resolve_place(where: str) -> Path:
    from tdbg.core.rundir import RunDir

    if not where:
        return _newest_run()
    path = Path(where)
    if os.path.exists(path):
        return path
    if is_url(where):
        return RunDir.open(where).path  # refused, with the command that fetches it
    if path.is_symlink():
        raise TdbgError(f"{where} is a broken link: its target does not exist", OF_A_LINK)
    try:
        return RunDir.open(where).path
    except TdbgError:
        raise TdbgError(
            f"{where}: there is no such file, folder or run", "name a trace, or a folder of traces"
        ) from None


def _newest_run() -> Path:
    """The newest run here that has traces; one without is passed over, and it is said."""
    from tdbg.core.rundir import RunDir

    runs = RunDir.list_runs()
    for run in reversed(runs):
        if _list_files(run.path)[0]:
            if run is not runs[-1]:
                print_messages(f"the newest run has no trace: using {run.path}")
            return run.path
    if runs:
        raise TdbgError(f"no run under {Path(RUNS).resolve()} has a trace", NONE_YET)
    raise TdbgError(f"there is no run under {Path(RUNS).resolve()}", f"{NONE_YET}, or name a trace")


def _list_files(base: Path) -> tuple[list[Path], list[str]]:
    """Files whose name says trace, or where there is none, every JSON file that begins as one; and what is left out, and why.

    Links to folders are not followed; links to files are, outside of a run directory.
    """
    run = run_files.protect_run_of(base)
    links: list[Path] = []
    named: list[Path] = []
    others: list[Path] = []
    left_out: list[str] = []
    for folder, folders, names in os.walk(base):
        if len(Path(folder).relative_to(base).parts) >= DEEP:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links += [path for name in folders if (path := Path(folder, name)).is_symlink()]
        for name in sorted(names):
            path = Path(folder, name)
            if not name.endswith(ENDINGS) or name.startswith("."):
                continue
            if run_files.is_regular_file(path):
                (named if TRACE.search(name) else others).append(path)
            elif TRACE.search(name):
                left_out.append(f"{path} is left out: {why_unreadable(path)}")
    found = named or [path for path in others if _is_trace(path)]
    if run or not found:  # elsewhere a link beside traces need not have to do with them
        left_out += [f"{path} is left out: it is a link to a folder, and those are not followed" for path in links]
    return found, left_out


def _read_start(path: Path) -> bytes:
    from tdbg.traces.parse.chunks import Blocks

    try:
        return next(iter(Blocks(path, BEGINNING)), b"").lstrip()
    except TdbgError:
        return b""


def _slice_ranks(path: Path) -> list[int]:
    """The ranks of a slice of several, in the order of its parts; none for any other file."""
    match = MERGED.search(_read_start(path))
    ranks = match[1].split(b",") if match else []
    return [int(rank) for rank in ranks] if len(ranks) <= PARTS else []


def _is_trace(path: Path) -> bool:
    begin = _read_start(path)
    return b'"traceEvents"' in begin or (begin[:1] == b"[" and b'"ph"' in begin)


def _parse_rank(path: Path) -> int | None:
    """The rank that a path tells: of the file's name, or else of the nearest folder."""
    for part in reversed(path.parts[-4:]):
        match = RANK.search(part)
        if match:
            return int(match[1])
    return None


def _parse_attempt(path: Path) -> int:
    match = next((found for part in path.parts if (found := ATTEMPT.match(part))), None)
    return int(match[1]) if match else 0


def _get_time_key(path: Path) -> int:
    match = TIME.search(path.name)
    return int(match[1]) if match else path.stat().st_mtime_ns
