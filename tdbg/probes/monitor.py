"""The monitor of one rank: it knows what a step is, and calls the probes where they want to look.

`hooks` and `roots` bring the program's calls here. Every entry times tdbg's own work and keeps tdbg's own
exceptions away from training; `record` gathers what a step's record holds.
"""

import cmath
import contextlib
import gc
import math
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tdbg.config import Selection, Settings
from tdbg.control import Request
from tdbg.events import Cost, Event, Observation, Step, number
from tdbg.flags import tag
from tdbg.probes import BASIC, PROBES, Probe, tensors
from tdbg.probes.aside import aside
from tdbg.probes.budget import ALWAYS_STEPS, Budget
from tdbg.probes.changes import Changes
from tdbg.probes.hooks import TorchHooks
from tdbg.probes.modules import ModuleLook
from tdbg.probes.plan import Plan, Planner
from tdbg.probes.record import Recorder
from tdbg.probes.rerun import Call
from tdbg.probes.roots import Roots
from tdbg.profiling import MAX_STEPS

FOCUS_STEPS = 25
RATE_JUMP = 3.0
JUMP_REST_STEPS = 8 * FOCUS_STEPS
KEPT_CALLS = 8
MAX_UNUSED_CALLS = 4  # calls no backward has followed: inference with gradients on keeps no more
COST_EVERY_S = 5.0
OTHER_OPTIMIZER_TAKES_OVER = 16
MAX_HELD = 1000
RESTS = ("call_begins", "call_ended", "clip_begins", "clip_ended", "must_watch")  # while a profiler records


def if_imported(name: str, then: Callable[[Any], None]) -> None:
    """Call ``then`` with a module that is loaded already; outside of a run nobody waits for later imports."""
    module = sys.modules.get(name)
    if module is not None:
        then(module)


class Monitor:
    """Watches one process and writes a record a step.

    emit: where events go. become_rank: called once, before the first record. save_batch: (step, parts) ->
    file name. failed: told of every exception of tdbg's own. note: (code, text), said once per code.
    started: when tdbg woke up, the beginning of the wall time its budget is a share of. first_update: called
    before the first update of a process that is no rank yet. log: (level letter, step, tag, text) into the
    rank's own logs. when_imported: call back with a module once the program has it. requests: what `tdbg control`
    asked for, read at most twice a second. keep: (name, plain data) -> file name, in the rank's folder. folder: that
    folder, once there is one. rank: as far as it is known before the first step.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        emit: Callable[[Event], None],
        become_rank: Callable[[], None],
        save_batch: Callable[[int, dict[str, Any]], str],
        failed: Callable[[str, Exception], None],
        note: Callable[[str, str], None],
        started: float,
        first_update: Callable[[], None] = lambda: None,
        log: Callable[[str, int, str, str], None] = lambda level, step, mark, text: None,
        when_imported: Callable[[str, Callable[[Any], None]], None] = if_imported,
        requests: Callable[[], list[Request]] = list,
        keep: Callable[[str, Any], str] = lambda name, data: "",
        folder: Callable[[], Path | None] = lambda: None,
        rank: int = 0,
    ) -> None:
        self.settings = settings
        self.emit = emit
        self.note = note
        self.save_batch = save_batch
        self._become_rank = become_rank
        self._failed = failed
        self._first_update = first_update
        self._log = log
        self._when_imported = when_imported
        self.requests = requests
        self.keep = keep
        self.folder = folder
        self.rank = rank
        self.budget = Budget(settings.budget_pct, started)
        self.roots = Roots(self._call_begins, self._call_ended, failed)
        self.modules = ModuleLook(self)
        self.hooks = TorchHooks(self)
        self.probes: list[Probe] = []
        self._told_broken: set[str] = set()
        self._failed_probes: set[type[Probe]] = set()  # a change of level does not bring them back
        self.suspects: Callable[[float], bool] | None = None  # is a loss between samples worth a record?
        self.lasting: list[type[Probe]] = []  # at work whatever the level and the flags are
        self.capture_until = 0  # what waits for a finding is captured before this step
        self.profiles: list[tuple[int, int, str]] = []  # asked of the live run: warm up from step, record so many, why
        self.metrics: dict[str, float] = {}  # the user's own, by name: the last value of each
        self._subscribers: dict[str, list[tuple[Probe, Callable[..., None]]]] = {}
        self.world_size = 1
        self.changes = Changes(self)
        self._reset()

    def _reset(self) -> None:
        strict = self.settings.max_overhead is not None
        self._planner = Planner(self.budget, Selection.of(self.settings), strict=strict)
        self._held: list[Callable[[], None]] = []  # what was seen before this process became a rank
        self.spoke = False  # the program itself had something written: `tdbg.log`, a diagnostic
        self.recorder = Recorder(self.settings.keep_steps)
        self.step = 0
        self.attended = 0  # the last step that was more than counted
        self.updates = 0  # of any optimizer
        self.eval_calls = 0
        self.sampled = 0
        self.scaling = False  # a GradScaler scaled a loss in this step
        self.active = True
        self.rerunning = False
        self.bad_seen = False
        self.quiet = False  # torch.profiler records: tdbg's own looks must not stand in the trace
        self.hushed_at = 0  # the last step known to have been recorded so
        self.last_full = True  # all gradients of the last step were looked at
        self.in_update: Optimizer | None = None
        self.calls: deque[Call] = deque(maxlen=KEPT_CALLS)
        self.late_calls: list[Call] = []  # of the step whose values are on their way from a device
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._main: weakref.ref[Optimizer] | None = None
        self._main_idle = 0
        self._others: set[str] = set()  # classes of optimizers that stepped and are not the one that counts
        self._is_rank = self._settled = False
        self._evaluated = False
        self._threads = _Threads()
        self._searches = 0
        self._jump_seen = 0  # no jump is told before this step
        self._rate = 0.0  # the learning rate of the step before
        self._ending = False
        self._focus = 0  # so many more steps are recorded in any case
        self._unused_calls = 0  # root calls since the last backward
        self._idle_losses = 0  # losses of the running step that were sent backward between samples
        self._off_at = 0.0
        self._backward_at = self._update_at = 0.0
        self._watch_spent_s = 0.0
        self._watch_is_asked = False  # the call that runs is watched for a probe alone, which asked for it
        self._called = False
        self._cost_at = 0.0

    # attaching

    @property
    def watching(self) -> bool:
        """True if the running step is watched; between samples steps are only counted."""
        return self.plan.watch

    @property
    def plan(self) -> Plan:
        """What is affordable in the running step."""
        return self._planner.plan

    def attach(self, probes: Iterable[type[Probe]]) -> None:
        """Set every hook and patch. Nothing is hooked before, nothing is left after `detach`."""
        self.roots.attach()
        self.hooks.attach()
        self.use(probes)

    def use(self, probes: Iterable[type[Probe]]) -> None:
        """Have exactly these probes at work: those that stay keep what they know."""
        for name in [name for name in PROBES.broken if name not in self._told_broken]:
            self._told_broken.add(name)
            self._failed(name, PROBES.broken[name])
        wanted = list(dict.fromkeys([*probes, *self.lasting]))
        here = {type(probe) for probe in self.probes}
        for probe in [probe for probe in self.probes if type(probe) not in wanted]:
            self._drop(probe)
        new = self._made(cls for cls in wanted if cls not in here and cls not in self._failed_probes)
        order = {cls: place for place, cls in enumerate(wanted)}
        self.probes = sorted([*self.probes, *new], key=lambda probe: order[type(probe)])
        self._subscribe()
        for probe in self.probes:
            probe.read_flags()
        for probe in new:
            try:
                probe.attach()
            except Exception as error:  # guard: one probe less, training as before
                self.failed(probe, error)
        self.tell("changed")

    def _made(self, classes: Iterable[type[Probe]]) -> list[Probe]:
        made = []
        for cls in classes:
            try:
                made.append(cls(self))
            except Exception as error:  # guard: one probe less
                self._failed_probes.add(cls)
                self._failed(cls.name, error)
        return made

    def _drop(self, probe: Probe) -> None:
        self.probes = [other for other in self.probes if other is not probe]
        self._subscribe()
        try:
            probe.detach()
        except Exception as error:  # guard: a stranger's way of leaving is not the program's affair
            self._failed(probe.name, error)

    def detach(self) -> None:
        """Take every hook and patch away."""
        self.lasting = []
        self.use([])
        self.modules.detach()
        self.roots.detach()
        self.hooks.detach()
        self.active = False
        self._off_at = time.perf_counter()

    def switch(self, on: bool) -> None:
        """Off: no instance hooks, and every other hook returns at once. On: as before."""
        if on != self.active:
            now = time.perf_counter()
            if on:
                self.budget.rest(now - self._off_at)
            else:
                self.tell("switched_off")
            self._off_at = now
            self.active = on
            self.roots.pause(not on)
            self._forget_step(now)

    def hook_count(self) -> int:
        """How many hooks and patches are in place (0 at level off)."""
        return len(self.hooks) + self.roots.count() + self.modules.count() + sum(len(p.patches) for p in self.probes)

    def ignore(self, probe: Probe, points: Iterable[str]) -> None:
        """From now on a probe is not told of these points, although it has methods for them."""
        probe.ignores = frozenset(points)
        self._subscribe()

    def hush(self, quiet: bool) -> None:
        """Quiet: steps are counted and nothing else, so that a trace shows the program alone. Else: as before."""
        if quiet == self.quiet:
            return
        if quiet:
            self._finish_pending()  # a late value is not read in the middle of a trace
        self.quiet, self.hushed_at = quiet, self.step
        self._subscribe()
        plan = self.plan
        plan.full = plan.small = plan.watch = plan.record = not quiet
        plan.deaf = int(quiet)
        if not quiet:
            self._planner.next(self.step, focus=False)

    def profile(self, begin: int, steps: int, why: str) -> None:
        """Have torch.profiler warm up from step ``begin`` on and record so many steps, whatever the flags are."""
        self.profiles.append((begin, steps, why))
        if self.probe("profiler") is None:
            here = [type(probe) for probe in self.probes if type(probe) not in self.lasting]
            aside(lambda: PROBES.some(["profiler"]))
            self.lasting += PROBES.some(["profiler"])
            self.use(here)

    def _subscribe(self) -> None:
        self._subscribers = {}
        probes = sorted(self.probes, key=lambda probe: not probe.rests)
        for name, method in vars(Probe).items():
            if callable(method) and not name.startswith("_"):
                self._subscribers[name] = [
                    (probe, getattr(probe, name))
                    for probe in probes
                    if getattr(type(probe), name) is not method and name not in probe.ignores
                    if not (self.quiet and probe.rests and name in RESTS)
                ]

    def probe(self, name: str) -> Any:
        """A running probe; None if it is not running."""
        return next((probe for probe in self.probes if probe.name == name), None)

    def tell(self, point: str, *args: Any) -> None:
        """Call the probes that watch this point; one that raises is switched off."""
        for probe, method in self._subscribers[point]:
            try:
                method(*args)
            except Exception as error:  # guard: around every probe call
                self.failed(probe, error)

    def dispatch(self, point: str, begun: float, *args: Any) -> None:
        """`tell`, and book the time since ``begun``."""
        if self.active:
            self.tell(point, *args)
        self.budget.spend(point, time.perf_counter() - begun)

    def failed(self, probe: Probe | str, error: Exception) -> None:
        """Switch a probe off for good and record why."""
        self._failed(probe if isinstance(probe, str) else probe.name, error)
        if isinstance(probe, Probe):
            self._failed_probes.add(type(probe))
            self._drop(probe)

    # what probes say

    def observe(
        self,
        probe: Probe | type[Probe],
        flag: str,
        part: str,
        text: str,
        values: dict[str, Any],
        level: str,
        step: int | None,
    ) -> None:
        """An Observation event and its line in the log; held back until this process is a rank."""
        event = Observation(
            t=time.time(),
            probe=probe.name,
            flag=flag,
            part=part,
            step=self.running_step if step is None else step,
            epoch=self.epoch,
            text=text,
            values=values,
        )
        mark = tag(flag, part) if flag else f"[{probe.name}]"
        self.when_rank(lambda: self._tell_of(event, mark, level))

    def when_rank(self, say: Callable[[], None]) -> None:
        """Say it now if this process is a rank, else as soon as it is one; a bounded number of things waits."""
        if self._is_rank:
            say()
        elif len(self._held) < MAX_HELD:
            self._held.append(say)

    def line(self, mark: str, text: str, level: str = "D", step: int | None = None) -> None:
        """A line of the program's in the rank's log; held back until this process is one. step: if it is known."""
        step = self.spoken_step if step is None else step
        self.spoke = True
        self.when_rank(lambda: self._log(level, step, mark, text))

    def _tell_of(self, event: Observation, mark: str, level: str) -> None:
        self.emit(event)
        self._log(level, event.step, mark, event.text)

    @property
    def running_step(self) -> int:
        """The step that is running; while its record is made, and in evaluation, the last one done."""
        return self.step if self._ending or not torch.is_grad_enabled() else self.step + 1

    @property
    def spoken_step(self) -> int:
        """The step that the program itself speaks of now: people print what a step was like after its update.

        So the running one counts once its forward pass has begun, and until then the last one done.
        """
        return self.running_step if self.calls or self._threads.calls or not self.step else self.step

    @property
    def epoch(self) -> int | None:
        """Passes over the training loader begun, from 0, if the program has a DataLoader."""
        loader = self.probe("loader-wait")
        found: int | None = None if loader is None else loader.epoch
        return found

    def clear_history(self) -> None:
        """Forget the last step records, and what probes keep of earlier steps."""
        self.recorder.ring.clear()
        self.tell("history_cleared")

    def when_imported(self, name: str, then: Callable[[Any], None]) -> None:
        """Call ``then(module)`` now if the program has it, else when it imports it."""
        self._when_imported(name, then)

    # backward and clipping

    def clip_begins(self, parameters: list[Tensor]) -> None:
        """Gradients are about to be clipped."""
        self.dispatch("clip_begins", time.perf_counter(), parameters)

    def clip_ended(self, total: Any) -> None:
        """Gradients have been clipped; ``total`` is their norm before."""
        self.dispatch("clip_ended", time.perf_counter(), total)

    def idle_backward(self, losses: Any) -> bool:
        """Between samples only one thing is done: a host loss is checked. True if there is no more to do."""
        if self.plan.deaf:
            return True
        begun = time.perf_counter()
        self._unused_calls = 0
        fine = True
        try:
            if isinstance(losses, Tensor) and losses.numel() == 1 and tensors.on_host(losses):
                value = losses.item()
                fine = cmath.isfinite(value) and not self._suspicious(value)
        except Exception as error:  # guard: a tensor that shows no value
            self.failed("backward", error)
        self._idle_losses += 1
        self.budget.spend("backward_begins", time.perf_counter() - begun)
        return fine

    def _suspicious(self, loss: float) -> bool:
        """True if this loss is worth a record of its step, which then is watched from here on.

        The first of a step only: the others would make a record of a part of its losses.
        """
        if self.suspects is None or self._idle_losses or self.scaling or isinstance(loss, complex):
            return False
        try:
            if not self.suspects(loss):
                return False
        except Exception as error:  # guard: as around every probe call
            self.failed(self.probe("triggers") or "triggers", error)
            return False
        self.plan.watch = self.plan.record = True
        self.recorder.began_at = 0.0  # nobody timed this step's beginning
        self._watch_spent_s = self.budget.by_part["call_begins"] + self.budget.by_part["call_ended"]
        return True

    def backward_begins(self, losses: Any) -> None:
        """Backward is about to run: the loss is looked at while the weights are those of the forward pass."""
        begun = time.perf_counter()
        self._threads.calls.clear()  # a root that raised never returned; it must not hide the calls after it
        self._unused_calls = 0
        try:
            loss = self._loss_of(losses)
            if not self._called:
                self._look_for_forward()
            self.tell("backward_begins", loss)
            if loss is not None:
                self._take_loss(loss)
        except Exception as error:  # guard
            self.failed("backward", error)
        self._backward_at = time.perf_counter()
        self.budget.spend("backward_begins", self._backward_at - begun)

    def _loss_of(self, losses: Any) -> Tensor | None:
        found = losses
        if not isinstance(found, Tensor):
            items = list(found)
            found = items[0] if len(items) == 1 else None
        if not isinstance(found, Tensor) or found.numel() != 1 or found.is_complex():
            return None
        if self.scaling:
            scaler = self.probe("loss-scaler")
            found = scaler.unscaled(found) if scaler is not None else found
        return cast(Tensor, found).detach()

    def _take_loss(self, loss: Tensor) -> None:
        counted = not self._evaluated  # a closure's further evaluations are checked, not added
        self._evaluated = self.in_update is not None
        if not tensors.on_host(loss) and not self.settings.stop_before_update:
            self.recorder.add_loss(loss, counted=counted)
            return
        value = float(loss)
        self.recorder.add_loss(value, counted=counted)
        if not math.isfinite(value):
            self.report_bad_loss(value)

    def backward_ended(self) -> None:
        """Backward returned."""
        begun = time.perf_counter()
        self.recorder.backward_s += begun - self._backward_at
        self.dispatch("backward_ended", begun)

    # calls of root modules

    def _call_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.rerunning or not self.active or torch.jit._trace.is_tracing() or _capturing():
            return
        trains = self.quiet and self.updates  # a window over an evaluation is ended by the first call that trains
        if torch.is_grad_enabled() and (trains or (self.plan.deaf and not self._subscribers["must_watch"])):
            return
        begun = time.perf_counter()
        try:
            if self._may_watch(module, begun):
                call = Call.of(module, args, kwargs or {})
                if call is not None:
                    self.tell("call_begins", module, call)
                    if call.graded:
                        self.modules.begin(module)
                    self._threads.calls.append((call, time.perf_counter()))
            elif torch.is_grad_enabled() and not self._threads.calls:
                self._unused_calls += 1
                if self._unused_calls > MAX_UNUSED_CALLS:
                    self.calls.clear()
                self.calls.append(Call.light(module, args, kwargs or {}))
        except Exception as error:  # guard
            self.failed("forward", error)
        self.budget.spend("call_begins", time.perf_counter() - begun, asked=self._watch_is_asked)

    def _may_watch(self, module: nn.Module, now: float) -> bool:
        """True if this call of a root is to be watched: an outer one, and affordable."""
        running = self._threads.calls
        if running:
            if running[-1][0].module() is not module:
                return False  # a root inside a root: the outer call counts
            running.clear()  # the same root again: its last call raised
        self._called = True
        if self.recorder.began_at == 0.0:
            self.recorder.began_at = now
        asked, affordable = self._must_watch(), self._may_afford_watch(now)
        if torch.is_grad_enabled():
            if asked:
                self._watch_is_asked = self._watch_is_asked or not affordable  # by an earlier call of this step
                self.plan.watch, self.plan.deaf = True, 0
            return self.plan.watch
        self._watch_is_asked = asked and not affordable
        if not asked and not affordable:
            self.eval_calls += 1
            if self._is_rank:
                self._maybe_cost(now)
        return asked or affordable

    def _may_afford_watch(self, now: float) -> bool:
        if torch.is_grad_enabled():
            return self.plan.watch
        return not self.quiet and (self.eval_calls < ALWAYS_STEPS or self.budget.allows(("eval",), now))

    def _must_watch(self) -> bool:
        """True if a probe asks for the next call, whatever it costs."""
        asked = False
        for probe, method in self._subscribers["must_watch"]:
            try:
                asked = method() or asked
            except Exception as error:  # guard: around every probe call
                self.failed(probe, error)
        return asked

    def _call_ended(self, module: nn.Module, args: Any, output: Any) -> None:
        begun = time.perf_counter()
        try:
            running = self._threads.calls
            if self.rerunning or not running or running[-1][0].module() is not module:
                return
            call, at = running.pop()
            if call.graded:
                self.modules.end()
                self.recorder.samples += call.samples or 0
                self.recorder.forward_s += begun - at
                call.watch(output, on_device=self.settings.stop_before_update)
                self._keep_call(call)
            self.tell("call_ended", module, call, output)
            if not call.graded:
                self._eval_call(begun - at, call)
                self.budget.learn("eval", 2 * (time.perf_counter() - begun))  # its beginning costs about as much
        except Exception as error:  # guard
            self.failed("forward", error)
        self.budget.spend("call_ended", time.perf_counter() - begun, asked=self._watch_is_asked)
        self._watch_is_asked = self._watch_is_asked and torch.is_grad_enabled()

    def _keep_call(self, call: Call) -> None:
        """Hold on to the call until its step is known to be good, but not to memory the program has let go of."""
        self._unused_calls += 1
        if self._unused_calls > MAX_UNUSED_CALLS or call.holds_memory():
            self.calls.clear()
        self.calls.append(call)

    @contextlib.contextmanager
    def own_pass(self) -> Iterator[None]:
        """A pass of tdbg's own: no step, no evaluation call, nothing that probes look at."""
        before, self.rerunning = self.rerunning, True
        try:
            yield
        finally:
            self.rerunning = before

    # updates and steps

    def is_main(self, optimizer: Optimizer) -> bool:
        """True for the optimizer whose steps are counted: the first that steps, or the one asked for."""
        main = self._main() if self._main is not None else None
        if main is not None and main is not optimizer:
            return False
        wanted = self.settings.step_optimizer
        return not wanted or type(optimizer).__name__.lower() == wanted.lower()

    def optimizer_of(self, parameters: list[Tensor]) -> Optimizer | None:
        """The optimizer that holds the first of these parameters."""
        for optimizer in self.optimizers:
            if parameters and any(parameters[0] is p for group in optimizer.param_groups for p in group["params"]):
                return optimizer
        return None

    def update_begins(self, optimizer: Any) -> None:
        """An optimizer is about to step; one that steps inside another's step (a wrapper's) does not count."""
        if not self.active or self.in_update not in (None, optimizer):
            return
        if self.plan.deaf:
            self.in_update = optimizer
            return
        begun = time.perf_counter()
        if not self._settled:
            self._settled = True
            self._first_update()
        self.in_update = optimizer
        self._evaluated = False
        if not self.plan.watch:
            self.budget.spend("update_begins", time.perf_counter() - begun)
            return
        self.dispatch("update_begins", begun, optimizer)
        self._update_at = time.perf_counter()

    def update_ended(self, optimizer: Any) -> None:
        """An optimizer has stepped."""
        self.updates += 1
        begun = time.perf_counter()
        try:
            if not self.active:
                self._unwatched_step(optimizer)
                return
            if self.in_update not in (None, optimizer):
                return
            if self.plan.deaf and not self.recorder.pending:
                self._deaf_step(optimizer)
                return
            begun = time.perf_counter()
            self.in_update = None
            self._evaluated = False
            if self.plan.watch:
                self.recorder.optimizer_s += max(begun - self._update_at, 0.0) if self._update_at else 0.0
                self._step_ended(optimizer, begun, skipped=False)
            else:
                self._idle_step(optimizer)
        except Exception as error:  # guard
            self.failed("step", error)
        self.budget.spend("step_ended", time.perf_counter() - begun)

    def _deaf_step(self, optimizer: Any) -> None:
        """A step that the budget does not even pay a glance for: counted, as cheaply as can be."""
        self.in_update = None
        if not self.is_main(optimizer):
            return
        self._main = self._main or weakref.ref(optimizer)  # a profiler may want quiet from the first step on
        self.step += 1
        self.plan.deaf -= 1
        if not self.plan.deaf:
            begun = time.perf_counter()
            self.calls.clear()
            self.recorder.forget(begun)
            self._boundary()
            self._maybe_cost(begun)
            self.budget.spend("step_ended", time.perf_counter() - begun)

    def _unwatched_step(self, optimizer: Any) -> None:
        """A step while tdbg is switched off: counted, with a sign of life, so that it can be switched on again."""
        if self.is_main(optimizer):
            self.step += 1
            self._maybe_cost(time.perf_counter())
            self.changes.due()

    def skipped_update(self, optimizer: Any, now: float) -> None:
        """GradScaler called no optimizer: a step all the same, marked as skipped."""
        if not self.active:
            self._unwatched_step(optimizer)
        else:
            self.bad_seen = False  # the bad values have touched no weight: a later one is news again
            self._step_ended(optimizer, now, skipped=True)
            self.budget.spend("step_ended", time.perf_counter() - now)

    def _step_ended(self, optimizer: Optimizer, now: float, *, skipped: bool) -> None:
        self.optimizers.add(optimizer)
        if not self.is_main(optimizer):
            self._other_step(optimizer)
            return
        if self._main is None or self._main() is None:
            self._main = weakref.ref(optimizer)
        self._main_idle = 0
        self.step += 1
        self.attended = self.step
        self.last_full = self.plan.full
        self._ending = True
        try:
            self.modules.finish()
            jumped = self._notice_rate(optimizer)
            self.become_rank_now()
            if self.plan.record or jumped:
                self._record(optimizer, now, skipped)
        finally:
            self.tell("after_step", optimizer)
            self._ending = False
            self._forget_step(now)
            self._boundary()

    def _idle_step(self, optimizer: Optimizer) -> None:
        """A step between samples is only counted."""
        if self.recorder.pending:
            self.recorder.finish_pending(self._write)
            self.late_calls = []
        if not self.is_main(optimizer):
            self._main_idle += 1
            return
        self._main_idle = 0
        self.step += 1
        self.attended = self.step
        self.calls.clear()
        self._idle_losses = 0
        self.last_full = False
        if self._notice_rate(optimizer):
            self.recorder.began_at = 0.0  # nobody timed this step, nor read its loss
            self._record(optimizer, time.perf_counter(), skipped=False)
        self._maybe_cost(time.perf_counter())  # a sign of life where no record is affordable
        self._boundary()
        if self.plan.watch:
            self.tell("after_step", optimizer)
            self._forget_step(time.perf_counter())

    def _notice_rate(self, optimizer: Optimizer) -> bool:
        """True if the learning rate jumped: worth a record of this step and of each that follows."""
        rate = optimizer.param_groups[0].get("lr")
        if not isinstance(rate, float):
            return False
        jumped = 0.0 < self._rate * RATE_JUMP < rate and self.step >= self._jump_seen
        self._rate = rate
        if jumped:
            self._focus = FOCUS_STEPS
            self._jump_seen = self.step + JUMP_REST_STEPS  # a rate that swings all the time is no news
        return jumped

    def _other_step(self, optimizer: Optimizer) -> None:
        self._main_idle += 1
        self.recorder.belongs_to_another()
        self.calls.clear()
        self.tell("after_step", optimizer)
        wanted = self.settings.step_optimizer
        self._others.add(type(optimizer).__name__)
        if self._main_idle == OTHER_OPTIMIZER_TAKES_OVER:
            self.miss_optimizer()
        if self._main_idle >= OTHER_OPTIMIZER_TAKES_OVER and not wanted:
            self._main = weakref.ref(optimizer)
            name = type(optimizer).__name__
            self.note("step-optimizer", f"the optimizer counted so far rests; {name} counts from now on")

    def miss_optimizer(self) -> None:
        """Say so, if only others than the optimizer that was asked for have stepped."""
        wanted = self.settings.step_optimizer
        if self._main is None and wanted and self._others:
            seen = ", ".join(sorted({*self.optimizer_names(), *self._others}))
            self.note(
                "step-optimizer", f"no optimizer of class {wanted} has stepped, so no step was counted; seen: {seen}"
            )

    def _forget_step(self, now: float) -> None:
        if self.plan.watch:
            spent = self.budget.by_part["call_begins"] + self.budget.by_part["call_ended"]
            self.budget.learn("watch", spent - self._watch_spent_s)
            self._watch_spent_s = spent
        self.recorder.forget(now)
        self._watch_is_asked = False
        self._update_at = 0.0
        self._idle_losses = 0
        self.late_calls = [call for call in self.calls if call.is_small()] if self.recorder.pending else []
        self.calls.clear()
        self._threads.calls.clear()

    def become_rank_now(self) -> None:
        """Claim the rank's folder, at the first step or the first thing worth reporting."""
        if not self._is_rank:
            self._is_rank = True
            begun = time.perf_counter()
            self._become_rank()
            held, self._held = self._held, []
            for say in held:
                say()
            seconds = time.perf_counter() - begun
            self.budget.start_up_s += seconds
            self.budget.excuse(seconds)

    def _record(self, optimizer: Optimizer, now: float, skipped: bool) -> None:
        begun = time.perf_counter()
        record = self.recorder.build(self.step, optimizer, now, skipped=skipped, late_loss=self._late_loss)
        self.tell("step_ended", record, optimizer)
        if record.checked == "all":
            self.sampled += 1
        self.recorder.finish_or_wait(record, self._write)
        self._maybe_cost(now)
        self.budget.learn("record", time.perf_counter() - begun)

    def _write(self, record: Step) -> None:
        self.recorder.keep(record)
        self.tell("record_written", record)
        if record.finite and record.checked == "all" and record.loss is not None:
            self.bad_seen = False  # it has recovered: a later fault is news again
        self.emit(record)

    def read_late(self, values: Tensor, then: Callable[[list[float], Step | None], None]) -> None:
        """Have a small device tensor read one step later, with all others in one copy."""
        self.recorder.late.add(values, lambda values, record: self._hand_over(then, values, record))

    def _hand_over(
        self, then: Callable[[list[float], Step | None], None], values: list[float], record: Step | None
    ) -> None:
        try:
            then(values, record)
        except Exception as error:  # guard: as around every probe call; the others get their values
            owner = getattr(then, "probe", None)
            self.failed(owner if isinstance(owner, Probe) else "late values", error)

    def _late_loss(self, values: list[float], record: Step | None) -> None:
        total = sum(values)
        if record is not None:
            record.loss = number(total)
        if not math.isfinite(total):
            if record is not None:
                record.finite = False
            self.report_late([], record)

    def finish(self) -> None:
        """The process ends: write what is pending, and have probes say their last."""
        self._finish_pending()
        if self.active:
            self.tell("run_ends")
            return
        for probe in [probe for probe in self.probes if type(probe) in self.lasting]:  # what it wrote must be closed
            try:
                probe.run_ends()
            except Exception as error:  # guard: around every probe call
                self.failed(probe, error)

    def _finish_pending(self) -> None:
        try:
            self.recorder.finish_pending(self._write)
        except Exception as error:  # guard: a device that failed gives no values
            self.failed("late values", error)

    # between two steps

    def _boundary(self) -> None:
        """A step has ended: changes asked for come into force, and the next step is planned."""
        self.changes.due()
        focus, self._focus = self._focus > 0, max(self._focus - 1, 0)
        planner = self._planner
        planner.rank, planner.world_size = self.rank, self.world_size
        planner.next(self.step, focus=focus)
        if self.quiet and self.step - self.hushed_at >= MAX_STEPS:
            self.note(
                "profiled-on",
                f"a profiler has recorded for {MAX_STEPS} steps: tdbg watches again, and stands in its trace",
            )
            self.hush(False)
        if self.quiet:
            plan = self.plan
            plan.full = plan.small = plan.watch = plan.record = False
            plan.deaf = 1
            return
        if self.modules.wanted and not self.plan.watch:
            self.plan.watch = self.may(self.modules.kind)  # a look begins at a call that is watched

    def may(self, kind: str) -> bool:
        """True if work that a flag or level asks for is to be done in the running step, and can be afforded."""
        return self.active and not self.quiet and self._planner.may(kind, self.step + 1)

    def _maybe_cost(self, now: float) -> None:
        if now - self._cost_at >= COST_EVERY_S:
            self._cost_at = now
            self.emit(self.cost())

    def cost(self) -> Cost:
        """tdbg's own cost so far."""
        now = time.perf_counter() if self.active else self._off_at
        return Cost(
            step=self.step,
            evals=self.eval_calls,
            own_ms=round(self.budget.own_s * 1e3, 3),
            wall_ms=round((now - self.budget.start) * 1e3, 3),
            startup_ms=round(self.budget.start_up_s * 1e3, 3),
            report_ms=round(self.budget.report_s * 1e3, 3),
            capture_ms=round(self.budget.asked_s * 1e3, 3),
            diagnostics_ms=round(self.budget.called_s * 1e3, 3),
            budget_pct=self.settings.budget_pct,
            earned_ms=round(self.budget.earned_s(now) * 1e3, 3),
            sampled=self.sampled,
            by_part={part: round(seconds * 1e3, 3) for part, seconds in self.budget.by_part.items()},
            level=self.settings.level,
            flags=[name for name, value in self.settings.flags.items() if value is not False],
        )

    # evaluation

    def _eval_call(self, seconds: float, call: Call) -> None:
        """A root's call without gradients: a step of evaluation."""
        self.eval_calls += 1
        self._called = True
        if not self._is_rank:
            if _is_loader_worker():
                return
            self.become_rank_now()
        if not self.step:
            self.changes.due()  # a program that only evaluates can be controlled as well
        if not self.budget.allows(("record",), time.perf_counter()) and self.eval_calls > ALWAYS_STEPS:
            return
        begun = time.perf_counter()
        self.emit(
            Step(
                t=time.time(),
                step=self.step or self.eval_calls,
                phase="eval",
                call=self.eval_calls,
                forward_ms=round(seconds * 1e3, 4),
                samples=call.samples,
            )
        )
        self._maybe_cost(begun)
        self.budget.learn("record", time.perf_counter() - begun)

    # first bad

    def report_bad_loss(self, value: float) -> None:
        """The loss is not finite and backward has not run: the weights are as they were in forward."""
        self._first_bad("report_loss", value)
        if self.settings.stop_before_update:
            raise StopBeforeUpdate

    def report_bad_gradients(self, bad: list[tuple[str, Any]]) -> None:
        """Gradients are not finite and the optimizer has not used them."""
        if not self.bad_seen:
            self.tell("gradients_bad")
        self._first_bad("report_gradients", bad)
        if self.settings.stop_before_update:
            raise StopBeforeUpdate

    def report_late(self, names: list[str], record: Step | None) -> None:
        """Values read one step late are not finite; the weights have been updated since."""
        self._first_bad("report_late", names, record)

    def _first_bad(self, how: str, *args: Any) -> None:
        if not self.bad_seen:
            self._focus = FOCUS_STEPS
        probe = self.probe("first-bad")
        if probe is None or self.rerunning:
            return
        begun = time.perf_counter()
        try:
            getattr(probe, how)(*args)
        except Exception as error:  # guard: the report failed, training has not
            self.failed(probe, error)
        seconds = time.perf_counter() - begun
        self.budget.report_s += seconds
        self.budget.excuse(seconds)

    # finding the forward pass

    def optimizer_names(self) -> list[str]:
        """Class names of the optimizers alive."""
        return [type(optimizer).__name__ for optimizer in self.optimizers]

    def _look_for_forward(self) -> None:
        """No hooked root has been called before a backward: look one level down, or among unpickled models."""
        tops = self.roots.tops()
        if not tops:
            self._adopt_unpickled()
        for root in tops:
            self.roots.descend(root)
        self._searches += 1
        if self._searches >= 4:
            self._called = True  # give up looking
            if _anything_compiled():
                self.note("forward-compiled", "the model runs inside a compiled function: its forward pass is not seen")
            else:
                self.note("forward-unseen", "no module's forward was seen: is the model called through .forward()?")

    def trained_roots(self) -> list[nn.Module]:
        """The roots whose parameters an optimizer holds; all roots where none does (evaluation)."""
        tops = self.roots.tops()
        held = self._optimized()
        return [root for root in tops if any(id(p) in held for p in root.parameters())] or tops

    def _optimized(self) -> set[int]:
        return {id(p) for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]}

    def _adopt_unpickled(self) -> None:
        # type(), not isinstance(): the latter asks every object in memory for its __class__, and some warn
        modules = [item for item in gc.get_objects() if issubclass(type(item), nn.Module)]
        children = {id(child) for module in modules for child in module.children()}
        held = self._optimized()
        for module in modules:
            if id(module) not in children and any(id(p) in held for p in module.parameters()):
                self.roots.adopt(module)

    # processes

    def forked(self) -> None:
        """In a forked child: a new process, with the same hooks and nothing seen yet."""
        self.changes.forked()
        self.profiles = []
        self.budget = Budget(self.settings.budget_pct, time.perf_counter())
        self._reset()
        self.modules.forked()
        for probe in self.probes:
            probe.forked()


class _Threads(threading.local):
    """The root calls that run now, by thread: inference may go on beside training."""

    def __init__(self) -> None:
        self.calls: list[tuple[Call, float]] = []


class StopBeforeUpdate(SystemExit):
    """Passes the guards on purpose: the user asked to end the run before a bad update."""

    def __init__(self) -> None:
        super().__init__(1)


def _anything_compiled() -> bool:
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and utils.counters["stats"]["unique_graphs"] > 0


def _capturing() -> bool:
    """True while a CUDA graph is captured: Python hooks run only then, and must do nothing."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _is_loader_worker() -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def probes_for(level: str, flags: dict[str, Any]) -> list[type[Probe]]:
    """The probes of a level, and those that flags wake; at the default level no other file is loaded (each costs 1 to 4 ms)."""
    from tdbg.flags import FLAGS

    woken = {flag.probe for flag in FLAGS if flag.probe and flags.get(flag.name)}
    if level == "basic":  # a flag's probe stands in the file of its name
        ours = PROBES.some([*BASIC, *sorted(name.replace("-", "_") for name in woken)])
        return [*ours, *(probe for probe in PROBES.strangers() if level in probe.levels)]
    strangers = PROBES.strangers()
    ours = [probe for probe in PROBES if probe not in strangers and (level in probe.levels or probe.name in woken)]
    return [*ours, *(probe for probe in strangers if level in probe.levels)]
