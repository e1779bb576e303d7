"""Batches that a rank saved at a finding: plain safetensors files beside its events."""

import re
import stat
from collections.abc import Iterator
from itertools import islice

import msgspec

from tdbg.core.files import read_json
from tdbg.core.rundir import ProcessDir, RunDir
from tdbg.viewer.routes import API, route
from tdbg.viewer.run_library import Served

NAME = re.compile(r"batch_step(\d{1,18})\.safetensors")
MAX_BATCHES = 1_000
MAX_LEFT_OUT = 20


class SavedBatch(msgspec.Struct, kw_only=True):
    """A batch that was kept. file: in the run directory. left_out: tensors that were not stored, with dtype and shape."""

    file: str
    rank: int | None
    step: int
    bytes: int
    left_out: list[str]


class SavedBatches(msgspec.Struct, kw_only=True):
    """The saved batches of a run, by rank and step."""

    batches: list[SavedBatch]


@route("GET", f"{API}/runs/{{run}}/batches")
def list_batches(served: Served, run: str) -> SavedBatches:
    """List the batches that were saved when something was found."""
    return SavedBatches(batches=list(islice(iter_batches(served.runs.open_run(run)), MAX_BATCHES)))


def iter_batches(run: RunDir) -> Iterator[SavedBatch]:
    """The saved batches; only regular files count."""
    for process in run.list_processes():
        for path in sorted(process.path.glob("batch_step*.safetensors")):
            match, status = NAME.fullmatch(path.name), path.lstat()
            if match and stat.S_ISREG(status.st_mode):
                yield SavedBatch(
                    file=f"{process.label}/{path.name}",
                    rank=process.rank,
                    step=int(match[1]),
                    bytes=status.st_size,
                    left_out=_read_left_out(process, path.stem),
                )


def _read_left_out(process: ProcessDir, stem: str) -> list[str]:
    try:
        about = read_json(process.path / f"{stem}.json")
    except (OSError, ValueError):
        return []
    found = about.get("left_out") if isinstance(about, dict) else None
    return [str(one)[:200] for one in found[:MAX_LEFT_OUT]] if isinstance(found, list) else []
