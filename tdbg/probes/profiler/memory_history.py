"""What CUDA's caching allocator did during a window: its history as torch records it, written as JSON.

torch's own `_dump_snapshot` writes a pickle, and tdbg neither makes nor reads any. The content is the same.
"""

import contextlib
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tdbg.core import run_files
from tdbg.runtime.torch_compat import is_memory_history_recorded, memory_snapshot, record_memory_history

MAX_ENTRIES = 50_000  # of the history, some 500 bytes each before compression: a few steps of a large model
COMPRESSION = 3
PIECE = 100  # entries of a list that are made into text at once


class MemoryHistory:
    """The allocator's history from its making to `stop_recording`; nothing where CUDA is not in use.

    A history that the program records itself is left as it is; what of it is there at the end is taken.
    Cost: torch's, some microseconds an allocation; Python's stack alone is kept.
    """

    def __init__(self) -> None:
        self.snapshot: dict[str, Any] = {}
        self._on = torch.cuda.is_initialized()
        self._own = self._on and not is_memory_history_recorded()
        if self._own:
            with contextlib.suppress(RuntimeError):  # an allocator without a history: an empty one is taken
                record_memory_history(MAX_ENTRIES)

    def stop_recording(self) -> None:
        """Take the history, and record no longer."""
        if not self._on:
            return
        with contextlib.suppress(RuntimeError):
            self.snapshot = memory_snapshot()
        if self._own:
            with contextlib.suppress(RuntimeError):
                record_memory_history(0)
        self._on = self._own = False


def name_beside(trace: Path) -> Path:
    """``rank0000.1700000000000000000.memory.json.gz``: the name of the history that belongs to a trace."""
    return trace.with_name(trace.name.partition(".pt.trace.json")[0] + ".memory.json.gz")


def write_memory_history(snapshot: dict[str, object], path: Path) -> None:
    """Write a history; a disk that has no room is left without one."""
    part = path.with_name(f".{path.name}.part")
    try:
        with run_files.open_new(part) as raw, gzip.open(raw, "wt", COMPRESSION, encoding="utf-8") as file:
            for piece in _iter_json_pieces(snapshot):
                file.write(piece)
        run_files.rename_file(part, path)
    except OSError:
        part.unlink(missing_ok=True)


def _iter_json_pieces(value: object) -> Iterator[str]:
    """Its JSON, in pieces that hold the interpreter for a moment each: `json.dump` is slow, one `dumps` long."""
    if isinstance(value, dict):
        yield "{"
        for at, (key, held) in enumerate(value.items()):
            yield f"{', ' if at else ''}{json.dumps(str(key))}: "
            yield from _iter_json_pieces(held) if isinstance(held, list) else (json.dumps(held, default=str),)
        yield "}"
    elif isinstance(value, list) and (len(value) > PIECE or any(isinstance(one, list) for one in value)):
        yield "["
        for number, one in enumerate(value):
            yield ", " if number else ""
            yield from _iter_json_pieces(one) if isinstance(one, list) else (json.dumps(one, default=str),)
        yield "]"
    else:
        yield json.dumps(value, default=str)
