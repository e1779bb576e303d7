"""A run while it goes on: how far each rank is, at what level, and when it was last seen.

Only the ends of the files are read, however long the run.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tdbg.core import events
from tdbg.core.config import Settings
from tdbg.core.events import Cost, End, Event, Number, Start, Step, Switch
from tdbg.core.files import open_regular, parse_json, read_json
from tdbg.core.rundir import EVENTS, FINDINGS, ProcessDir, RunDir, is_process_alive
from tdbg.launch.run_follower import Tail
from tdbg.rules.cost_lines import compute_cost_pct
from tdbg.rules.restarts import describe_restarts
from tdbg.rules.view import SILENT_S, ProcessView, View

TAIL_BYTES = 64 << 10
TAILS_BYTES = 512 << 10  # of all processes together, where they are many
LEAST_TAIL_BYTES = 8 << 10
MAX_TAIL_BYTES = 16 << 20  # where single events are long
HEAD_BYTES = 64 << 10
PACE_S = 60.0  # the rate is that of the last minute
BRIEF_S = 0.5  # a rate over less time says nothing


@dataclass(slots=True)
class RankState:
    """One rank as its last events show it."""

    process: ProcessDir
    rank: int
    state: str  # running, silent, or how it ended
    step: int  # the last one known
    last_t: float  # wall clock of its last event, 0 if it has none
    rate: float | None  # steps per second
    fastest: float  # the highest rate of late, for those who must not come too late
    loss: Number | None
    level: str
    flags: list[str]
    host: str
    pid: int | None
    planned: int | None
    cost_pct: float | None
    is_waiting: bool = False  # a probe found it without progress, and no step came since

    @property
    def live(self) -> bool:
        """True unless it is known to have ended."""
        return self.state in ("running", "silent")

    def as_dict(self, now: float) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "rank": self.rank,
            "state": self.state,
            "step": self.step,
            "planned": self.planned,
            "steps_per_s": _round_significant(self.rate),
            "loss": self.loss,
            "level": self.level,
            "flags": self.flags,
            "cost_pct": _round_significant(self.cost_pct),
            "last_seen_s": _round_significant(max(now - self.last_t, 0.0)) if self.last_t else None,
            "host": self.host,
            "pid": self.pid,
            "folder": self.process.label,
        }


@dataclass(slots=True)
class Snapshot:
    """A whole run at one moment."""

    run: RunDir
    t: float
    settings: Settings
    ended: bool
    exit_text: str  # of a run that has ended
    ranks: list[RankState] = field(default_factory=list)
    processes: int = 0  # that said hello
    restarts: str = ""  # how each attempt went, of a job that was restarted
    finding: dict[str, object] | None = None  # the last one told while the run went on

    @property
    def live(self) -> list[RankState]:
        """The ranks that go on."""
        return [] if self.ended else [rank for rank in self.ranks if rank.live]

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "run": self.run.place,
            "state": "ended" if self.ended else "running",
            "exit": self.exit_text,
            "level_at_start": self.settings.level,
            "ranks": [rank.as_dict(self.t) for rank in self.ranks],
            "processes": self.processes,
            "restarts": self.restarts,
            "last_finding": self.finding,
        }


def read_snapshot(run: RunDir, *, first_rank_alone: bool = False) -> Snapshot:
    """The run now. Reads at most 64 kB a rank; TdbgError if run.json cannot be read.

    first_rank_alone: no other rank's files are read, and processes that are no ranks are not counted.
    """
    info = run.read_info()
    view, points, processes = View(run), {}, run.list_processes()
    if first_rank_alone:
        first = min((one.rank for one in processes if one.rank is not None), default=None)
        processes = [one for one in processes if one.rank == first]
    tail_bytes = min(max(TAILS_BYTES // max(len(processes), 1), LEAST_TAIL_BYTES), TAIL_BYTES)
    for process in processes:
        found = [*_read_start_event(process), *_read_last_events(process, tail_bytes)]
        points[process.label] = _collect_step_times(found)
        for event in found:
            view.add_event(process, event)
    view.read_outcome(None)
    snapshot = Snapshot(run, time.time(), view.settings, has_ended(info), "")
    snapshot.exit_text = _exit_text(view) if snapshot.ended else ""
    snapshot.ranks = [
        _build_rank_state(snapshot, view, found, points[found.process.label]) for found in view.list_rank_processes()
    ]
    hellos = [] if first_rank_alone else run.read_hellos()
    snapshot.processes = len(processes) if first_rank_alone else len(hellos)
    snapshot.restarts = describe_restarts(view, hellos)
    snapshot.finding = _last_finding(run.path / FINDINGS)
    return snapshot


def has_ended(info: dict[str, object]) -> bool:
    """True if the command has ended, or the tdbg that watched over it on this host has; never a guess."""
    supervisor = info.get("supervisor")
    if info.get("end") or info.get("exit"):
        return True
    if not isinstance(supervisor, dict):
        return False
    return is_process_alive(supervisor.get("pid"), supervisor.get("host"), supervisor.get("started")) is False


def _exit_text(view: View) -> str:
    from tdbg.rules.view import describe_exit

    return describe_exit(view.exit_code) if view.exit_code is not None else "no exit code recorded"


def _read_start_event(process: ProcessDir) -> list[Event]:
    """The Start event, which is the first of a rank."""
    try:
        with open_regular(process.path / EVENTS) as file:
            start = events.decode(file.readline(HEAD_BYTES))
    except OSError:
        return []
    return [start] if isinstance(start, Start) else []


def _read_last_events(process: ProcessDir, tail_bytes: int) -> list[Event]:
    """The last events: at least one that knows the step, where there is one within 16 MB."""
    try:
        size = (process.path / EVENTS).stat().st_size
    except OSError:
        return []
    length = tail_bytes
    while True:
        tail = Tail(process, max(size - length, 0))
        found = [event for event in tail.read_events(chunks=MAX_TAIL_BYTES >> 20) if not isinstance(event, Start)]
        if length >= min(size, MAX_TAIL_BYTES) or len(_collect_step_times(found)) > 1:
            return found
        length *= 4


def _collect_step_times(found: Iterable[Event]) -> list[tuple[float, int]]:
    """(wall clock, step) of the events that know how many steps are done."""
    points = []
    for event in found:
        if isinstance(event, Cost | End | Switch) or (isinstance(event, Step) and event.phase == "train"):
            points.append((event.t, event.step))
        elif isinstance(event, Start):
            points.append((event.t, 0))
    return sorted(points)


def _build_rank_state(snapshot: Snapshot, view: View, found: ProcessView, points: list[tuple[float, int]]) -> RankState:
    start, last = found.start, found.last or found.last_eval
    step = max([found.step, *(point[1] for point in points)])
    level, flags = found.find_level_and_flags(snapshot.settings)
    return RankState(
        process=found.process,
        rank=found.rank or 0,
        state=_infer_state(snapshot, view, found),
        step=step,
        last_t=found.t,
        rate=_compute_rate(points),
        fastest=_compute_highest_rate(points),
        loss=last.loss if last else None,
        level=level,
        flags=flags,
        host=start.host if start else "",
        pid=start.pid if start else None,
        planned=found.plan.steps if found.plan else None,
        cost_pct=compute_cost_pct(found.cost),
        is_waiting=found.is_quiet,
    )


def _infer_state(snapshot: Snapshot, view: View, found: ProcessView) -> str:
    if snapshot.ended or found.end is not None or found.crash is not None or view.find_process_exit(found) is not None:
        word = view.describe_ending(found)
        return word if word not in ("running", "no end seen") else "ended"
    try:
        owner = read_json(found.process.path / "owner.json")
        alive = is_process_alive(owner.get("pid"), owner.get("host"), owner.get("start"))
    except (OSError, ValueError, AttributeError):
        alive = None
    if alive is None:
        return "running" if snapshot.t - found.t < SILENT_S else "silent"
    return "running" if alive else "gone"


def _compute_rate(points: list[tuple[float, int]]) -> float | None:
    """Steps per second of the last minute; None where there is too little to tell."""
    if not points:
        return None
    end_t, end_step = points[-1]
    recent = [point for point in points if end_t - point[0] <= PACE_S]
    begin_t, begin_step = recent[0] if len(recent) > 1 else points[0]
    return max(end_step - begin_step, 0) / (end_t - begin_t) if end_t > begin_t else None


def _compute_highest_rate(points: list[tuple[float, int]]) -> float:
    """The highest rate of late, over stretches of half a second or more."""
    best = _compute_rate(points) or 0.0
    begin = points[0] if points else (0.0, 0)
    for point in points:
        if point[0] - begin[0] >= BRIEF_S:
            best = max(best, (point[1] - begin[1]) / (point[0] - begin[0]))
            begin = point
    return best


def _last_finding(path: Path) -> dict[str, object] | None:
    try:
        with open_regular(path) as file:
            file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            found = parse_json(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


def _round_significant(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
