"""The monitor of one rank: it knows what a step is, and calls the probes where they want to look.

Hook points and their traps are torch's; see the docstrings. Every entry from the program goes through
`dispatch`, which times tdbg's own work and keeps tdbg's own exceptions away from training.
"""

import gc
import math
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_module

from tdbg.config import Settings
from tdbg.events import Cost, Event, Step, as_float, number
from tdbg.probes import PROBES, Probe
from tdbg.probes.budget import ALWAYS_STEPS, Budget
from tdbg.probes.compiler import hide, unseen
from tdbg.probes.late import LateReads
from tdbg.probes.patches import Patches
from tdbg.probes.rerun import Call
from tdbg.probes.roots import Roots

KEPT_CALLS = 8
COST_EVERY_S = 5.0
OTHER_OPTIMIZER_TAKES_OVER = 16
MEMORY_EVERY = 10
CHEAP_SHARE = 0.6  # of the budget; the rest is kept for steps whose gradients are all looked at
PAGE_MB = (os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096) / 1e6


@dataclass(slots=True)
class Plan:
    """What is affordable in the step that is running."""

    record: bool = True
    full: bool = True
    small: bool = True
    watch: bool = True  # keep references to the batch, time the forward pass


class Monitor:
    """Watches one process: roots, backward, optimizers, loaders; writes a record a step.

    emit: where events go. become_rank: called once, before the first record.
    on_bad: makes the first-bad event complete (saves the batch) and emits it.
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
    ) -> None:
        self.settings = settings
        self.emit = emit
        self.note = note
        self.save_batch = save_batch
        self._become_rank = become_rank
        self._failed = failed
        self.budget = Budget(settings.budget_pct, started)
        self.roots = Roots(self._call_begins, self._call_ended)
        self.patches = Patches()
        self.late = LateReads()
        self._handles: list[Any] = []
        self.probes: list[Probe] = []
        self._subscribers: dict[str, list[tuple[Probe, Callable[..., None]]]] = {}
        self.world_size = 1
        self._reset()

    def _reset(self) -> None:
        self.plan = Plan()
        self.step = 0
        self.updates = 0  # of any optimizer
        self.eval_calls = 0
        self.sampled = 0
        self.scaling = False
        self.active = True
        self.rerunning = False
        self.in_update: Optimizer | None = None
        self.calls: deque[Call] = deque(maxlen=KEPT_CALLS)
        self.ring: deque[Step] = deque(maxlen=max(self.settings.keep_steps, 1))
        self.bad_seen = False
        self._is_rank = False
        self._main: weakref.ref[Optimizer] | None = None
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._main_idle = 0
        self._losses: list[Tensor | float] = []
        self._other_losses: list[float] = []
        self._micro = 0
        self._evaluated = False
        self._depth = 0
        self._stack: list[tuple[Call, float]] = []
        self._forward_s = self._backward_s = self._optimizer_s = 0.0
        self._backward_at = self._update_at = 0.0
        self._step_at = 0.0
        self._samples = 0
        self._watch_spent_s = 0.0
        self._called = False
        self._memory_mb: float | None = None
        self._cost_at = 0.0
        self._pending: Step | None = None

    # attaching

    def attach(self, probes: Iterable[type[Probe]]) -> None:
        """Set every hook and patch. Nothing is hooked before, nothing is left after `detach`."""
        self.probes = [cls(self) for cls in probes]
        self._subscribe()
        self.roots.attach()
        self._handles = [
            optimizer_module.register_optimizer_step_pre_hook(_step_hook(self._update_begins)),
            optimizer_module.register_optimizer_step_post_hook(_step_hook(self._update_ended)),
        ]
        self.patches.wrap(Optimizer, "__init__", self._around_optimizer_init)
        self.patches.wrap(torch.autograd, "backward", self._around_backward)
        for owner in (nn.utils, nn.utils.clip_grad):
            self.patches.wrap(owner, "clip_grad_norm_", self._around_clip)
        self.patches.wrap(torch.jit, "script", self._around_script)
        self.patches.wrap(nn.Module, "compile", self._around_compile)
        for probe in list(self.probes):
            try:
                probe.attach()
            except Exception as error:  # guard: one probe less, training as before
                self.failed(probe, error)

    def detach(self) -> None:
        """Take every hook and patch away."""
        self.roots.detach()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.patches.restore()
        self.active = False

    def switch(self, on: bool) -> None:
        """Off: no instance hooks, and every other hook returns at once. On: as before."""
        if on != self.active:
            self.active = on
            self.roots.pause(not on)
            self._forget_step(time.perf_counter())

    def hook_count(self) -> int:
        """How many hooks and patches are in place (0 at level off)."""
        return len(self._handles) + len(self.patches) + self.roots.count()

    def _subscribe(self) -> None:
        self._subscribers = {}
        for name, method in vars(Probe).items():
            if callable(method) and not name.startswith("_"):
                self._subscribers[name] = [
                    (probe, getattr(probe, name)) for probe in self.probes if getattr(type(probe), name) is not method
                ]

    def probe(self, kind: type[Probe] | str) -> Any:
        """A running probe, by name; None if it is not running."""
        name = kind if isinstance(kind, str) else kind.name
        return next((probe for probe in self.probes if probe.name == name), None)

    def dispatch(self, point: str, begun: float, *args: Any) -> None:
        """Call the probes that watch this point; book the time since ``begun``."""
        if self.active:
            for probe, method in self._subscribers[point]:
                try:
                    method(*args)
                except Exception as error:  # guard: around every probe call
                    self.failed(probe, error)
        self.budget.spend(point, time.perf_counter() - begun)

    def failed(self, probe: Probe | str, error: Exception) -> None:
        """Switch a probe off for good and record why."""
        if isinstance(probe, Probe):
            self.probes = [other for other in self.probes if other is not probe]
            self._subscribe()
        self._failed(probe if isinstance(probe, str) else probe.name, error)

    # the program's calls

    def _around_optimizer_init(self, original: Any) -> Any:
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._optimizers.add(optimizer)

        return __init__

    def _around_script(self, original: Any) -> Any:
        def script(obj: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(obj, nn.Module):
                with self.roots.bare([obj]):
                    return original(obj, *args, **kwargs)
            return original(obj, *args, **kwargs)

        return script

    def _around_compile(self, original: Any) -> Any:
        def compile(module: Any, *args: Any, **kwargs: Any) -> None:
            self.roots.compile(module, lambda: original(module, *args, **kwargs))

        return compile

    def _around_clip(self, original: Any) -> Any:
        def clip_grad_norm_(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self.active:
                return original(parameters, *args, **kwargs)
            if not isinstance(parameters, Tensor):
                parameters = list(parameters)
            unseen(self._clip_begins, [parameters] if isinstance(parameters, Tensor) else parameters)
            total = original(parameters, *args, **kwargs)
            unseen(self._clip_ended, total)
            return total

        return hide(clip_grad_norm_)

    def _clip_begins(self, parameters: list[Tensor]) -> None:
        self.dispatch("clip_begins", time.perf_counter(), parameters)

    def _clip_ended(self, total: Any) -> None:
        self.dispatch("clip_ended", time.perf_counter(), total)

    def _around_backward(self, original: Any) -> Any:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self.active or self._depth or self.rerunning:
                return original(tensors, *args, **kwargs)
            if not self.plan.watch and unseen(self._idle_backward, tensors):
                return original(tensors, *args, **kwargs)
            unseen(self._backward_begins, tensors)
            self._depth += 1
            try:
                result = original(tensors, *args, **kwargs)
            finally:
                self._depth -= 1
            unseen(self._backward_ended)
            return result

        return hide(backward)

    def _idle_backward(self, tensors: Any) -> bool:
        """Between samples only one thing is done: a host loss is checked. True if there is no more to do."""
        begun = time.perf_counter()
        fine = (
            not isinstance(tensors, Tensor)
            or tensors.device.type != "cpu"
            or tensors.numel() != 1
            or math.isfinite(tensors.item())
        )
        self.budget.spend("backward_begins", time.perf_counter() - begun)
        return fine

    def _backward_begins(self, tensors: Any) -> None:
        begun = time.perf_counter()
        try:
            loss = self._loss_of(tensors)
            if not self._called:
                self._look_for_forward()
            for probe, method in self._subscribers["backward_begins"]:
                try:
                    method(loss)
                except Exception as error:  # guard: around every probe call
                    self.failed(probe, error)
            if loss is not None:
                self._take_loss(loss)
        except Exception as error:  # guard
            self.failed("backward", error)
        self._backward_at = time.perf_counter()
        self.budget.spend("backward_begins", self._backward_at - begun)

    def _loss_of(self, tensors: Any) -> Tensor | None:
        found = tensors
        if not isinstance(found, Tensor):
            items = list(found)
            found = items[0] if len(items) == 1 else None
        if not isinstance(found, Tensor) or found.numel() != 1:
            return None
        if self.scaling:
            scaler = self.probe("loss-scaler")
            found = scaler.unscaled(found) if scaler is not None else found
        return cast(Tensor, found).detach()

    def _take_loss(self, loss: Tensor) -> None:
        again = self._evaluated  # a closure's further evaluations are checked, not added
        self._evaluated = self.in_update is not None
        self._micro += 1
        if loss.device.type != "cpu" and not self.settings.stop_before_update:
            if not again:
                self._losses.append(loss)
            return
        value = float(loss)
        if not again:
            self._losses.append(value)
        if not math.isfinite(value):
            self.report_bad_loss(value)

    def _backward_ended(self) -> None:
        begun = time.perf_counter()
        self._backward_s += begun - self._backward_at
        self.dispatch("backward_ended", begun)

    def _call_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.rerunning or not self.active or self._stack or torch.jit._trace.is_tracing() or _capturing():
            return
        begun = time.perf_counter()
        try:
            self._called = True
            if self._step_at == 0.0:
                self._step_at = begun
            if not self.plan.watch and torch.is_grad_enabled():
                return
            call = Call.of(module, args, kwargs or {})
            for probe, method in self._subscribers["call_begins"]:
                try:
                    method(module, call)
                except Exception as error:  # guard: around every probe call
                    self.failed(probe, error)
            now = time.perf_counter()
            self._stack.append((call, now))
            self.budget.spend("call_begins", now - begun)
        except Exception as error:  # guard
            self.failed("forward", error)

    def _call_ended(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self._stack or self.rerunning or self._stack[-1][0].module() is not module:
            return
        begun = time.perf_counter()
        call, at = self._stack.pop()
        try:
            self._samples += call.samples or 0
            self._forward_s += begun - at
            if call.graded:
                call.watch(output)
                self.calls.append(call)
            for probe, method in self._subscribers["call_ended"]:
                try:
                    method(module, call, output)
                except Exception as error:  # guard: around every probe call
                    self.failed(probe, error)
            if not call.graded:
                self._eval_call(begun - at, call)
        except Exception as error:  # guard
            self.failed("forward", error)
        self.budget.spend("call_ended", time.perf_counter() - begun)

    def drop_broken_call(self) -> None:
        """A root raised: its call never ends, and must not hide the calls after it."""
        self._stack.clear()

    # steps

    def is_main(self, optimizer: Optimizer) -> bool:
        """True for the optimizer whose steps are counted: the first that steps, or the one asked for."""
        main = self._main() if self._main is not None else None
        if main is None or main is optimizer:
            return self._fits(optimizer)
        return False

    def _fits(self, optimizer: Optimizer) -> bool:
        wanted = self.settings.step_optimizer
        return not wanted or type(optimizer).__name__.lower() == wanted.lower()

    def is_main_parameters(self, parameters: list[Tensor]) -> bool:
        """True if these are the parameters of the main optimizer (before its first step: of any)."""
        main = self._main() if self._main is not None else None
        if main is None:
            return True
        mine = {id(p) for group in main.param_groups for p in group["params"]}
        return bool(parameters) and id(parameters[0]) in mine

    def _update_begins(self, optimizer: Any) -> None:
        if not self.active or self.in_update is not None:
            return
        begun = time.perf_counter()
        self.in_update = optimizer
        self._evaluated = False
        if not self.plan.watch:
            self.budget.spend("update_begins", time.perf_counter() - begun)
            return
        self.dispatch("update_begins", begun, optimizer)
        self._update_at = time.perf_counter()

    def _update_ended(self, optimizer: Any) -> None:
        self.updates += 1
        if not self.active and self.is_main(optimizer):
            self.step += 1
        if not self.active or self.in_update not in (None, optimizer):
            return
        begun = time.perf_counter()
        self.in_update = None
        self._evaluated = False
        if not self.plan.watch:
            self._idle_step(optimizer)
            self.budget.spend("step_ended", time.perf_counter() - begun)
            return
        try:
            self._optimizer_s += max(begun - self._update_at, 0.0) if self._update_at else 0.0
            self._step_ended(optimizer, begun, skipped=False)
        except Exception as error:  # guard
            self.failed("step", error)
        self.budget.spend("step_ended", time.perf_counter() - begun)

    def skipped_update(self, optimizer: Any, now: float) -> None:
        """GradScaler called no optimizer: a step all the same, marked as skipped."""
        if self.active:
            self.bad_seen = False  # the bad values have touched no weight: a later one is news again
            self._step_ended(optimizer, now, skipped=True)
            self.budget.spend("step_ended", time.perf_counter() - now)

    def _step_ended(self, optimizer: Optimizer, now: float, *, skipped: bool) -> None:
        self._optimizers.add(optimizer)
        if not self.is_main(optimizer):
            self._other_step(optimizer)
            return
        if self._main is None or self._main() is None:
            self._main = weakref.ref(optimizer)
        self._main_idle = 0
        self.step += 1
        self.become_rank_now()
        if self.plan.record:
            self._record(optimizer, now, skipped)
        self._after_step(optimizer)
        self._forget_step(now)
        self._make_plan()

    def _idle_step(self, optimizer: Optimizer) -> None:
        """A step between samples is only counted."""
        if self.is_main(optimizer):
            self._main_idle = 0
            self.step += 1
            self._make_plan()
            if self.plan.watch:
                self._after_step(optimizer)
                self._forget_step(time.perf_counter())
        else:
            self._main_idle += 1

    def _after_step(self, optimizer: Optimizer) -> None:
        for probe, method in self._subscribers["after_step"]:
            try:
                method(optimizer)
            except Exception as error:  # guard: around every probe call
                self.failed(probe, error)

    def become_rank_now(self) -> None:
        """Claim the rank's folder, at the first step or the first thing worth reporting."""
        if not self._is_rank:
            self._is_rank = True
            begun = time.perf_counter()
            self._become_rank()
            seconds = time.perf_counter() - begun
            self.budget.start_up_s += seconds
            self.budget.excuse(seconds)

    def _other_step(self, optimizer: Optimizer) -> None:
        self._main_idle += 1
        self._other_losses.extend(value for value in map(_host_value, self._losses) if value is not None)
        self._losses = []
        self._micro = 0
        self.calls.clear()
        self._after_step(optimizer)
        if self._main_idle >= OTHER_OPTIMIZER_TAKES_OVER and not self.settings.step_optimizer:
            self._main = weakref.ref(optimizer)
            self.note(
                "step-optimizer", f"the optimizer counted so far rests; {type(optimizer).__name__} counts from now on"
            )

    def _forget_step(self, now: float) -> None:
        self._losses, self._other_losses = [], []
        self._micro = 0
        if self.plan.watch:
            spent = self.budget.by_part["call_begins"] + self.budget.by_part["call_ended"]
            self.budget.learn("watch", spent - self._watch_spent_s)
            self._watch_spent_s = spent
        self._forward_s = self._backward_s = self._optimizer_s = 0.0
        self._update_at = 0.0
        self._samples = 0
        self._step_at = now
        if self._pending is None:
            self.calls.clear()
        self._stack.clear()

    def _record(self, optimizer: Optimizer, now: float, skipped: bool) -> None:
        begun = time.perf_counter()
        record = Step(
            t=time.time(),
            step=self.step,
            micro=self._micro,
            other_losses=[number(value) or 0.0 for value in self._other_losses],
            lr=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
            skipped=skipped,
            forward_ms=round(self._forward_s * 1e3, 4),
            backward_ms=round(self._backward_s * 1e3, 4),
            optimizer_ms=round(self._optimizer_s * 1e3, 4),
            step_ms=round((now - self._step_at) * 1e3, 4) if self._step_at else None,
            samples=self._samples or None,
            host_mb=self._host_mb(),
        )
        self._fill_loss(record)
        _fill_device_memory(record)
        for probe, method in self._subscribers["step_ended"]:
            try:
                method(record, optimizer)
            except Exception as error:  # guard: around every probe call
                self.failed(probe, error)
        if record.checked == "all":
            self.sampled += 1
        self._finish_late()
        if self.late.waiting:
            self._pending = record
            self.late.start()
        else:
            self._write(record)
        self._maybe_cost(now)
        self.budget.learn("record", time.perf_counter() - begun)

    def _fill_loss(self, record: Step) -> None:
        on_device = [loss for loss in self._losses if isinstance(loss, Tensor)]
        if on_device:
            stacked = torch.stack([loss.reshape(()).float() for loss in on_device])
            self.read_late(stacked, self._late_loss)
            return
        values = [loss for loss in self._losses if not isinstance(loss, Tensor)]
        if values:
            record.loss = number(math.fsum(values) if all(map(math.isfinite, values)) else sum(values))

    def _late_loss(self, values: list[float], record: Step | None) -> None:
        total = sum(values)
        if record is not None:
            record.loss = number(total)
        if not math.isfinite(total):
            if record is not None:
                record.finite = False
            self.report_late([], record)

    def read_late(self, values: Tensor, then: Callable[[list[float], Step | None], None]) -> None:
        """Have a small device tensor read one step later, with all others in one copy."""
        self.late.add(values, then)

    def _finish_late(self) -> None:
        """Complete and write the record of the previous step, whose values have arrived by now."""
        if self._pending is not None:
            record, self._pending = self._pending, None
            self.late.finish(record)
            self._write(record)

    def _write(self, record: Step) -> None:
        loss = as_float(record.loss)
        if loss is not None and record.finite is not False:
            record.finite = math.isfinite(loss)
        if record.finite and record.checked == "all" and loss is not None:
            self.bad_seen = False  # it has recovered: a later fault is news again
        self.ring.append(record)
        self.emit(record)

    def _make_plan(self) -> None:
        """Decide what the next step may cost; ranks of one job agree on the steps they sample."""
        now = time.perf_counter()
        if self.step < ALWAYS_STEPS:
            return
        plan, allows = self.plan, self.budget.allows
        plan.full = allows(("full", "record", "watch"), now)
        if plan.full and self.world_size > 1:
            step_s = (now - self.budget.start) / max(self.step, 1)
            plan.full = (self.step + 1) % self.budget.stride("full", step_s) == 0
        spare = CHEAP_SHARE if self.budget.spent_on("full") else 1.0
        plan.watch = plan.full or allows(("watch",), now, spare, besides="full")
        plan.record = plan.full or (plan.watch and allows(("watch", "record"), now, spare, besides="full"))
        plan.small = plan.record

    def _maybe_cost(self, now: float) -> None:
        if now - self._cost_at >= COST_EVERY_S:
            self._cost_at = now
            self.emit(self.cost())

    def cost(self) -> Cost:
        """tdbg's own cost so far."""
        return Cost(
            step=self.step,
            own_ms=round(self.budget.own_s * 1e3, 3),
            wall_ms=round((time.perf_counter() - self.budget.start) * 1e3, 3),
            startup_ms=round(self.budget.start_up_s * 1e3, 3),
            report_ms=round(self.budget.report_s * 1e3, 3),
            budget_pct=self.settings.budget_pct,
            sampled=self.sampled,
            by_part={part: round(seconds * 1e3, 3) for part, seconds in self.budget.by_part.items()},
        )

    def finish(self) -> None:
        """The process ends: write what is pending."""
        self._finish_late()

    def _host_mb(self) -> float | None:
        if self.step % MEMORY_EVERY == 1 or self._memory_mb is None:
            self._memory_mb = host_memory_mb()
        return self._memory_mb

    # evaluation

    def _eval_call(self, seconds: float, call: Call) -> None:
        """A root's call without gradients: a step of evaluation."""
        self.eval_calls += 1
        self._called = True
        if not self._is_rank:
            if _is_loader_worker():
                return
            self.become_rank_now()
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
        self._first_bad("report_gradients", bad)
        if self.settings.stop_before_update:
            raise StopBeforeUpdate

    def report_late(self, names: list[str], record: Step | None) -> None:
        """Values read one step late are not finite; the weights have been updated since."""
        self._first_bad("report_late", names, record)

    def _first_bad(self, how: str, *args: Any) -> None:
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

    def last_good(self) -> dict[str, Any]:
        """The last record that was finite: step, loss, grad_norm, lr."""
        for record in reversed(self.ring):
            if record.finite is not False and record.loss is not None:
                return {"step": record.step, "loss": record.loss, "grad_norm": record.grad_norm, "lr": record.lr}
        return {}

    def ring_rows(self) -> list[dict[str, Any]]:
        """The kept records, without vectors, as plain data."""
        rows = [asdict(record) for record in self.ring]
        return [
            {key: value for key, value in row.items() if key != "grad_norms" and value not in (None, [])}
            for row in rows
        ]

    # finding the forward pass

    def optimizer_names(self) -> list[str]:
        """Class names of the optimizers alive."""
        return [type(optimizer).__name__ for optimizer in self._optimizers]

    def _look_for_forward(self) -> None:
        """No hooked root has been called before a backward: look one level down, or among unpickled models."""
        tops = self.roots.tops()
        if not tops:
            self._adopt_unpickled()
        for root in tops:
            self.roots.descend(root)
        if self.step >= 3:
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
        return {id(p) for optimizer in self._optimizers for group in optimizer.param_groups for p in group["params"]}

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
        self._reset()
        self.budget = Budget(self.settings.budget_pct, time.perf_counter())
        self.late = LateReads()
        for probe in self.probes:
            probe.forked()


def _step_hook(target: Callable[[Any], None]) -> Callable[[Any, Any, Any], None]:
    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            unseen(target, optimizer)

    return cast("Callable[[Any, Any, Any], None]", hide(hook))


class StopBeforeUpdate(SystemExit):
    """Passes the guards on purpose: the user asked to end the run before a bad update."""

    def __init__(self) -> None:
        super().__init__(1)


def host_memory_mb() -> float | None:
    """Resident memory of this process; None where the system does not say cheaply."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return round(int(file.read().split()[1]) * PAGE_MB, 1)
    except (OSError, IndexError, ValueError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return round(peak / (1e6 if sys.platform == "darwin" else 1e3), 1)


def _fill_device_memory(record: Step) -> None:
    if torch.cuda.is_initialized():
        record.device_mb = round(torch.cuda.memory_allocated() / 1e6, 1)
        record.device_peak_mb = round(torch.cuda.max_memory_allocated() / 1e6, 1)


def _host_value(loss: Tensor | float) -> float | None:
    """A loss that is on the host; device losses of further optimizers are not read (no sync)."""
    if isinstance(loss, Tensor):
        return float(loss) if loss.device.type == "cpu" else None
    return loss


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
    """The probes of a level, and those that flags wake."""
    from tdbg.flags import FLAGS

    woken = {flag.probe for flag in FLAGS if flag.probe and flags.get(flag.name)}
    return [probe for probe in PROBES if level in probe.levels or probe.name in woken]
