"""The folder ``sinks`` of a run directory: what `--to` has found and done, said by one process to another.

A rank announces runs of its program there (of W&B, of TensorBoard), asks the supervisor for the report before such a run is
finished, and reads the reply. Whoever has sent leaves word of it. Standard library alone: ranks write here.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from tdbg.core import run_files
from tdbg.core.files import read_json

FOLDER = "sinks"
OWN, REQUEST, REPLY, OUTCOME = "own", "request", "reply", "outcome"
WANDB, TENSORBOARD = "wandb", "tensorboard"
LOOK_S = 0.02  # between two looks for a reply


def _write_json(run: Path, name: str, data: object) -> Path:
    path = run / FOLDER / name
    run_files.write_atomically(path, json.dumps(data, default=str).encode(), makes=True)
    return path


def _read_matching_files(run: Path, pattern: str) -> list[dict[str, Any]]:
    """The JSON objects in the files with such a name, the oldest first; what cannot be read is left out."""
    found = []
    for path in (run / FOLDER).glob(pattern):
        try:
            found.append((path.stat().st_mtime_ns, read_json(path)))
        except (OSError, ValueError):
            continue
    return [one for _, one in sorted(found, key=lambda item: item[0]) if isinstance(one, dict)]


def announce_own_run(run: Path, sink: str, about: dict[str, object], number: int = 0) -> None:
    """A rank: the program has a run of its own there. number: which one of this process. Raises OSError."""
    _write_json(run, f"{OWN}-{sink}-{os.getpid()}-{number}.json", about)


def list_announced(run: Path, sink: str) -> list[dict[str, Any]]:
    """The program's own runs, the oldest first."""
    return _read_matching_files(run, f"{OWN}-{sink}-*.json")


def request_report(run: Path, patience_s: float) -> dict[str, Any]:
    """A rank: the report as it is now, made by the supervisor; empty if none comes in time. Raises OSError."""
    name = f"{os.getpid()}-{time.monotonic_ns()}.json"
    asked = _write_json(run, f"{REQUEST}-{name}", {})
    reply = run / FOLDER / f"{REPLY}-{name}"
    until = time.monotonic() + patience_s
    try:
        while time.monotonic() < until:
            if reply.exists():
                found = read_json(reply)
                return found if isinstance(found, dict) else {}
            time.sleep(LOOK_S)
    finally:
        for path in (asked, reply):
            if path.exists():
                run_files.remove_file(path)
    return {}


def list_requests(run: Path) -> list[Path]:
    """The supervisor: requests that wait for a reply."""
    return [path for path in (run / FOLDER).glob(f"{REQUEST}-*.json") if not _build_reply_path(path).exists()]


def _build_reply_path(request: Path) -> Path:
    return request.with_name(REPLY + request.name.removeprefix(REQUEST))


def write_reply(request: Path, report: dict[str, object]) -> None:
    """The supervisor: hand the report to the rank that asked. Raises OSError."""
    run_files.write_atomically(_build_reply_path(request), json.dumps(report, default=str).encode())


def record_outcome(
    run: Path,
    sink: str,
    where: str,
    *,
    error: str = "",
    own_run: str = "",
    ended_at: int | None = None,
    waited_s: float = 0.0,
) -> None:
    """Leave word what became of a sink. Raises OSError.

    where: what was written to. own_run: the id of the program's own run, which ended at step ``ended_at`` of training.
    waited_s: how long the program waited for the report.
    """
    about: dict[str, object] = {"sink": sink, "where": where, "error": error, "t": time.time()}
    about |= {"own": own_run, "ended_at": ended_at, "waited_s": waited_s}
    _write_json(run, f"{OUTCOME}-{sink}-{os.getpid()}-{time.monotonic_ns()}.json", about)


def list_outcomes(run: Path, sink: str = "*") -> list[dict[str, Any]]:
    """What became of each sink, the oldest first, as `record_outcome` wrote it."""
    return _read_matching_files(run, f"{OUTCOME}-{sink}-*.json")
