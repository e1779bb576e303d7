"""The files of rows that a path names: a run, a folder of runs' files, one file. None is opened."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.core.files import why_unreadable
from tdbg.core.ranges import in_ranges, parse_ranges
from tdbg.core.rundir import STATE_FILE, ProcessDir, RunDir
from tdbg.metrics.rows.foreign_rows import states_below
from tdbg.metrics.rows.row import FILE

RUN_FIRST = "`tdbg run -- python train.py` writes metrics of every rank; a run at level off has none"


class RowsFile(NamedTuple):
    """One file. rank: whose folder it lies in; None where it lies in no rank's: its rows tell."""

    path: Path
    rank: int | None = None
    attempt: int = 0


class Place(NamedTuple):
    """What was asked for: how it was named, and its files in order of rank and attempt. run: its directory, if it is one."""

    name: str
    files: Sequence[RowsFile]
    run: RunDir | None = None


def find_rows_files(where: str = "", ranks: str = "") -> Place:
    """The files of a run (a directory or a name under ./tdbg_runs), of a folder or one file; "": the newest run.

    ranks: such as ``0,3-5``; empty for all. Raises TdbgError where there is none.
    """
    path = Path(where)
    if where and path.is_file() and path.name != STATE_FILE:
        return Place(where, [RowsFile(path)])
    if where and path.exists() and not (path.is_file() or path.is_dir()):
        raise TdbgError(f"{where} cannot be read: {why_unreadable(path)}", "name a run, a folder or a regular file")
    run_files.protect_run_of(path)
    if where and path.is_dir() and not (path / STATE_FILE).is_file():
        found = [
            RowsFile(one, *_parse_owner(path, one))
            for one in sorted(path.rglob(FILE))
            if run_files.is_regular_file(one)
        ]
        found.sort(key=lambda one: (-1 if one.rank is None else one.rank, one.attempt))
        if not found:
            found = [RowsFile(one) for one in sorted(path.glob("*.jsonl")) or states_below(path)]
        place = Place(where, found)
    else:
        run = RunDir.open(where or None)
        is_copy = run.place != str(run.path)
        place = Place(run.place if is_copy else where or run.place, _files_of_run(run), run)
    if not place.files:
        raise TdbgError(f"{place.name}: there are no metrics", RUN_FIRST)
    return Place(place.name, _selected_files(place, ranks), place.run)


def _files_of_run(run: RunDir) -> list[RowsFile]:
    """Those of its ranks; those of other processes where no rank has any."""
    paths = [*run.path.glob(f"rank*/**/{FILE}"), *run.path.glob(f"other/*/{FILE}")]
    processes = sorted(
        (ProcessDir(run, path.parent) for path in paths if run_files.is_regular_file(path)),
        key=lambda one: one.sort_key,
    )
    chosen = [one for one in processes if one.is_rank] or processes
    return [RowsFile(one.path / FILE, one.rank, one.attempt) for one in chosen]


def _parse_owner(root: Path, path: Path) -> tuple[int | None, int]:
    """Rank and attempt, as folders of a run name them."""
    words = path.relative_to(root).parts[:-1] or (root.name,)
    rank = next((word[4:] for word in words if word.startswith("rank") and word[4:].isdigit()), None)
    attempt = next((word[7:] for word in words if word.startswith("attempt") and word[7:].isdigit()), "0")
    return (None if rank is None else int(rank)), int(attempt)


def _selected_files(place: Place, ranks: str) -> list[RowsFile]:
    if not ranks:
        return list(place.files)
    bounds = parse_ranges("--ranks", ranks, "-")
    found = [one for one in place.files if one.rank is None or in_ranges(one.rank, bounds)]
    if not found:
        known = ", ".join(str(one.rank) for one in place.files)
        raise TdbgError(f"{place.name}: no rank of {ranks} has metrics", f"these have: {known}")
    return found
