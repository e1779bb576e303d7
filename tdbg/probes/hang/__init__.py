"""Hangs, at every level: which rank stands still, in what, and for how long."""

import os
import sys
import time
from threading import get_ident
from typing import TYPE_CHECKING

from tdbg.core.events import JOINS_UNEVEN
from tdbg.core.observations.distributed import QuietRank, RankResumed
from tdbg.core.observations.hang import HungRank, HungRankResumed, RankAlive, TrainingLines
from tdbg.core.rundir import env_rank
from tdbg.probes import PROBES, Probe

if TYPE_CHECKING:
    from tdbg.probes.distributed import Distributed
    from tdbg.probes.hang.hang_watch import HangWatch, Standstill
    from tdbg.probes.hang.training_lines import Lines

LIMIT = "DISTRIBUTED.hang_s"
JOINS_TEXT = "the program joins uneven inputs (Join): its ranks may make different numbers of steps"
INIT_ARGUMENTS = ("backend", "init_method", "timeout", "world_size", "rank")


def find_given_rank(args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[int, int] | None:
    """The rank and world size that a program passes to `init_process_group`, where there are several ranks."""
    given = {**dict(zip(INIT_ARGUMENTS, args, strict=False)), **kwargs}
    rank, size = given.get("rank"), given.get("world_size")
    if isinstance(rank, int) and isinstance(size, int) and 0 <= rank < size and size > 1:
        return rank, size
    return None


@PROBES.add
class Hang(Probe):
    """Where a rank is once it makes no progress for longer than its steps, evaluations and checkpoints took so far.

    Reads:  the counters of steps and updates; the number of the last collective of each process group, from torch's
            own flight recorder; the stack of the training thread. No function that a step calls is touched.
    Emits:  QUIET once a rank stands still, again after twice the time and so on, with the stacks of all threads in a
            file; RESUMED when it goes on. ALIVE every 20 seconds while it makes no training step. From those of all
            ranks the rules name the one that the others wait for.
            LINES now and then: the lines that the training thread was at in some two seconds.
    Cost:   a thread that looks every two seconds, 30 us each time, and 64 looks of 20 us for LINES, at ever longer
            intervals; none in a step.
    Limits: only in runs of several ranks, from the first process group on. Without a flight recorder (gloo before
            torch 2.9, mpi) the collective is known from the stack alone or, with the flag DISTRIBUTED, from the
            calls that Python makes. Point-to-point calls have no number with gloo.
    """

    name = "hang"
    levels = ("basic", "advanced", "extreme")
    observations = (HungRank, HungRankResumed, RankAlive, TrainingLines)

    _home: int | None = None  # the thread that made the process group
    _watch: "HangWatch | None" = None
    _last_reported: "tuple[Standstill, Distributed | None] | None" = None  # and the probe whose observation it is

    def attach(self) -> None:
        self.patch_at("group-made", before=self._init_begins, after=self._init_ended, raised=self._init_failed)
        self.patch_at("group-destroyed", after=self._destroy_ended)
        self.patch_at("join", before=self._note_join)
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_available() and dist.is_initialized():
            self._start_watching()

    def _note_join(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self.monitor.note(JOINS_UNEVEN, JOINS_TEXT)

    def detach(self) -> None:
        self._stop_watching()
        super().detach()

    def run_ends(self) -> None:
        self._stop_watching()

    def forked(self) -> None:
        self._watch = self._last_reported = self._home = None

    def _init_begins(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._home = get_ident()
        given = find_given_rank(args, kwargs)
        if given is not None:
            self.monitor.given_rank = given
        if given is not None or (env_rank(os.environ) is not None and os.environ.get("WORLD_SIZE", "1") != "1"):
            self._start_watching()  # without a rank it is not known yet whose folder to write to

    def _init_ended(self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> None:
        import torch.distributed as dist

        if dist.get_world_size() < 2:
            self._stop_watching()
        else:
            self._start_watching()

    def _init_failed(
        self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], error: Exception
    ) -> None:
        import torch.distributed as dist

        if not dist.is_initialized():  # else it was asked for twice
            self.monitor.given_rank = None
            self._stop_watching()

    def _destroy_ended(
        self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], result: object
    ) -> None:
        import torch.distributed as dist

        if not dist.is_initialized():  # else only a smaller group is gone
            has_failed = sys.exc_info()[1] is not None or getattr(sys, "last_value", None) is not None
            has_returned = get_ident() == self._find_thread() and not has_failed
            self._stop_watching(has_returned=has_returned)
            self.monitor.given_rank = None  # what comes after it may train alone

    def _start_watching(self) -> None:
        import torch.distributed as dist

        if self._watch is not None or (dist.is_initialized() and dist.get_world_size() < 2):
            return
        from tdbg.probes.hang.hang_watch import HangWatch

        monitor = self.monitor
        self._watch = HangWatch(
            monitor.settings.get_threshold(LIMIT),
            lambda: (monitor.step, monitor.updates, monitor.eval_calls),
            lambda found: self.guard.call_guarded(self._run_timed, self._emit_hung, found),
            lambda seconds: self.guard.call_guarded(self._run_timed, self._emit_resumed, seconds),
            lambda lines: self.guard.call_guarded(self._run_timed, self._emit_lines, lines),
            self._find_distributed,
            self._find_thread,
            lambda where: self.guard.call_guarded(self._run_timed, self._emit_alive, where),
        )
        self._watch.start_watching()

    def _find_distributed(self) -> "Distributed | None":
        """The probe that sees the calls of Python, while it is on."""
        probe: Distributed | None = self.monitor.find_probe("distributed")
        return probe

    def _find_thread(self) -> int:
        """The thread that trains: that made the last update, or the process group; the main one once it has ended."""
        from tdbg.probes.hang.hang_watch import find_main_thread, is_running

        tracker = self._find_distributed()
        known = (self.monitor.update_thread, tracker.home if tracker else None, self._home)
        return next((ident for ident in known if ident and is_running(ident)), find_main_thread())

    def _stop_watching(self, *, has_returned: bool = False) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop_watching(has_returned=has_returned)

    # from the thread that watches

    def _emit_hung(self, found: "Standstill") -> None:
        from tdbg.probes.hang.hang_watch import ALIVE_S

        if not self.on:
            return
        self.monitor.become_rank_now()  # it may never come to its first step
        tracker = self._find_distributed()
        if tracker is not None:
            tracker.guard.call_guarded(tracker.emit_order, tail=True)  # from which the rules see who is out of step
        step = self.monitor.step + 1
        self._last_reported = found, tracker
        look, call, files = found.look, found.look.call, self._write_files(step, found)
        hung = (HungRank if tracker is None else QuietRank)(
            state=look.state,
            op=call.op if call else "",
            began_t=round(time.time() - found.quiet_s, 3),
            group=call.group or None if call else None,
            size=call.size if call else None,
            ranks=call.ranks if call else None,
            rank_ranges=call.rank_ranges if call else None,
            shapes=call.shapes if call else None,
            number=call.number or None if call else None,
            counts=look.counts,
            quiet_s=round(found.quiet_s, 3),
            where=look.where,
            activity=look.activity,
            alike=call.alike if call else None,
            limit_s=round(found.limit_s, 1),
            alive_s=ALIVE_S,
            stacks=files.get("stacks"),
            flight=files.get("flight"),
        )
        (tracker or self).emit(hung, flag="DISTRIBUTED", step=step)

    def _write_files(self, step: int, found: "Standstill") -> dict[str, str]:
        """Stacks of all threads, and the flight recorder's entries, in files; their names."""
        from tdbg.probes.hang.hang_watch import collect_details

        kept = {}
        for name, data in collect_details(step, found).items():
            file = self.monitor.keep(f"{name}_step{step:08d}.json", data)
            if file:
                kept[name] = file
        return kept

    def _emit_lines(self, lines: "Lines") -> None:
        self.emit(TrainingLines(lines=[list(line) for line in lines]), step=self.monitor.step + 1)

    def _emit_alive(self, where: str) -> None:
        if self.on:
            self.monitor.become_rank_now()
            self.emit(RankAlive(where=where), step=self.monitor.step + 1)

    def _emit_resumed(self, seconds: float) -> None:
        last, self._last_reported = self._last_reported, None
        if last is not None:
            found, tracker = last
            op, quiet_s = found.look.call.op if found.look.call else "", round(seconds, 3)
            resumed = (HungRankResumed if tracker is None else RankResumed)(op=op, quiet_s=quiet_s)
            (tracker or self).emit(resumed, flag="DISTRIBUTED", step=self.monitor.step + 1)
