"""TD-R002: a rank that ended by its own exit code or by a signal."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tdbg.core.events import STOPPED, ChildExit, Event, Finding, Note, Observation
from tdbg.core.host import host_name
from tdbg.core.native_stack import NATIVE_STACK, CrashPlace, read_crash_place
from tdbg.core.observations import Evidence
from tdbg.core.observations.distributed import QuietRank, RankResumed
from tdbg.core.observations.hang import HungRank, HungRankResumed
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir, restart_count
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, Rule
from tdbg.rules.view import View, get_signal_name

SIGINT, SIGTERM, SIGHUP, SIGKILL, SIGABRT = 2, 15, 1, 9, 6
AT_ONCE_S = 5.0  # exits so close together are noted in an order of chance
ASKED_TO_END = (-SIGINT, -SIGTERM, -SIGHUP)
FATAL = (4, 6, 7, 8, 11)  # those that faulthandler handles
CAUSES = {
    -SIGKILL: "someone sent SIGKILL: often the kernel, out of memory (`dmesg`, the cgroup's limit), or a scheduler",
    -11: "a crash in native code: an extension, a driver, a wrong index in a custom kernel",
    -SIGABRT: "native code gave up (abort): a failed assertion, a collective that timed out",
    -7: "a memory-mapped file or shared memory ran out (/dev/shm)",
}


class _Exit(NamedTuple):
    t: float
    code: int
    rank: int
    step: int
    host: str
    explained: bool  # a traceback tells more (TD-R003)
    unsaid: bool = False  # it wrote no end: steps after its last record are not known of
    folder: Path = Path()
    evals: int = 0  # calls without gradients
    launch: int = 0

    def format_progress(self) -> str:
        """`` after step 7``: how far it came, as far as that is known."""
        if not self.step:
            return f" after {format_count(self.evals, 'evaluation call')}" if self.evals else " before its first step"
        return f", last recorded at step {self.step}" if self.unsaid else f" after step {self.step}"


@RULES.add
class RankExit(Rule):
    """Names the rank whose process ended badly first, with its own exit code or signal.

    What it does: A launcher reports one code for all its ranks, and turns signals into 1. tdbg notes each
    child's own status as its parent sees it and joins it with the rank. The first that ended badly is named;
    those the launcher then terminated are evidence. A process that was killed cannot say how far it came: the
    step is that of its last record, and it may have taken more. Silent where a traceback of that rank tells
    the reason (TD-R003). A crash in native code is named with the line it was called from. A shell script's
    exit code may come from another of its commands, so it is not taken as the rank's; 128+N is, if the rank
    was cut off by signal N.

    Why it matters: Exit code 1 of a launcher says nothing; SIGKILL of rank 5 on one host says: memory.

    Example:
        TD-R002 error: rank 1 was ended by SIGKILL, last recorded at step 12

    What to do: SIGKILL: look for the out-of-memory killer (`dmesg -T`), the cgroup's or the scheduler's limit.
    SIGSEGV, SIGABRT: the title names the line of the program, and native_stack.txt in the rank's folder has the
    Python stack of each thread. Where that is a collective, look for a rank that does not reach it: a branch on
    the rank, another order, another size. SIGBUS: /dev/shm is full; give loader workers less or the container
    more. A plain code: search the program for `sys.exit`.

    Thresholds: Any code but 0. Reported as `info`: SIGINT, SIGTERM and SIGHUP, which are requests; every end after
    the run was told to stop (Ctrl-C, a signal, `--stop-on`); and the end of a rank that made no progress at the
    time (TD-R006), since whoever ended it did so because of that.
    """

    code = "TD-R002"
    title = "a rank exited with an error code or was killed by a signal"
    severity = "error"
    grade = Evidence.LOCAL.grade_word
    leads_to = ("TD-R001", Link("TD-R003", least=-1), "TD-R004", "TD-R006", Link("TD-C005", least=-1, other=("rank",)))
    listens = (ChildExit, Observation, Note)
    observes = (QuietRank, RankResumed, HungRank, HungRankResumed)

    def __init__(self) -> None:
        self._hung: dict[int, tuple[float, float]] = {}  # rank -> when it told that it stands still, and for how long
        self._stopped: dict[int, str] = {}  # rank -> that tdbg ended it, and before which update

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if isinstance(event, Note) and event.code == STOPPED:
            self._stopped[process.rank or 0] = event.text
        elif process.rank is not None:
            quiet = QuietRank.from_event(event) or HungRank.from_event(event)
            if quiet is not None:
                self._hung[process.rank] = event.t, quiet.quiet_s
            elif RankResumed.from_event(event) or HungRankResumed.from_event(event):
                self._hung.pop(process.rank, None)
        return ()

    def finish(self, view: View) -> Iterable[Finding]:
        exits = sorted(_iter_bad_exits(view), key=lambda found: (found.code in ASKED_TO_END, found.t, found.rank))
        newest = max((found.launch for found in view.list_rank_processes()), default=0)
        for launch in sorted({found.launch for found in exits}):
            first = _find_first(together := [found for found in exits if found.launch == launch])
            if first is not None and (launch >= newest or first.code not in ASKED_TO_END):
                yield self._make_exit_finding(view, first, together, is_last=launch >= newest)

    def _make_exit_finding(self, view: View, first: _Exit, exits: list[_Exit], *, is_last: bool) -> Finding:
        """Of the exit that stands for those of one launch. is_last: no launch came after it."""
        rest = [other for other in exits if other is not first]
        how = f"was ended by {get_signal_name(-first.code)}" if first.code < 0 else f"exited with code {first.code}"
        others = [
            f"rank {other.rank} {get_signal_name(-other.code) if other.code < 0 else other.code}" for other in rest
        ]
        place = read_crash_place(first.folder) if -first.code in FATAL else None
        hung = [
            f"it had made no progress for {max(quiet_s, first.t - reported_t + quiet_s):.0f} s"
            for rank, (reported_t, quiet_s) in self._hung.items()
            if rank == first.rank and (is_last or reported_t <= first.t)
        ]
        stopped = self._stopped.get(first.rank, "") if is_last else ""
        after_stop = first.t >= view.stop_t
        is_asked = first.code in ASKED_TO_END or after_stop or bool(hung) or bool(stopped)
        return self.make_finding(
            f"rank {first.rank} {how}{_format_place(place)}{first.format_progress()}",
            severity="info" if is_asked else self.severity,
            first_step=first.step,
            attempt=first.launch,
            rank=first.rank,
            evidence=hung
            + ["after the run was told to stop"] * after_stop
            + [f"on {first.host}"] * bool(first.host)
            + [f"then: {join_limited(others, 6)}"] * bool(others)
            + [f"Python stacks: {first.folder.name}/{NATIVE_STACK}"] * bool(place),
            cause=stopped or ("" if hung else _find_cause(view, first.code, place)),
            try_next="" if stopped else _find_advice(first.code, place),
        )


def _format_place(place: CrashPlace | None) -> str:
    """`` in all_reduce (train.py:39 in main)``."""
    if place is None:
        return ""
    if not place.function:
        return f" at {place.where}"
    return f" in {place.function}" + (f" ({place.where})" if place.where else "")


def _find_advice(code: int, place: CrashPlace | None) -> str:
    if code in ASKED_TO_END:
        return ""
    if place is not None and place.is_collective:
        return "check that every rank reaches that call, in the same order and with the same size"
    return "read the end of that rank's output; `--tee` keeps it"


def _find_cause(view: View, code: int, place: CrashPlace | None) -> str:
    stopped = view.info.get("stopped")
    if stopped and code in ASKED_TO_END:
        return f"tdbg ended the run at {stopped}"
    if code == -SIGABRT and place is not None and place.is_collective:
        return "likely: another rank called a different collective, used another size, or had ended"
    return CAUSES.get(code, "")


def _find_first(exits: list[_Exit]) -> _Exit | None:
    """The exit to name of those in order of their time; None where a traceback says it.

    Exits within a few seconds are noted in an order of chance, so what they are decides: a signal that no launcher
    sends comes before a plain code, and both before an abort, which is how a rank ends that another one left alone in
    a collective.
    """
    if not exits:
        return None
    until = exits[0].t + AT_ONCE_S
    at_once = [found for found in exits if not found.explained and found.t <= until]
    sure = CAUSES.keys() - {-SIGABRT}
    signalled = next((found for found in at_once if found.code in sure), None)
    if signalled is not None:
        return signalled
    if exits[0].explained:
        return None
    return next((found for found in at_once if found.code not in (-SIGABRT, *ASKED_TO_END)), exits[0])


def _iter_bad_exits(view: View) -> Iterable[_Exit]:
    """Every rank whose own exit is known and bad, in each launch: those with steps, then those that never got that far."""
    stepped = view.list_rank_processes()
    known: set[tuple[str, int]] = set()
    for found in view.processes.values():
        if found.start is not None:
            known.add((found.start.host, found.start.pid))
    for found in (attempt for last in stepped for attempt in view.list_attempts(last)):
        code = view.find_process_exit(found)
        if code:
            host, pid = (found.start.host, found.start.pid) if found.start else (host_name(), 0)
            t = view.child_exits.get((host, pid), (found.t, 0))[0]
            explained = found.crash is not None and (code > 0 or code == -SIGABRT)  # torch aborts now and then at exit
            rank, is_cut = found.rank or 0, found.end is None
            path, launch = found.process.path, found.launch
            yield _Exit(t, code, rank, found.step, host, explained, is_cut, path, found.evals, launch)
    yield from _iter_unstepped_exits(view, {found.rank for found in stepped}, known)


def _iter_unstepped_exits(view: View, stepped: set[int | None], known: set[tuple[str, int]]) -> Iterable[_Exit]:
    if not view.child_exits:
        return
    crashed = {found.process.path.name for found in view.processes.values() if found.crash is not None}
    for hello in view.run.read_hellos():
        who, rank = (str(hello.get("host", "")), hello.get("pid")), hello.get("rank")
        if not isinstance(rank, int) or not isinstance(who[1], int) or rank in stepped or who in known:
            continue
        t, code = view.child_exits.get((who[0], who[1]), (0.0, 0))
        if code and code != -SIGTERM:
            launch = restart_count(environ) if isinstance(environ := hello.get("env"), dict) else 0
            yield _Exit(t, code, rank, 0, who[0], f"{who[0]}-{who[1]}" in crashed, launch=launch)
