"""Batches that a rank saved at a finding: plain safetensors files beside its events."""

import os
import re
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from tdbg.core.files import is_readable, parse_json, read_small_file
from tdbg.core.rundir import EVENTS, ProcessDir, RunDir
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_library import Served

NAME = re.compile(r"batch_step(\d{1,18})\.safetensors")
FOLDER = re.compile(r"rank\d{4,}(/[A-Za-z0-9_-]{1,100})?|other/[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")  # of a process
MAX_BATCHES = 1_000
MAX_NOTE_BYTES = 64 << 10  # of what is said beside a batch
MAX_LEFT_OUT = 20


class SavedBatch(msgspec.Struct, kw_only=True):
    """A batch that was kept. file: in the run directory. left_out: tensors that were not stored, with dtype and shape."""

    file: str
    rank: int | None
    step: int
    bytes: int
    left_out: list[str]


class SavedBatches(msgspec.Struct, kw_only=True):
    """The saved batches of a run, by rank and step. left_out: how many more there are."""

    batches: list[SavedBatch]
    left_out: int = 0


@route("GET", f"{API}/runs/{{run}}/batches")
def list_batches(served: Served, run: str) -> SavedBatches:
    """List the batches that were saved when something was found."""
    found = _iter_files(served.runs.open_run(run))
    batches = [_describe_batch(*one) for one in islice(found, MAX_BATCHES)]
    return SavedBatches(batches=batches, left_out=sum(1 for _ in found))


def iter_batches(run: RunDir) -> Iterator[SavedBatch]:
    """The saved batches; only regular files count."""
    return (_describe_batch(*one) for one in _iter_files(run))


def _iter_files(run: RunDir) -> Iterator[tuple[ProcessDir, Path, int, int]]:
    """The process, path, step and bytes of each."""
    for process in run.list_processes():
        for path in sorted(process.path.glob("batch_step*.safetensors")):
            match, status = NAME.fullmatch(path.name), _read_status(path)
            if match and status is not None and stat.S_ISREG(status.st_mode):
                yield process, path, int(match[1]), status.st_size


def _describe_batch(process: ProcessDir, path: Path, step: int, nbytes: int) -> SavedBatch:
    return SavedBatch(
        file=f"{process.label}/{path.name}",
        rank=process.rank,
        step=step,
        bytes=nbytes,
        left_out=_read_left_out(process, path.stem),
    )


def find_batch(run: RunDir, file: str) -> Path | None:
    """The place of one saved batch, by its ``file``; None for what is none. No other process is looked at."""
    folder, _, name = file.rpartition("/")
    if not FOLDER.fullmatch(folder) or not NAME.fullmatch(name):
        return None
    path = run.path / folder / name
    parts = [run.path / folder, *(run.path / folder).parents[: folder.count("/")]]
    status = _read_status(path)
    is_real = status is not None and stat.S_ISREG(status.st_mode) and not any(part.is_symlink() for part in parts)
    return path if is_real and is_readable(run.path / folder / EVENTS) else None


def _read_status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:  # it was removed meanwhile
        return None


def _read_left_out(process: ProcessDir, stem: str) -> list[str]:
    try:
        about = parse_json(read_small_file(process.path / f"{stem}.json", MAX_NOTE_BYTES))
    except (OSError, ValueError):
        return []
    found = about.get("left_out") if isinstance(about, dict) else None
    return [str(one)[:200] for one in found[:MAX_LEFT_OUT]] if isinstance(found, list) else []
