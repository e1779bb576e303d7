"""Select the few of many ranks whose traces are worth reading, before any trace is read whole.

Two figures of a rank are cheap: the length of its steps, and their length without the parts in which it may wait for
other ranks. Where ranks wait for each other, all steps are as long as those of the slowest rank, and only the second
figure identifies it. Both come from the events that tdbg recorded beside the trace, or else from the trace's own marks
of steps and collectives.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tdbg.core.errors import TdbgError
from tdbg.core.files import open_regular
from tdbg.core.tables import format_count
from tdbg.traces.parse.trace_files import TraceFile, run_folder

MOST = 8  # ranks that are all read without --ranks
TAIL = 1 << 18  # bytes read from the end of a rank's events: some 500 steps
LAST = 200  # steps
FEW = 3  # with fewer steps a rank is not judged
SLOWER = 1.1  # a rank without a trace is reported when its own time is this many times the slowest profiled rank's
# What kineto writes of steps, of collectives on the host, and of their kernels.
MARK = re.compile(
    rb'"cat":\s*"(?:user_annotation|kernel)",\s*"name":\s*"(ProfilerStep#|(?:gloo|nccl|mpi|ucc|xccl):|nccl|rccl)'
    rb'[^"]{0,300}"[^{}]{0,300}?"dur":\s*([0-9.]{1,30})'
)
REACH = 1024  # bytes in which such a mark lies


class StepTime(NamedTuple):
    """Milliseconds of a step: whole, and without backward (or collectives), in which a rank may wait for others."""

    whole: float
    own: float


class RankSample(NamedTuple):
    """The traces to read, the ranks left out, and a line that says so; empty if all ranks are read."""

    found: list[TraceFile]
    left: list[int]
    said: str


def select_ranks(found: Sequence[TraceFile]) -> RankSample:
    """Select all traces of up to `MOST` ranks; of more ranks, rank 0, a typical rank, and the seemingly slowest.

    Cost: reads a quarter of a megabyte of events per rank; without events, a search through its trace, a third of the
    time of reading it. Memory: a block.
    """
    ranks = [one.rank for one in found]
    known = sorted({rank for rank in ranks if rank is not None})
    if len(known) <= MOST or None in ranks or any(one.part is not None for one in found):
        return RankSample(list(found), [], "")
    last = {one.rank: one for one in found}  # any of several windows will do
    recorded = {rank: _read_recorded_time(last[rank].path.parent.parent) for rank in known}
    by_events = all(recorded.values())
    paces = recorded if by_events else {rank: _read_marked_time(last[rank].path) for rank in known}
    kept = _select_slowest({rank: pace for rank, pace in paces.items() if pace is not None}, known)
    how = "by step times in their events" if by_events else "by step times in their traces"
    which = f"rank {known[0]}, a typical one, and those that look slowest {how}"
    if not any(paces.values()):
        which = "no step times to tell which are slow"
    said = f"of {format_count(len(known), 'rank')}, {', '.join(map(str, kept))} are read: {which}; --ranks names others"
    return RankSample([one for one in found if one.rank in kept], [rank for rank in known if rank not in kept], said)


def _select_slowest(paces: dict[int, StepTime], known: Sequence[int]) -> list[int]:
    """The first rank, the slowest by either figure in turn, and the median one; at most `MOST`."""
    by_own, by_whole = (sorted(paces, key=lambda rank: -paces[rank][at]) for at in (1, 0))
    slow = list(dict.fromkeys(chain.from_iterable(zip(by_own, by_whole, strict=True))))
    usual = by_own[len(by_own) // 2 : len(by_own) // 2 + 1]
    order = [known[0], *slow[: MOST - 2], *usual, *slow[MOST - 2 :], *known]
    return sorted(list(dict.fromkeys(order))[:MOST])


def describe_unprofiled(found: Sequence[TraceFile]) -> str:
    """A warning if a rank without a trace seems slower than every rank with one; empty otherwise."""
    run = run_folder(found[0].path) if found else None
    if run is None or any(one.rank is None for one in found):
        return ""
    from tdbg.core.rundir import RunDir

    traced = {one.rank for one in found}
    folders = {process.rank: process.path for process in RunDir(run).list_processes() if process.is_rank}
    others = {
        rank for rank, path in folders.items() if rank not in traced and not any(path.glob("traces/*.trace.json*"))
    }
    if not others:
        return ""
    paces = {rank: _read_recorded_time(path) for rank, path in folders.items() if rank is not None}
    own = {rank: pace.own for rank, pace in paces.items() if pace is not None}
    best = max((own[rank] for rank in traced if rank in own), default=0.0)
    slow = max((rank for rank in own if rank in others), key=lambda rank: own[rank], default=None)
    if slow is None or not best or own[slow] < SLOWER * best:
        return ""
    wanted = ",".join(map(str, sorted({min(own), slow})))
    return (
        f"rank {slow} has no trace and seems slower than those with one: {own[slow]:.3g} ms of a step outside"
        f" backward, against {best:.3g} ms at most; `tdbg profile --ranks {wanted}` records it"
    )


def _read_recorded_time(folder: Path) -> StepTime | None:
    """The step time of a rank by the last steps in its events; None if there are too few."""
    from tdbg.core.events import Step

    rows = [event for event in _read_last_events(folder) if isinstance(event, Step) and event.phase == "train"][-LAST:]
    timed = [(row.step_ms, row.backward_ms or 0.0) for row in rows if row.step_ms is not None]
    if len(timed) < FEW:
        return None
    return StepTime(median(whole for whole, _ in timed), median(whole - backward for whole, backward in timed))


def _read_last_events(folder: Path) -> Iterator[object]:
    from tdbg.core.events import decode
    from tdbg.core.rundir import EVENTS

    try:
        with open_regular(folder / EVENTS) as file:
            size = file.seek(0, 2)
            file.seek(max(size - TAIL, 0))
            lines = file.read(TAIL).split(b"\n")
    except OSError:
        return
    for line in lines[1 if size > TAIL else 0 : -1]:
        yield decode(line)


def _read_marked_time(path: Path) -> StepTime | None:
    """The step time of a rank by the marks in its trace; None if there are none."""
    from tdbg.traces.parse.chunks import Blocks

    steps: list[float] = []
    collective = 0.0
    rest = b""
    try:
        for block in Blocks(path):
            data = rest + block
            end = 0
            for match in MARK.finditer(data):
                end = match.end()
                try:
                    length = float(match[2]) / 1000
                except ValueError:
                    continue
                if match[1].startswith(b"Prof"):
                    steps.append(length)
                else:
                    collective += length
            rest = data[max(end, len(data) - REACH) :]
    except TdbgError:
        return None
    if not steps:
        return None
    whole = median(steps)
    return StepTime(whole, whole - collective / len(steps))
