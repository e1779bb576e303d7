"""PROFILER: windows of torch.profiler over real steps, each written as a trace."""

import time
from typing import TYPE_CHECKING, Any

import torch

from tdbg.core.config import Selection
from tdbg.core.events import Trace
from tdbg.core.observations.profiler import (
    BUDGET_USED,
    ProfilingDone,
    TraceLost,
    TraceWritten,
    WindowOpened,
    WindowYielded,
)
from tdbg.core.profiling import Span, Windows
from tdbg.core.tables import format_count
from tdbg.probes import PROBES
from tdbg.probes.profiler.foreign_profiler import ForeignProfiler
from tdbg.probes.profiler.kineto import Press, Session, forget_in_child, is_own, somebody_records
from tdbg.probes.profiler.span_marks import SpanMarks
from tdbg.probes.profiler.tally import Tally, round_median
from tdbg.probes.updates import EveryUpdate
from tdbg.runtime.torch_compat import kineto_profile

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.rerun import Call

WHILE_TRAINING = ("must_watch", "call_ended")  # only a program that evaluates alone has its calls counted
MAX_EVAL_CALLS = 32  # without gradients in one recorded training step: beyond it is an evaluation, not a step
GUEST = "a profiler of the program began"
TRAINING = "training began"
END = "the program ended"
SCHEDULE = "schedule"
MAX_RANKS = 8  # that are all profiled where nobody says which
FIRST_ALONE = f"with more than {MAX_RANKS} ranks, only the first is profiled; --ranks selects others"


@PROBES.add
class Profiler(EveryUpdate):
    """Windows of torch.profiler over optimizer steps; in a program that only evaluates, over calls of the root module.

    Reads:  what torch.profiler records: operators, kernels and copies, with ``--kind`` memory, shapes, stacks, FLOPs.
            A window goes from the end of one update of the first optimizer to the end of another. While it is open,
            tdbg's other probes rest, so that the trace shows the program alone. Saves (``torch.save``, safetensors,
            ``torch.distributed.checkpoint``, ``xm.save``) and the beginning of a pass over a DataLoader, which no
            operator shows, have spans of their own.
    Emits:  WINDOW as one begins to warm up, a Trace event and a line (TRACE) as it ends; ASIDE where the program runs
            a profiler of its own; DONE at the end: windows, bytes, a step's time inside and outside of them; what is
            missing, and why.
    Cost:   outside of windows a clock read a step. Inside, torch's own: some 1.1 to 1.8 of a step of a tiny model.
            At the end of a window the trace is written (30 ms for 10 MB), and compressed in a thread.
    Limits: operators of other threads, and what loader workers do, are not in the trace; with stacks Python's calls
            of all threads are. A window never begins while a profiler of the program records, and ends early where one begins; the program's own trace is taken over.
    Source: torch.profiler.
    """

    name = "profiler"
    pause_while_profiling = False
    observations = (WindowOpened, TraceWritten, TraceLost, WindowYielded, ProfilingDone)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self.selection = Selection(ranks=monitor.settings.ranks)
        self.press = Press()
        self.guest = ForeignProfiler(self)
        self._reset_state()

    def _reset_state(self) -> None:
        self.windows = Windows.from_settings(self.monitor.settings)
        self.session: Session | None = None
        self._why = ""  # the open window's
        self._since = self.monitor.step or self.monitor.eval_calls  # the schedule counts the steps after this one
        self._phase = "train" if self.monitor.step else ""
        self._seen = self.monitor.step
        self._coming = 0  # the step that runs
        self._updates = self.monitor.updates
        self._at = 0.0  # when the running step began, our own pauses left out
        self.tally = Tally()
        self._whole = 0  # windows of the schedule that were not cut short by a profiler of the program, or taken over
        self._eval_calls = 0  # within the recorded step
        self.is_over = kineto_profile is None  # or the bytes are used up

    def attach(self) -> None:
        super().attach()
        self.guest.attach()
        SpanMarks(self, lambda: self.session is not None and self.session.recording).attach()
        monitor = self.monitor
        if monitor.step:
            monitor.mute_points(self, WHILE_TRAINING)
        if monitor.profiles:  # woken up by what was asked just now: the step that begins may be its first
            self._phase = self._phase or ("eval" if monitor.eval_calls else "")
            self._advance_windows((monitor.step or monitor.eval_calls) + 1)

    def detach(self) -> None:
        try:
            if not is_own():  # else it failed while torch was told to begin, and cannot be told to end: `_end_if_off`
                self._close_window("the profiler was switched off")
        finally:
            super().detach()

    def _end_if_off(self) -> None:
        """After torch was told to begin: if this probe was switched off meanwhile, the window is over."""
        if not self.on:
            self._close_window("the profiler was switched off")

    def forked(self) -> None:
        session = self.session
        if session is not None:
            forget_in_child(stacks=session.profiler.with_stack)
        self.press = Press()
        self._reset_state()

    # steps

    def after_update(self, optimizer: "Optimizer") -> None:
        self._updates = self.monitor.updates
        self._handle_training_step()

    def after_step(self, optimizer: "Optimizer") -> None:
        if self.monitor.updates == self._updates:  # skipped by a GradScaler: no update is told of
            self._handle_training_step()

    def _handle_training_step(self) -> None:
        step = self.monitor.step
        if step <= self._seen:
            return
        if self._phase != "train":
            self._close_window(TRAINING, whole=False)
            self._phase, self._at, self._since = "train", 0.0, 0
            self.monitor.mute_points(self, WHILE_TRAINING)
        self._seen = step
        self._advance_windows(step + 1)

    def must_watch(self) -> bool:
        """Called at calls of a root: in a program that evaluates alone, and while a training step is recorded."""
        if torch.is_grad_enabled():
            if self._phase == "eval":
                self._close_window(TRAINING, whole=False)
            if not self.monitor.step and self.session is None and self._at_step(1) is not None:
                self._phase = "train"
                self._advance_windows(1)
            return False
        if self._phase == "train":
            self._eval_calls += 1
            if self._eval_calls > MAX_EVAL_CALLS:
                self._close_window("an evaluation began", whole=False)
            return False
        return self.session is not None or self._find_next_window(self.monitor.eval_calls + 1) is not None

    def call_ended(self, module: "nn.Module", call: "Call", output: Any) -> None:
        if not call.graded and not self.monitor.updates:
            self._phase = "eval"
            self._advance_windows(self.monitor.eval_calls + 2)  # this call is counted after this

    # windows

    def _at_step(self, step: int) -> Span | None:
        """The window that this step belongs to or warms up for, asked for while it ran or by the schedule."""
        if self.is_over or not self._is_chosen():
            return None
        warmup = self.windows.warmup
        asked = next(
            (span for span, _ in self._list_requested_windows() if span.first - warmup <= step <= span.last), None
        )
        return asked or self._find_scheduled_window(step)

    def _is_chosen(self) -> bool:
        """True on a rank that is profiled: of --ranks, else all, or of many the first."""
        monitor = self.monitor
        if monitor.settings.ranks:
            return self.selection.is_rank_selected(monitor.rank)
        return not monitor.rank or monitor.world_size <= MAX_RANKS

    def _find_scheduled_window(self, step: int) -> Span | None:
        if not self._has_schedule():
            return None
        if self.windows.ranges:
            return self.windows.find_window(step)
        span = self.windows.find_window(step - self._since)
        return None if span is None else Span(span.first + self._since, span.last + self._since)

    def _has_schedule(self) -> bool:
        repeat = self.monitor.settings.profile_repeat
        over = not self.windows.ranges and 0 < repeat <= self._whole
        return bool(self.flags) and not self.monitor.settings.profile_on and not over

    def _list_requested_windows(self) -> list[tuple[Span, str]]:
        warmup = self.windows.warmup
        return [(Span(begin + warmup, begin + warmup + steps - 1), why) for begin, steps, why in self.monitor.profiles]

    def _find_next_window(self, step: int) -> Span | None:
        """A window that is still to come, or is open, at this step; None if all are over."""
        if self.is_over or not self._is_chosen():
            return None
        asked = next((span for span, _ in self._list_requested_windows() if span.last >= step), None)
        if asked is not None or not self._has_schedule():
            return asked
        since = 0 if self.windows.ranges else self._since
        span = self.windows.find_next_window(step - since)
        return None if span is None else Span(span.first + since, span.last + since)

    def _advance_windows(self, coming: int) -> None:
        """The step before ``coming`` has ended: close, open and mark windows as it falls out."""
        one_step = coming == self._coming + 1  # of calls in evaluation some may have been passed over
        if self._at and one_step and self.session is None and not self.guest.is_at_work():
            self.tally.outside.push((time.perf_counter() - self._at) * 1e3)
        self._coming, self._eval_calls = coming, 0
        wanted = self._at_step(coming)
        if self.session is not None and wanted != self.session.span:
            early = coming <= self.session.span.last
            self._close_window("another window was asked for" if early else "")
        begun = time.perf_counter()
        if wanted is not None and self.session is None:
            self._open_window(wanted)
        if self.session is not None:
            self.session.end_step(whole=True)
            if self.session.recording:  # between two steps: a sign of how far it came, should the process be killed
                self.monitor.when_rank(lambda: self.monitor.emit(self.monitor.build_cost()))
            self.session.begin_step(coming)
            self._end_if_off()
            self._exclude_pause(time.perf_counter() - begun)
        self._at = time.perf_counter()

    def _open_window(self, span: Span) -> None:
        if self.guest.is_at_work() or somebody_records():
            self.guest.yield_to()
            return
        self._why = next((why for asked, why in self._list_requested_windows() if asked == span), SCHEDULE)
        self.session = Session(span, self.monitor.settings.profile_kind)
        self._end_if_off()
        self.emit(WindowOpened(first_step=span.first, last_step=span.last), step=span.first - 1)
        if self._phase == "train":
            self.monitor.mute_points(self, ("call_ended",))  # evaluation inside of a step is noticed

    def _close_window(self, ended: str = "", *, whole: bool = True) -> None:
        """The window is over. ended: why before its time. whole: a step ends here, too."""
        session, self.session = self.session, None
        if session is None:
            return
        begun = time.perf_counter()
        self.monitor.suspend_probes(False)
        if self._phase == "train":
            self.monitor.mute_points(self, WHILE_TRAINING)
        if not session.is_here():  # torch would hand out nothing here, and crash on writing that
            self.is_over = True  # it records for ever
            session.release_resources()
            self._report_lost_trace(
                session, "another thread trains now" if session.is_elsewhere() else "somebody else stopped it"
            )
            return
        try:
            self._write_trace(session, ended, whole=whole and not ended)
        except OSError as error:
            self._report_lost_trace(session, error.strerror or str(error))
        except RuntimeError as error:  # somebody else ended it
            self._report_lost_trace(session, str(error).partition("\n")[0])
        finally:
            del session
            self._exclude_pause(time.perf_counter() - begun)

    def _exclude_pause(self, seconds: float) -> None:
        """The program stood still for what was asked for: neither tdbg's own cost nor the step's time."""
        self.tally.pause_ms += seconds * 1e3
        self.monitor.budget.exclude(seconds)
        recorder = self.monitor.recorder
        if recorder.began_at:
            recorder.began_at += seconds

    def _write_trace(self, session: Session, ended: str, *, whole: bool) -> None:
        monitor, span = self.monitor, session.span
        begun = time.perf_counter()
        about = {
            "first_step": span.first,
            "wanted": span.step_count,
            "phase": self._phase,
            "kind": session.kind,
            "rank": monitor.rank,
            "world_size": monitor.world_size,
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
        }
        is_wanted = self._is_wanted(session, ended)
        session.stop_session(about, whole=whole)
        if not is_wanted:
            return
        if ended != TRAINING and not (ended == END and self._whole and not self.windows.repeat):
            self.tally.cut = ended or self.tally.cut
        monitor.become_rank_now()
        folder = monitor.folder()
        if folder is None:
            raise OSError("there is no folder for traces")
        path, size = session.export_trace(folder / "traces", f"rank{monitor.rank:04d}", self.press)
        self._whole += self._why == SCHEDULE and self._phase == "train" and ended != GUEST
        event = Trace(
            t=time.time(),
            file=f"traces/{path.name}",
            bytes=size,
            phase=self._phase,
            first_step=span.first,
            steps=len(session.steps_ms),
            wanted=span.step_count,
            kind=session.kind,
            why=self._why,
            ended=ended,
            steps_ms=session.steps_ms,
            outside_ms=round_median(self.tally.outside),
            pause_ms=round((time.perf_counter() - begun) * 1e3, 3),
        )
        self.report_trace(event)

    def _is_wanted(self, session: Session, ended: str) -> bool:
        """False for a window that has nothing to show: not a whole step, and what there is is short."""
        if session.steps_ms or not ended or not session.recording:
            return session.recording
        usual_ms = self.tally.outside.median or self.tally.inside.median
        return ended not in (GUEST, TRAINING) and session.running_ms() >= usual_ms

    def report_trace(self, event: Trace) -> None:
        """A trace is there: the event, and its line."""
        self.tally.add_trace(event)
        if self.tally.bytes > self.monitor.settings.disk_budget_bytes:
            self.is_over = True
            self.tally.cut = BUDGET_USED
        self.monitor.when_rank(lambda: self.monitor.emit(event))
        span = Span(event.first_step, event.first_step + max(event.steps, 1) - 1)
        written = TraceWritten(
            file=event.file,
            steps=event.steps,
            bytes=event.bytes,
            first_step=span.first,
            last_step=span.last,
            phase=event.phase,
            wanted=event.wanted,
            ended=event.ended,
        )
        self.emit(written, step=span.last)

    def _report_lost_trace(self, session: Session, why: str) -> None:
        text = f"the trace of {session.span} is lost: {why}"
        self.tally.cut = text
        self.emit(TraceLost(missing=text))

    # the program's own profiler

    def make_way(self) -> None:
        """A profiler of the program is about to record: torch would empty ours without a word."""
        self._close_window(GUEST, whole=False)

    def took_over(self, event: Trace) -> None:
        """The program's own trace counts as a window."""
        self.tally.cut = "" if self.tally.cut == GUEST else self.tally.cut
        self.report_trace(event)
        self._whole += 1
        self._begin_anew()

    def guest_left(self) -> None:
        """The program's profiler has ended; whether it writes a trace is not known yet."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        """What the schedule still wants comes after a new wait and warm-up."""
        if self.windows.ranges:
            return
        repeat = self.monitor.settings.profile_repeat
        self._since = self.monitor.step or self.monitor.eval_calls
        self.windows = self.windows._replace(repeat=max(repeat - self._whole, 1) if repeat else 0, skip_first=0)

    # the end

    def switched_off(self) -> None:
        self._close_window("tdbg was switched off", whole=False)

    def run_ends(self) -> None:
        self._close_window(END, whole=False)
        self.press.wait_for_threads()
        if self.flags or self.tally.windows or self.tally.cut or self.monitor.profiles:
            missing = self._explain_missing()
            self.emit(self.tally.build_summary(missing=missing, idle="" if missing else self._explain_idle()))

    def _explain_idle(self) -> str:
        """Why nothing was profiled, where that is what was asked for."""
        if self.tally.windows or self.tally.cut:
            return ""
        if not self._is_chosen():
            return "this rank is not among --ranks" if self.monitor.settings.ranks else FIRST_ALONE
        waits = self.monitor.settings.profile_on and not self.monitor.profiles
        return "no finding that --window-on waits for came in time" if waits else ""

    def _explain_missing(self) -> str:
        """What was asked for and did not come."""
        monitor, tally = self.monitor, self.tally
        if tally.cut or self._explain_idle():
            return tally.cut
        if self.guest.was_at_work and not tally.windows:
            return "a profiler of the program was at work, and it wrote no trace"
        done = monitor.step or monitor.eval_calls
        span = self._find_next_window(done + 1)
        if span is None or (tally.windows and not self.windows.repeat and not self.windows.ranges):
            return ""
        unit = "call" if monitor.eval_calls and not monitor.step else "step"
        return f"{format_count(done, unit)} seen, but the next window ends at {unit} {span.last}"
