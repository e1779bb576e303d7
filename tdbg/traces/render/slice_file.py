"""Write a few steps of a few ranks as one small trace that viewers and tdbg itself open."""

import gzip
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import and_
from pathlib import Path
from typing import IO, Any

import msgspec

from tdbg.core.errors import TdbgError
from tdbg.core.guard import undo_on_error
from tdbg.traces.parse import merged_traces
from tdbg.traces.parse.trace_files import TraceFile
from tdbg.traces.render.step_slice import StepSlice

LEVEL = 6  # of packing
NOT_KEPT = ("traceName", "traceEvents", merged_traces.RANKS)  # of a head
Part = tuple[TraceFile, StepSlice]


def write_slice(parts: Sequence[Part], path: Path) -> int:
    """Write the steps that are kept of some traces into one file, packed if its name ends with .gz; returns the events.

    One trace is copied as it stands. Of several each gets process ids and flow ids of its own, its rank before its
    process names, and their times are counted from the same moment. No event is held in memory. The file
    appears when it is whole. Raises TdbgError where it cannot be written, or is one of the traces itself.
    """
    if len(parts) > merged_traces.PARTS:
        raise TdbgError(f"{len(parts):,} traces are too many for one file", "choose some: --ranks, --windows last")
    for one, _ in parts:
        if path.exists() and path.samefile(one.path):
            raise TdbgError(f"{path} is the trace itself", "name another file with --output")
    modes = (one.path.stat().st_mode for one, _ in parts)
    mode = reduce(and_, modes, 0o666)  # who may read the traces may read the slice
    if len(parts) == 1:
        one, keeping = parts[0]
        head = {"schemaVersion": 1, **_own_head(one, keeping)}
        return _write_file(path, mode, head, (bytes(event.text) for event in keeping.iter_events()))
    base = _base_time(parts[0][1].head)
    slots = [_Slot(number, len(parts), one, keeping, base) for number, (one, keeping) in enumerate(parts)]
    return _write_file(path, mode, _joined_head(parts), (event for slot in slots for event in slot.iter_events()))


# heads


def _own_head(one: TraceFile, keeping: StepSlice) -> dict[str, Any]:
    """The head of a trace, and what is new in it: what was cut off."""
    head = {key: value for key, value in keeping.head.items() if key not in NOT_KEPT}
    ours = head.get("tdbg")
    kept = dict(ours) if isinstance(ours, dict) else {}
    kept.pop("wanted", None)  # the slice holds fewer steps than the profiler wanted, and nothing is wrong
    rank = keeping.read.rank if keeping.read.rank is not None else one.rank
    if rank is not None:
        kept["rank"] = rank
    end = keeping.has_end and not merged_traces.without_end(keeping.head)
    kept["slice"] = {"of": one.path.name, "steps": sorted(keeping.numbers), "end": end}
    return {**head, "tdbg": kept}


def _joined_head(parts: Sequence[Part]) -> dict[str, Any]:
    """A head for all: that of the first, and all of them for whoever tells the parts apart again."""
    own = [_own_head(one, keeping) for one, keeping in parts]
    ranks = [_get_rank(one, keeping, number) for number, (one, keeping) in enumerate(parts)]
    shared = {key: value for key, value in own[0].items() if key not in ("tdbg", "distributedInfo", "trace_id")}
    return {merged_traces.RANKS: ranks, "schemaVersion": 1, **shared, "tdbg": {"slice": {"heads": own}}}


def _get_rank(one: TraceFile, keeping: StepSlice, number: int) -> int:
    known = one.rank if one.rank is not None else keeping.read.rank
    return number if known is None else known


# events


class _Slot:
    """One of several traces of a file: its events, with ids that no other has."""

    def __init__(self, number: int, count: int, one: TraceFile, keeping: StepSlice, base: int) -> None:
        self.number, self.count = number, count
        self.keeping = keeping
        self.rank = _get_rank(one, keeping, number)
        self.name = f"rank {self.rank}" + (f", window {one.window}" if one.window else "")
        self.shift_us = (_base_time(keeping.head) - base) / 1000
        self._pids: dict[Any, int] = {}
        self._named: set[int] = set()

    def iter_events(self) -> Iterator[bytes]:
        """Its events as they are written."""
        for event in self.keeping.iter_events():
            yield msgspec.json.encode(self._rewrite_event(msgspec.json.decode(event.text)))
        for old, pid in self._pids.items():
            if pid not in self._named:
                named = {
                    "ph": "M",
                    "name": "process_name",
                    "pid": pid,
                    "tid": 0,
                    "args": {"name": self._format_title(old)},
                }
                yield msgspec.json.encode(named)

    def _rewrite_event(self, event: dict[str, Any]) -> dict[str, Any]:
        old = event.get("pid", 0)
        event["pid"] = pid = self._pids.setdefault(old, merged_traces.first_pid(self.number) + len(self._pids))
        if self.shift_us and "ts" in event:
            event["ts"] += self.shift_us
        if "id" in event:
            ours = event["id"]
            event["id"] = ours * self.count + self.number if isinstance(ours, int) else f"{ours}.{self.number}"
        args = event.get("args")
        if event.get("ph") == "M" and isinstance(args, dict):
            if event.get("name") == "process_name":
                self._named.add(pid)
                args["name"] = self._format_title(args.get("name", old))
            elif event.get("name") == "process_sort_index":
                args["sort_index"] = pid
        return event

    def _format_title(self, name: object) -> str:
        """What a viewer calls a process of this part."""
        text = str(name)
        return text if text.startswith(self.name) else f"{self.name}: {text}".removesuffix(": ")


def _base_time(head: dict[str, Any]) -> int:
    """The moment from which the times of a trace are counted, in nanoseconds."""
    found = head.get("baseTimeNanoseconds", 0)
    return found if isinstance(found, int) else 0


# the file


def _write_file(path: Path, mode: int, head: dict[str, Any], events: Iterator[bytes]) -> int:
    count = 0
    with _open_atomic(path, mode) as out:
        out.write(msgspec.json.encode(head)[:-1] + b',"traceEvents":[\n')
        for event in events:
            out.write(b",\n" + event if count else event)
            count += 1
        out.write(b"\n]}\n")
    return count


@contextmanager
def _open_atomic(path: Path, mode: int) -> Iterator[IO[bytes]]:
    """A file that appears under its name when it is whole. TdbgError where it cannot be written."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with undo_on_error(lambda: os.unlink(name)):
            with os.fdopen(handle, "wb") as file:
                if path.suffix == ".gz":
                    with gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=file, mtime=0) as packed:
                        yield packed  # type: ignore[misc]
                else:
                    yield file
            os.chmod(name, mode)
            os.replace(name, path)
    except OSError as error:
        raise TdbgError(f"cannot write {path}: {error.strerror or error}", "name another file with --output") from None
