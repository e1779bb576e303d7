"""The monitor of one rank: it knows what a step is, and calls the probes where they want to look.

`training_hooks` and `root_modules` bring the program's calls here. Every entry times tdbg's own work and keeps tdbg's own
exceptions away from training. What belongs together has a file of its own: `dispatcher` the probes, `forward_calls` the calls
of root modules, `loss_watch` the losses, `optimizers` the optimizers, `root_search` roots that nobody calls, `step_record` and
`record_writer` a step's record, `plan` what is affordable, `alarm` what is not finite, `event_buffer` and `cost_reports` what
is said.
"""

import math
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import get_ident
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tdbg.core.config import Selection, Settings
from tdbg.core.control import Request
from tdbg.core.events import Cost, Event
from tdbg.core.guard import set_guard_contexts
from tdbg.core.profiling import MAX_STEPS
from tdbg.runtime.alarm import Alarm, Attention
from tdbg.runtime.budget import Budget
from tdbg.runtime.calibration import COUNTED_BATCH, measure_overhead
from tdbg.runtime.change_watch import ChangeWatch
from tdbg.runtime.cost_reports import CostReports
from tdbg.runtime.deferred_reads import Then
from tdbg.runtime.device_losses import DeviceLosses
from tdbg.runtime.dispatcher import Catalog, ProbeDispatcher
from tdbg.runtime.duty_cycle import DutyCycle
from tdbg.runtime.event_buffer import EventBuffer
from tdbg.runtime.forward_calls import Evaluations, KeptCalls, RootCalls
from tdbg.runtime.inspection import Inspection
from tdbg.runtime.level_overrides import LevelOverrides
from tdbg.runtime.listener import Listener
from tdbg.runtime.local_gradients import LocalGradients
from tdbg.runtime.loss_watch import LossWatch
from tdbg.runtime.module_sampler import ModuleSampler
from tdbg.runtime.off_thread import import_off_main_thread
from tdbg.runtime.optimizers import Optimizers
from tdbg.runtime.plan import Planner
from tdbg.runtime.record_writer import RecordWriter
from tdbg.runtime.root_modules import Roots
from tdbg.runtime.root_search import RootSearch, is_anything_compiled
from tdbg.runtime.state import State
from tdbg.runtime.step_record import Recorder
from tdbg.runtime.torch_compat import MISSING, active_modes, is_update_nested, set_eval_frame, subclasses_aside
from tdbg.runtime.training_hooks import TrainingHooks

SKIPPED_STREAK = 5  # updates in a row, after which a few steps are on record


def if_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call ``then`` with a module that is loaded already; outside of a run nobody waits for later imports."""
    module = sys.modules.get(name)
    if module is not None:
        then(module)


class Monitor(State):
    """Watches one process and writes a record a step.

    catalog: where probes come from. emit: where events go. become_rank: called once, before the first record. save_batch: (step, parts) ->
    file name. failed: told of every exception of tdbg's own. note: (code, text), said once per code.
    started: when tdbg woke up, the beginning of the wall time its budget is a share of. first_update: called
    before the first update of a process that is no rank yet, and before its first evaluation call. log: (level letter, step, tag, text) into the
    rank's own logs. when_imported: call back with a module once the program has it. requests: what `tdbg control`
    asked for, read at most twice a second. keep: (name, plain data) -> file name, in the rank's folder. folder: that
    folder, once there is one. rank: as far as it is known before the first step. end_process: end the program here, with
    exit code 0.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        catalog: Catalog,
        emit: Callable[[Event], None],
        become_rank: Callable[[], None],
        save_batch: Callable[[int, dict[str, object]], str],
        failed: Callable[[str, BaseException], None],
        note: Callable[[str, str], None],
        started: float,
        first_update: Callable[[], None] = lambda: None,
        log: Callable[[str, int, str, str], None] = lambda level, step, mark, text: None,
        when_imported: Callable[[str, Callable[[ModuleType], None]], None] = if_imported,
        requests: Callable[[], list[Request]] = list,
        keep: Callable[[str, object], str] = lambda name, data: "",
        folder: Callable[[], Path | None] = lambda: None,
        rank: int = 0,
        end_process: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.emit = emit
        self.note = note
        self.save_batch = save_batch
        self._become_rank = become_rank
        self._first_update = first_update
        self._log = log
        self._when_imported = when_imported
        self.requests = requests
        self.keep = keep
        self.folder = folder
        self.end_process = end_process
        self.rank = rank
        self.given_rank: tuple[int, int] | None = None  # and the world size, as the program gives them to torch
        self.world_size = 1
        self.roots = Roots(failed)
        self.catalog = catalog
        self.dispatcher = ProbeDispatcher(self, catalog, lambda cls: cls(self), failed)  # type: ignore[arg-type]
        self.modules = ModuleSampler(self)
        self.hooks: TrainingHooks = TrainingHooks(self, self)
        self.fast_path = self.hooks.fast_path
        self.level_overrides = LevelOverrides(self)
        self.lasting: list[type[Listener]] = []  # at work whatever the level and the flags are
        self._wanted: list[type[Listener]] = []  # at work because of the level and the flags
        self._inspecting: list[type[Listener]] = []  # at work until the opening inspection is over
        self.capture_until = 0  # what waits for a finding is captured before this step
        self.profiles: list[tuple[int, int, str]] = []  # asked of the live run: warm up from step, record so many, why
        self.metrics: dict[str, float] = {}  # the user's own, by name: the last value of each
        self._begin_process(started)

    def _begin_process(self, now: float) -> None:
        """Make every part that knows of steps and calls anew: in a forked child none of them has happened."""
        self.reset_state()
        self._make_budget(now)
        self._make_planning()
        self._make_watchers()
        self._settled = False
        self.spoke = False  # the program itself had something written: `tdbg.log`, a diagnostic
        self._update_at = 0.0

    def _make_budget(self, now: float) -> None:
        """The budget, which knows from the start what this machine takes for tdbg's own calls."""
        self.budget = Budget(self.settings.budget_pct, now)
        overhead = measure_overhead()
        self.budget.calibrate(
            # Two hooks each, booked once; a skipped step has a loss, two hooks of the optimizer's and a clipping.
            {
                "call_begins": overhead.call_s,
                "step_ended": 2 * overhead.entry_s,
                "skipped_step": overhead.skipped_s,
                "unchecked_step": overhead.unchecked_s,
                "counting": overhead.turn_s,
                "counted_batch": COUNTED_BATCH * overhead.entry_s,
            }
            | dict.fromkeys(
                ("backward_begins", "backward_ended", "clip_begins", "clip_ended", "batch_taken"), overhead.entry_s
            )
        )

    def _make_planning(self) -> None:
        """What decides which steps are looked at, and what writes them down."""
        settings, strict = self.settings, self.settings.max_overhead is not None
        self.optimizers = Optimizers(settings.step_optimizer, self.note)
        changes = ChangeWatch(self.optimizers.find_main, self.roots.list_roots, is_anything_compiled)
        self.inspection = Inspection(
            self,
            self.budget,
            self.catalog.load_inspection_probes,
            self._inspect_with,
            changes.find_change,
            self._is_told_of_updates,
            strict=strict,
        )
        self._planner = Planner(self.budget, Selection.from_settings(settings), strict=strict)
        self.plan = self._planner.plan  # of the running step; the planner changes it, and never replaces it
        self.recorder = Recorder(settings.keep_steps)
        self.event_buffer = EventBuffer(self.budget, emit=self.emit, log=self._log, become_rank=self._become_rank)
        self.duty = DutyCycle(
            self, self.budget, self.roots, self.dispatcher, strict=strict, checks_all=settings.stop_before_update
        )
        self._costs = CostReports(self, settings, self.budget, self.duty, self.emit)

    def _make_watchers(self) -> None:
        """What the hooks of calls, losses and gradients lead to."""
        at_once = self.settings.stop_before_update
        self._attention = Attention()
        self.alarm = Alarm(self, self.dispatcher, self.budget, self._attention, self.note, stop_before_update=at_once)
        self.search = RootSearch(self.roots, self.optimizers, self.note)
        device_losses = DeviceLosses()
        self.calls = KeptCalls()
        evaluations = Evaluations(
            self,
            self.budget,
            self._costs,
            self.event_buffer,
            self.emit,
            self._between_steps,
            self._first_update,
            self.inspection.evaluation_begins,
        )
        shared = self, self.plan, self.budget, self.recorder, self.dispatcher
        self.root_calls = RootCalls(
            *shared, self.modules, self.search, self.calls, evaluations, self.duty, device_losses, on_device=at_once
        )
        self.losses = LossWatch(
            *shared,
            self.search,
            self.calls,
            self.root_calls,
            self.alarm,
            self.duty,
            device_losses,
            self._finish_pending,
            at_once=at_once,
        )
        self.local_gradients = LocalGradients(
            self,
            self.budget,
            self.dispatcher,
            self.optimizers,
            self.search,
            self.alarm,
            strict=self.settings.max_overhead is not None,
        )
        self.fast_path.reset_state(self._attention, self.calls, self.losses.last)
        self.duty.keep_call, self.duty.hold_call_for_rerun = (
            self.root_calls.keep_call,
            self.fast_path.hold_call_for_rerun,
        )
        self.duty.ended = self._leave_fast_path
        self.records = RecordWriter(
            self,
            self.budget,
            self.recorder,
            self.dispatcher,
            self._costs,
            emit=self.emit,
            late_loss=self.losses.on_late_losses,
        )

    def _finish_pending(self) -> None:
        self.records.finish_pending()

    # attaching

    def attach(self, probes: Iterable[type[Listener]]) -> None:
        """Set every hook and patch. Nothing is hooked before, nothing is left after `detach`."""
        for name, goes_off in MISSING.items():
            self.note(f"without-{name}", f"this torch has no {name}: {goes_off}")
        set_guard_contexts(active_modes, subclasses_aside, set_eval_frame)
        self.roots.attach(self.root_calls.on_call_start, self.root_calls.on_call_end, self.root_calls.on_call_raised)
        self.hooks.attach()
        self.activate_probes(probes)

    def activate_probes(self, probes: Iterable[type[Listener]]) -> None:
        """Have exactly these probes at work: those that stay keep what they know."""
        self.duty.come_back(time.perf_counter())  # whoever is new is told of the next step
        self._wanted = list(probes)
        self.dispatcher.activate(list(dict.fromkeys([*self._wanted, *self._inspecting, *self.lasting])))

    def _inspect_with(self, probes: Iterable[type[Listener]]) -> None:
        """Have these probes at work beside those of the level, until the inspection is over."""
        self._inspecting = list(probes)
        self.activate_probes(self._wanted)

    def _is_told_of_updates(self, cls: type[Listener]) -> bool:
        return any(probe.is_told_of_updates for probe in self.dispatcher.probes if type(probe) is cls)

    def detach(self) -> None:
        """Take every hook and patch away."""
        self.duty.come_back(time.perf_counter())
        self.lasting = self._inspecting = []
        self.activate_probes([])
        self.modules.detach()
        self.roots.detach()
        self.hooks.detach()
        self.local_gradients.detach()
        self.active = False
        self.off_at = time.perf_counter()

    def set_active(self, on: bool) -> None:
        """Off: no instance hooks, and every other hook returns at once. On: as before."""
        if on != self.active:
            now = time.perf_counter()
            self.duty.come_back(now)
            if on:
                self.budget.exclude_idle_time(now - self.off_at)
            else:
                self.dispatcher.dispatch("switched_off")
            self.off_at = now
            self.active = on
            self.roots.pause_hooks(not on)
            self._forget_step(now)

    def hook_count(self) -> int:
        """How many hooks and patches are in place (0 at level off)."""
        of_probes = sum(len(probe.patches) for probe in self.dispatcher.probes)
        return (
            len(self.hooks)
            + self.roots.count_hooked()
            + self.modules.count_hooks()
            + len(self.local_gradients)
            + of_probes
        )

    def mute_points(self, probe: Listener, points: Iterable[str]) -> None:
        """From now on a probe is not told of these points, although it has methods for them."""
        probe.muted = probe.ignores = frozenset(points)
        self.dispatcher.rebuild_subscribers()

    def suspend_probes(self, quiet: bool) -> None:
        """Quiet: steps are counted and nothing else, so that a trace shows the program alone. Else: as before."""
        if quiet == self.quiet:
            return
        self.duty.come_back(time.perf_counter())  # a window counts calls
        if quiet:
            self.records.finish_pending()  # a late value is not read in the middle of a trace
        self.quiet, self.hushed_at = quiet, self.step
        self.dispatcher.rebuild_subscribers()
        self.plan.open_up(not quiet)
        if not quiet:
            self._planner.plan_next_step(self.step, focus=False, inspects=self.inspection.is_open)

    def request_profile(self, begin: int, steps: int, why: str) -> None:
        """Have torch.profiler warm up from step ``begin`` on and record so many steps, whatever the flags are."""
        self.profiles.append((begin, steps, why))
        if self.find_probe("profiler") is None:
            import_off_main_thread(lambda: self.catalog.load_probes("profiler"))
            self.lasting += self.catalog.load_probes("profiler")
            self.activate_probes(self._wanted)

    # what probes ask and say

    def find_probe(self, name: str) -> Any:
        """A running probe; None if it is not running."""
        return self.dispatcher.find_probe(name)

    def handle_failure(self, probe: Listener | str, error: BaseException) -> None:
        """Switch a probe off for good and record why."""
        self.dispatcher.handle_failure(probe, error)

    def dispatch(self, point: str, begun: float, *args: object) -> None:
        """Call the probes that watch this point, and book the time since ``begun``."""
        if self.active:
            self.dispatcher.dispatch(point, *args)
        self.budget.charge(point, time.perf_counter() - begun)

    def log_line(self, mark: str, text: str, level: str = "D", step: int | None = None) -> None:
        """A line of the program's in the rank's log; held back until this process is one. step: if it is known."""
        self.event_buffer.log_line(level, self.user_facing_step if step is None else step, mark, text)

    def when_rank(self, say: Callable[[], None]) -> None:
        """Say it now if this process is a rank, else as soon as it is one; a bounded number of things waits."""
        self.event_buffer.when_rank(say)

    def checkpoint_met(self, kind: str) -> bool:
        """The program has saved or loaded a file. True if the steps that follow it are to be looked at, for the first of its kind."""
        is_first = self.inspection.checkpoint_met(kind)
        if is_first and not self.fast_path.is_taken_elsewhere:
            self.duty.come_back(time.perf_counter())
        return is_first

    def become_rank_now(self) -> None:
        """Claim the rank's folder, at the first step or the first thing worth reporting."""
        self.event_buffer.become_rank()

    @property
    def user_facing_step(self) -> int:
        """The step that the program itself speaks of now: people print what a step was like after its update.

        So the running one counts once its forward pass has begun, and until then the last one done.
        """
        begun = self.calls or self.fast_path.has_calls or self.root_calls.running
        return self.running_step if begun or not self.step else self.step

    @property
    def epoch(self) -> int | None:
        """Passes over the training loader begun, from 0, if the program has a DataLoader."""
        loader = self.find_probe("loader-wait")
        found: int | None = None if loader is None else loader.epoch
        return found

    def clear_history(self) -> None:
        """Forget the last step records, and what probes keep of earlier steps."""
        self.recorder.ring.clear()
        self.dispatcher.dispatch("history_cleared")

    def when_imported(self, name: str, then: Callable[[ModuleType], None]) -> None:
        """Call ``then(module)`` now if the program has it, else when it imports it. ``then`` has a guard of its own."""
        self._when_imported(name, then)

    def is_main(self, optimizer: Optimizer) -> bool:
        """True for the optimizer whose steps are counted: the first that steps, or the one asked for."""
        return self.optimizers.is_main(optimizer)

    def trained_roots(self) -> list[nn.Module]:
        """The roots whose parameters an optimizer holds; all roots where none does (evaluation)."""
        return self.search.trained_roots()

    def should_sample(self, kind: str) -> bool:
        """True if work that a flag or level asks for is to be done in the running step, and can be afforded."""
        return self.active and not self.quiet and self._planner.should_sample(kind, self.step + 1)

    def exempt_from_budget(self, first_step: int) -> None:
        """Pay for the first looks at what was requested in a live run, whatever was spent before."""
        self.budget.forgive_debt(time.perf_counter())
        self._planner.exempt_from_budget(first_step)

    def build_cost(self) -> Cost:
        """tdbg's own cost so far."""
        return self._costs.build_cost()

    def read_late(self, values: Tensor, then: Then) -> None:
        """Have a small device tensor read one step later, with all others in one copy."""
        self.records.read_late(values, then)

    # clipping

    def clip_glanced(self, parameters: list[Tensor], total: object) -> None:
        """Gradients have been clipped in a step that is not watched: nothing but their norm is looked at."""
        begun = time.perf_counter()
        try:
            if isinstance(total, Tensor) and total.is_cpu and total.numel() == 1 and not math.isfinite(total.item()):
                self.clipped_badly = sum(one.grad is not None for one in parameters)
                try:
                    self.dispatcher.dispatch("clip_begins", parameters)
                    self.dispatcher.dispatch("clip_ended", total)
                finally:
                    self.clipped_badly = 0
        except Exception as error:  # a tensor that shows no value; inline, as this runs at every clipping
            self.handle_failure("clip", error)
        self.budget.charge_fast("clip_ended", time.perf_counter() - begun)

    def clip_begins(self, parameters: list[Tensor]) -> bool:
        """Gradients are about to be clipped; False in a step that is not watched, if no flag asks for every clipping."""
        watched = self.plan.watch or len(self.dispatcher.subscribers["clip_begins"]) > 1
        if watched:
            begun = time.perf_counter()
            self.losses.check_device_losses()  # a bad loss explains bad gradients
            self.dispatch("clip_begins", begun, parameters)
        return watched

    def clip_ended(self, total: object) -> None:
        """Gradients have been clipped; ``total`` is their norm before."""
        self.dispatch("clip_ended", time.perf_counter(), total)

    def clip_failed(self, parameters: list[Tensor], watched: bool) -> None:
        """Clipping has raised because of the norm (``error_if_nonfinite``): bad gradients are reported as if it had returned.

        parameters: none where they are not known: then the main optimizer's. watched: `clip_begins` was true.
        """
        begun = time.perf_counter()
        main = self.optimizers.find_main()
        if not parameters and main is not None:
            parameters = [parameter for group in main.param_groups for parameter in group["params"]]
        if not watched:
            self.dispatcher.dispatch("clip_begins", parameters)
        self.dispatcher.dispatch("clip_ended", torch.full((), math.nan, device="cpu", dtype=torch.float32))
        self.bad_seen = False  # they touch no weight, so that a later bad value is news
        self.budget.charge("clip_ended", time.perf_counter() - begun)

    # updates and steps

    def update_begins(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step; one that steps inside another's step (a wrapper's) does not count."""
        if not self.active or self.optimizers.is_rehearsal(optimizer):
            return
        # One that raised has not ended.
        if self.in_update not in (None, optimizer) and (self.update_thread != get_ident() or is_update_nested()):
            return
        if self.duty.for_calls:
            self.duty.training_continues()
        if self.plan.deaf or self.duty.is_away:
            self.update_thread, self.in_update = get_ident(), optimizer
            return
        begun = time.perf_counter()
        self.losses.check_device_losses()
        if not self._settled:
            self._settled = True
            self._first_update()
        self.update_thread, self.in_update = get_ident(), optimizer
        self.losses.reset_closure()
        if not self.plan.watch:
            self.budget.charge("update_begins", time.perf_counter() - begun)
            return
        self.dispatch("update_begins", begun, optimizer)
        self._update_at = time.perf_counter()

    def update_ended(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""
        if self.optimizers.is_rehearsal(optimizer):
            self._forget_rehearsal()
            return
        self.updates += 1
        if not self.active:
            self._unwatched_step(optimizer)
            return
        if self.in_update not in (None, optimizer):
            return
        if self.plan.deaf and not self.recorder.pending:
            self._deaf_step(optimizer)
            return
        begun = time.perf_counter()
        if self.duty.is_away and begun < self.duty.until and not (self.recorder.pending or self.plan.watch):
            self._away_step(optimizer, begun)
            return
        self.in_update = None
        self.losses.reset_closure()
        if self.plan.watch:
            self.recorder.optimizer_s += max(begun - self._update_at, 0.0) if self._update_at else 0.0
            self._step_ended(optimizer, begun, skipped=False)
        else:
            self._idle_step(optimizer)
        self.budget.charge("step_ended", time.perf_counter() - begun)

    def skipped_update(self, optimizer: Optimizer, now: float) -> None:
        """GradScaler called no optimizer: a step all the same, marked as skipped."""
        self.fast_path.stop_skipping()
        if not self.active:
            self._unwatched_step(optimizer)
        else:
            self.losses.check_device_losses()
            self.bad_seen = False  # the bad values have touched no weight: a later one is news again
            self._step_ended(optimizer, now, skipped=True)
            self.budget.charge("step_ended", time.perf_counter() - now)

    def _unwatched_step(self, optimizer: Optimizer) -> None:
        """A step while tdbg is switched off: counted, with a sign of life, so that it can be switched on again."""
        if self.optimizers.is_main(optimizer):
            self.step += 1
            self._costs.report_if_due(time.perf_counter())
            self.level_overrides.apply_due_changes()

    def _deaf_step(self, optimizer: Optimizer) -> None:
        """A step that the budget does not even pay a glance for: counted, as cheaply as can be."""
        self.in_update = None
        if not self.optimizers.is_main(optimizer):
            self.optimizers.other_stepped()
            self.optimizers.give_way(optimizer, self.step)
            self.losses.last.discard_running()
            return
        self.optimizers.main_stepped()
        self.optimizers.claim_main(optimizer)  # a profiler may want quiet from the first step on
        self.step += 1
        self.losses.last.end_step(self.step)
        self.plan.deaf -= 1
        if self.calls:
            self.calls.clear()
        if not self.plan.deaf:
            begun = time.perf_counter()
            self.recorder.reset_step(begun)
            self._plan_next_step()
            self._costs.report_if_due(begun)
            self.budget.charge("step_ended", time.perf_counter() - begun)

    def _leave_fast_path(self) -> None:
        """A stretch ends, maybe in the middle of a step."""
        self.fast_path.stop_skipping()
        self._book_skipped()

    def _book_skipped(self) -> None:
        """Book the steps skipped since the last time."""
        skipped = self.fast_path.take_skipped()
        self.duty.unchecked_losses += skipped.losses
        self.duty.counted_steps += skipped.counted
        self.budget.book_times("skipped_step", skipped.steps - skipped.counted)
        self.budget.book_times("unchecked_step", skipped.counted)
        self.budget.book_times("counting", skipped.stretches)
        if self.duty.keeps_calls:
            self.budget.book_times("call_begins", skipped.steps)
        else:
            self.duty.steps += skipped.steps

    def _away_step(self, optimizer: Optimizer, begun: float) -> None:
        """A step in a stretch that is hardly watched: counted, with an eye on the learning rate."""
        self.in_update = None
        if not self.optimizers.is_main(optimizer):
            self.optimizers.other_stepped()
            self.optimizers.give_way(optimizer, self.step)
            self.losses.last.discard_running()
            return
        self.optimizers.main_stepped()
        self.step += 1
        self.duty.steps += not self.duty.keeps_calls
        self._book_skipped()
        self.losses.last.end_step(self.step)
        self.losses.reset_glances()
        self.calls.clear()
        self.last_full = False
        if self._attention.rate_jumped(optimizer, self.step):
            self.recorder.began_at = 0.0
            self.records.build_record(optimizer, begun, skipped=False)
        self.level_overrides.apply_due_changes()
        if self.level_overrides.temporary:
            self.duty.come_back(time.perf_counter())
        if self._attention.is_drawn or not self.duty.is_away:
            self._plan_next_step()
            self.budget.charge("step_ended", time.perf_counter() - begun)
        else:
            now = time.perf_counter()
            self.budget.charge_fast("step_ended", now - begun)
            listened = self.hooks.before_each or self.hooks.after_each or self.local_gradients.ranks > 1
            if not (listened or self.level_overrides.has_requests or is_anything_compiled()):
                triggers = self.find_probe("triggers")
                bound = math.inf if triggers is None or not triggers.on else triggers.loss_bound()
                steps, check_every = self.duty.plan_skipping(now)
                self.fast_path.start_skipping(steps, optimizer, bound, self.duty.until, check_every)

    def _idle_step(self, optimizer: Optimizer) -> None:
        """A step between samples is only counted."""
        if self.recorder.pending:
            self.recorder.finish_pending(self.records.write_record)
            self.calls.late = []
        if not self.optimizers.is_main(optimizer):
            self.optimizers.other_stepped()
            self.optimizers.give_way(optimizer, self.step)
            self.losses.last.discard_running()
            return
        self.optimizers.main_stepped()
        self.step += 1
        self.losses.last.end_step(self.step)
        if self.glances:  # a step whose loss nobody saw was only counted
            self.attended = self.step
        self.calls.clear()
        self.losses.reset_glances()
        self.last_full = False
        if self._attention.rate_jumped(optimizer, self.step):
            self.recorder.began_at = 0.0  # nobody timed this step, nor read its loss
            self.records.build_record(optimizer, time.perf_counter(), skipped=False)
        self._costs.report_if_due(time.perf_counter())  # a sign of life where no record is affordable
        self._plan_next_step()
        if self.plan.watch:
            self.dispatcher.dispatch("after_step", optimizer)
            self._forget_step(time.perf_counter())

    def _step_ended(self, optimizer: Optimizer, now: float, *, skipped: bool) -> None:
        self.optimizers.add(optimizer)
        if not self.optimizers.is_main(optimizer):
            self._other_step(optimizer)
            return
        self.optimizers.claim_main(optimizer)
        self.optimizers.main_stepped()
        self.step += 1
        self.losses.last.end_step(self.step)
        self.attended = self.step
        if skipped:
            self._count_skipped_update()
        self.last_full = self.plan.full
        self.ending = True
        try:
            self.modules.finish_step()
            jumped = self._attention.rate_jumped(optimizer, self.step)
            self.event_buffer.become_rank()
            if self.plan.record or jumped:
                self.records.build_record(optimizer, now, skipped=skipped)
        finally:
            self.dispatcher.dispatch("after_step", optimizer)
            self.ending = False
            self._forget_step(now)
            self._plan_next_step()

    def _count_skipped_update(self) -> None:
        """Exact without a record; a streak of them gets a few records, however small the budget is."""
        follows = self.last_skipped_step == self.step - 1
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if follows else 1
        self.last_skipped_step = self.step
        if self.skipped_in_a_row == SKIPPED_STREAK:
            self.inspection.ask_for_repetition()

    def _forget_rehearsal(self) -> None:
        """A step on tensors without data (a dry run on the meta device) is none; what was gathered of it goes."""
        self.note("meta-steps", "steps on the meta device or on fake tensors are not counted: they compute only shapes")
        if self.active:
            self.losses.last.discard_running()
            self.calls.clear()
            self._forget_step(time.perf_counter())

    def _other_step(self, optimizer: Optimizer) -> None:
        self.optimizers.other_stepped()
        self.losses.last.discard_running()
        self.recorder.belongs_to_another()
        self.calls.clear()
        self.dispatcher.dispatch("after_step", optimizer)
        self.optimizers.give_way(optimizer, self.step)

    def _forget_step(self, now: float) -> None:
        self.root_calls.end_step()
        self.recorder.reset_step(now)
        self._update_at = 0.0
        self.losses.reset_glances()
        self.calls.retire_calls(pending=self.recorder.pending is not None)

    def _plan_next_step(self) -> None:
        """A step has ended: changes asked for come into force, and the next step is planned."""
        planner, glanced = self._planner, not (self.plan.watch or self.duty.is_away)
        self._between_steps()  # a look that begins ends the stretch
        planner.rank, planner.world_size = self.rank, self.world_size
        planner.plan_next_step(
            self.step,
            focus=self._attention.next_step(),
            inspects=self.inspection.is_open,
            glances=self.step < self.reviews_until,
        )
        if self.level_overrides.has_requests:  # looked at where a step is planned: its step must not be passed over
            self.plan.deaf = min(self.plan.deaf, 1)
        if self.quiet and self.step - self.hushed_at >= MAX_STEPS:
            self.note(
                "profiled-on",
                f"a profiler has recorded for {MAX_STEPS} steps: tdbg watches again, so its own work appears in that trace",
            )
            self.suspend_probes(False)
        if self.quiet:
            self.plan.open_up(False)
        elif self.modules.wanted and not self.plan.watch:
            self.plan.watch = self.should_sample(self.modules.kind)  # a look begins at a call that is watched
        now = time.perf_counter()
        if not self.duty.is_away:
            self.duty.step_ended(now, glanced=glanced, planned=self.plan.watch or self.level_overrides.temporary)
        elif self.plan.watch or now >= self.duty.until:
            self.duty.come_back(now)
            if not self.plan.watch and not self.quiet:  # the budget may not have earned it in so long a stretch
                self.plan.watch = self.plan.small = self.plan.record = True

    def _between_steps(self) -> None:
        """Bring into force what was asked for, and end the opening inspection when it is time."""
        self.level_overrides.apply_due_changes()
        self.inspection.step_ended()

    def finish_run(self) -> None:
        """The process ends: write what is pending, and have probes say their last."""
        self.records.finish_pending()
        self._book_skipped()
        if not (self.updates or len(self.optimizers)):  # calls without a backward were evaluation, gradients on or off
            self.eval_calls += self.calls.unused
        if self.active:
            self.dispatcher.dispatch("run_ends")
            self.inspection.run_ends(time.perf_counter())
            return
        for probe in [probe for probe in self.dispatcher.probes if type(probe) in self.lasting]:
            probe.guard.call_guarded(probe.run_ends)  # what it wrote must be closed

    def forked(self) -> None:
        """In a forked child: a new process, with the same hooks and nothing seen yet."""
        self.level_overrides.forked()
        self.duty.forked()
        self.profiles = []
        self.local_gradients.detach()
        inspects = self.inspection.is_at_work
        self._begin_process(time.perf_counter())
        self.roots.set_targets(
            self.root_calls.on_call_start, self.root_calls.on_call_end, self.root_calls.on_call_raised
        )
        self.modules.forked()
        if inspects:
            self.inspection.open_inspection(self.settings.allowance)
        elif self._inspecting:
            self._inspect_with([])
        for probe in self.dispatcher.probes:
            probe.guard.call_guarded(probe.forked)
