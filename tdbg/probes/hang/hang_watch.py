"""The thread that notices a standstill, and decides when it is one: longer than what the run did so far, seen twice."""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple, Protocol

from tdbg.core.guard import Guard
from tdbg.probes.hang.activity import find_distributed_call, iter_frames, make_stack_key, name_activity
from tdbg.probes.hang.collective_status import CollectiveStatus, GroupNames, RunningCall, read_status
from tdbg.probes.hang.training_lines import Lines, TrainingLines
from tdbg.runtime import thread_stacks

EVERY_S = 2.0
CONFIRM_S = 5.0  # a standstill is told if it is still the same so long after it was first seen
BEYOND = 1.5  # times the longest that the same activity took so far
BUSY_SHARE = 0.1  # of a CPU: who uses more is at work, on a machine that others use as well
LAST_LOOK_S = 2.0  # how long `stop_watching` waits for a look that is still writing
ALIVE_S = 20.0  # without a training step: a sign of life
GAP_S = 10.0  # a look that comes so much too late: the process itself was stopped
MAX_EPISODES = 20  # waits for other ranks that are told whatever they took before
FLIGHT_ENTRIES = 512
MAX_CHILDREN = 32
BLOCKING = ("gloo", "mpi")  # backends whose calls return when the data is there
# Activity outside of collectives -> the limit, in times the base limit (15 s), before this run has shown its own.
LIMITS = {
    "checkpoint": 40.0,
    "compile": 120.0,
    "network": 40.0,
    "command": 8.0,
    "import": 8.0,
    "compute": 8.0,
    "debugger": math.inf,
}


@dataclass(slots=True, frozen=True)
class Look:
    """The training thread at one moment. state: as in `QuietRank`."""

    state: str
    call: RunningCall | None
    counts: dict[str, int] | None
    where: str
    activity: str
    stack_key: int
    cpu_s: float

    def is_same_place(self, other: "Look") -> bool:
        """True if the thread has not moved between the two."""
        if self.state != "elsewhere" or other.state != "elsewhere":
            return (self.state, self.call, self.where) == (other.state, other.call, other.where)
        return self.stack_key == other.stack_key


class _Progress(NamedTuple):
    """What changes as the process makes progress. calls: counts of the probe `distributed`, None while it is off."""

    collectives: object
    counters: tuple[int, ...]
    calls: tuple[int, int] | None


@dataclass(slots=True, frozen=True)
class Standstill:
    """A period without progress. limit_s: the limit that holds without the flag DISTRIBUTED; quiet_s may be shorter."""

    look: Look
    quiet_s: float
    limit_s: float


class CallTracker(Protocol):
    """What the flag DISTRIBUTED counts of the collectives called from Python.

    `find_state` and `count_calls` are used only where torch keeps no flight recorder.
    """

    @property
    def home(self) -> int | None:
        """The thread that trains."""

    @property
    def quiet_s(self) -> float:
        """Seconds without progress after which a rank is reported, even a busy one."""

    @property
    def progress(self) -> tuple[int, int]:
        """How many calls have begun, and how many have ended."""

    def find_state(self, frame: FrameType | None) -> tuple[str, RunningCall | None]:
        """What the training thread does at this frame, and the call it is in."""

    def count_calls(self) -> dict[str, int] | None:
        """Calls begun on each group; None if the counts of the ranks cannot be compared."""


class HangWatch:
    """Looks at this process every two seconds from a thread of its own.

    base_s: the shortest time without progress that is told. read_counters: steps, updates and evaluations so far.
    report, resumed: called from the thread with what was found, and with the seconds that passed until it went on.
    report_lines: as in `TrainingLines`. find_tracker: the counts of the flag DISTRIBUTED, None while it is off.
    find_thread: the thread that trains, by default the main one. report_alive: called with the program's line, as
    often as no training step was made for `ALIVE_S`.
    """

    def __init__(
        self,
        base_s: float,
        read_counters: Callable[[], tuple[int, ...]],
        report: Callable[[Standstill], None],
        resumed: Callable[[float], None],
        report_lines: Callable[[Lines], None],
        find_tracker: Callable[[], CallTracker | None] = lambda: None,
        find_thread: Callable[[], int] | None = None,
        report_alive: Callable[[str], None] = lambda where: None,
    ) -> None:
        self._hang_s, self._find_tracker = base_s, find_tracker
        self._turn = threading.Lock()  # held during a look; `stop_watching` looks once more
        self._read_counters, self._report, self._resumed = read_counters, report, resumed
        self._guard = Guard("hang")
        self._names = GroupNames()
        self._longest_s: dict[str, float] = {}  # activity -> the longest time without progress that ended
        self._episodes = 0
        self._find_thread = find_thread or find_main_thread
        self._lines = TrainingLines(self._guard, self._find_thread, report_lines)
        self._progress: _Progress | None = None
        self._since = self._last_look = time.monotonic()
        # Of this standstill: the first look at which the thread was where it is now, and the last one.
        self._looks: list[tuple[float, Look]] = []
        self._reported_s = 0.0  # after so long it was told last
        self._report_alive = report_alive
        self._trained: tuple[int, ...] = ()  # steps and updates when it was last seen to train
        self._alive_t = time.monotonic()  # then, or when it gave a sign of life after that
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch_progress, name="tdbg-hang", daemon=True)

    def start_watching(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop_watching(self, *, has_returned: bool = False) -> None:
        """Stop looking; report that the rank has resumed, if it has since the last look.

        has_returned: the training thread is past the collective it waited in. Otherwise only new steps count as
        resuming: a collective may also end because another rank is gone.
        """
        self._end.set()
        self._lines.stop_sampling()
        if threading.current_thread() is self._thread:  # switched off during a look
            return
        if self._reported_s and self._turn.acquire(timeout=LAST_LOOK_S):
            try:
                if self._reported_s and ((has_returned and self._is_waiting()) or self._has_stepped()):
                    self._guard.call_guarded(self._end_standstill, time.monotonic())
            finally:
                self._turn.release()

    def _is_waiting(self) -> bool:
        """True if the reported standstill is a wait for other ranks."""
        return bool(self._looks) and self._looks[-1][1].state != "elsewhere"

    def _has_stepped(self) -> bool:
        return self._progress is not None and self._read_counters() != self._progress.counters

    @property
    def _base_s(self) -> float:
        """The shortest time without progress that is told."""
        tracker = self._find_tracker()
        return self._hang_s if tracker is None else min(self._hang_s, tracker.quiet_s)

    def _watch_progress(self) -> None:
        while not self._end.wait(min(EVERY_S, self._base_s / 8)) and self._guard.on:
            with self._turn:
                self._guard.call_guarded(self.check_progress, time.monotonic())

    def check_progress(self, now: float) -> None:
        """One look. Cost: 20 us while there is progress, 100 us and more once there is none for half the limit."""
        late_s = now - self._last_look - EVERY_S
        self._last_look = now
        if late_s > GAP_S:
            self._since += late_s
            self._looks = [(seen + late_s, look) for seen, look in self._looks]
        status, has_moved = self._find_progress(now)
        if has_moved:
            self._lines.check_due(now, self._read_counters()[1])
        elif now - self._since >= self._base_s / 2:
            self._look_closer(now, status)
        self._give_sign(now)

    def _give_sign(self, now: float) -> None:
        """Say that this rank is alive: others may wait for it, and a standstill is told again only at twice the time."""
        trained = self._read_counters()[:2]
        if trained != self._trained:
            self._trained, self._alive_t = trained, now
        elif now - self._alive_t >= ALIVE_S and not self._end.is_set():
            self._alive_t = now
            self._report_alive(thread_stacks.locate_frame(thread_stacks.get_frame(self._find_thread())))

    def _find_progress(self, now: float) -> tuple[CollectiveStatus, bool]:
        """The status, and True if anything has happened since the last look, which also ends a standstill."""
        status, tracker, last = read_status(), self._find_tracker(), self._progress
        calls = tracker.progress if tracker is not None else None
        if last is not None and (calls is None) != (last.calls is None):
            last = last._replace(calls=calls)  # the flag was turned on, or the probe switched itself off
        progress = _Progress(status.progress, self._read_counters(), calls)
        if progress == last:
            self._progress = last
            return status, False
        self._end_standstill(now)
        self._progress, self._since = progress, now
        return status, True

    def _end_standstill(self, now: float) -> None:
        quiet_s = now - self._since
        if self._looks:
            activity = self._looks[-1][1].activity
            self._longest_s[activity] = max(self._longest_s.get(activity, 0.0), quiet_s)
        if self._reported_s:
            self._resumed(quiet_s)
        self._looks, self._reported_s = [], 0.0

    def _look_closer(self, now: float, status: CollectiveStatus) -> None:
        look = self._read_look(status)
        if self._reported_s and self._is_waiting() and look.state == "elsewhere":  # the call has returned
            self._end_standstill(now)
            self._since = now
        if self._looks:
            first_t, first = self._looks[0]
            if not look.is_same_place(first) or self._is_busy(now, look):
                if look.state == "elsewhere" and look.activity in ("", "sleep", "lock", "loader", "still"):
                    look = _replace_activity(look, "compute")
                self._looks = [(now, look), (now, look)]
            else:
                self._looks = [(first_t, first), (now, look)]
        else:
            self._looks = [(now, look), (now, look)]
        quiet_s, seen_s = now - self._since, now - self._looks[0][0]
        limit_s = self._get_limit(look)
        confirmed = look.activity == "compute" or seen_s >= min(CONFIRM_S, self._base_s / 3)
        if limit_s < self._get_learned_limit(look):  # the flag asks for it, whether it stands still or is busy
            confirmed = True
        if confirmed and quiet_s >= max(limit_s, 2 * self._reported_s) and not self._end.is_set():
            self._episodes += not self._reported_s
            self._reported_s = quiet_s
            self._report(Standstill(look, quiet_s, self._get_learned_limit(look)))

    def _is_busy(self, now: float, look: Look) -> bool:
        """True if this process used the CPU since the last look."""
        then, last = self._looks[-1]
        return look.state == "elsewhere" and look.cpu_s - last.cpu_s > BUSY_SHARE * max(now - then, 1e-3)

    def _get_limit(self, look: Look) -> float:
        """The time without progress after which a standstill of this kind is told."""
        tracker, limit_s = self._find_tracker(), self._get_learned_limit(look)
        return limit_s if tracker is None or math.isinf(limit_s) else min(limit_s, tracker.quiet_s)

    def _get_learned_limit(self, look: Look) -> float:
        longest_s = self._longest_s.get(look.activity, 0.0)
        if look.state != "elsewhere":
            return max(self._hang_s, BEYOND * longest_s if self._episodes >= MAX_EPISODES else 0.0)
        return max(self._hang_s * LIMITS.get(look.activity, 1.0), BEYOND * longest_s)

    def _read_look(self, status: CollectiveStatus) -> Look:
        self._names.read_entries()
        thread = self._find_thread()
        frame = thread_stacks.get_frame(thread)
        frames = iter_frames(frame)
        line = thread_stacks.read_source_line(frame)
        tracker = None if status.begun else self._find_tracker()
        state, call = tracker.find_state(frame) if tracker is not None else ("elsewhere", None)
        if state in ("elsewhere", "device"):
            found = self._find_state(frames, line, status)
            if tracker is None or found[0] in ("collective", "init"):  # calls that the tracker does not see
                state, call = found
        activity = name_activity(frames, line) or "still" if state == "elsewhere" else "waiting"
        counts = (
            tracker.count_calls() if tracker is not None else self._names.count_calls(status) if status.begun else None
        )
        return Look(
            state, call, counts, thread_stacks.locate_frame(frame), activity, make_stack_key(frames), _read_cpu_s()
        )

    def _find_state(self, frames: list[Any], line: str, status: CollectiveStatus) -> tuple[str, RunningCall | None]:
        """What the thread is in, by the flight recorder first, then by its stack."""
        function = find_distributed_call(frames)
        if function == "init_process_group":
            return "init", RunningCall("init_process_group", size=_read_world_size())
        in_backward = any(frame.f_code.co_name == "_engine_run_backward" for frame in frames)
        blocks = any(word in _read_backend() for word in BLOCKING)
        running = self._names.find_running(status, function if blocks else "")
        if running is not None and (not blocks or function or in_backward or ".wait(" in line):
            return "collective", running
        if function:
            return "collective", RunningCall(function)
        if not status.begun and in_backward:
            return "backward", None
        if not status.begun and not blocks:
            return "device", None
        return "elsewhere", None


def find_main_thread() -> int:
    """The id of the main thread, where programs train unless another thread is known."""
    return threading.main_thread().ident or 0


def is_running(ident: int) -> bool:
    """True if a thread of the program has this id; the id of one that has ended may be that of another one later."""
    return any(thread.ident == ident and not thread.name.startswith("tdbg-") for thread in threading.enumerate())


def collect_details(step: int, found: Standstill) -> dict[str, object]:
    """What is kept in files beside the event: stacks of all threads, and the flight recorder's last entries."""
    from tdbg.runtime.flight_recorder import read_flight_record

    look = found.look
    stacks = thread_stacks.format_all_stacks()
    kept: dict[str, object] = {
        "stacks": {"t": time.time(), "step": step, "state": look.state, "where": look.where, "threads": stacks}
    }
    entries = read_flight_record(calls=True).get("entries", [])[-FLIGHT_ENTRIES:]
    if entries:
        kept["flight"] = {"step": step, "entries": entries}
    return kept


def _replace_activity(look: Look, activity: str) -> Look:
    return Look(look.state, look.call, look.counts, look.where, activity, look.stack_key, look.cpu_s)


def _read_backend() -> str:
    dist = sys.modules.get("torch.distributed")
    with contextlib.suppress(AttributeError, RuntimeError, ValueError):  # no group, or none any longer
        return str(dist.get_backend())  # type: ignore[union-attr]
    return ""


def _read_world_size() -> int | None:
    words = os.environ.get("WORLD_SIZE", "")
    return int(words) if words.isdigit() else None


def _read_cpu_s() -> float:
    """CPU time of this process and of its children (loader workers), in seconds."""
    total_s = time.process_time()
    with contextlib.suppress(OSError):  # another system, or a child that has ended
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            children = file.read().split()[:MAX_CHILDREN]
        ticks = os.sysconf("SC_CLK_TCK")
        for child in children:
            with contextlib.suppress(OSError), open(f"/proc/{child}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
                total_s += (int(fields[11]) + int(fields[12])) / ticks
    return total_s
