"""The wrappers and hooks of the default level, set and taken away together: backward, clipping, updates, what is built."""

import functools
from collections.abc import Callable, Iterable, Iterator
from threading import Thread, current_thread, get_ident
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from tdbg.core.guard import Guard
from tdbg.runtime.compiler import call_outside_compiler, hide_from_compiler, is_capturing
from tdbg.runtime.fast_path import FastPath, is_norm_error
from tdbg.runtime.local_gradients import LocalGradients
from tdbg.runtime.loss_watch import LossWatch
from tdbg.runtime.module_sampler import ModuleSampler
from tdbg.runtime.optimizers import Optimizers
from tdbg.runtime.own_hooks import HookHandle, put_back, take_away
from tdbg.runtime.patches import Patches
from tdbg.runtime.plan import Plan
from tdbg.runtime.root_modules import Roots
from tdbg.runtime.state import State
from tdbg.runtime.torch_compat import in_backward, is_profiled
from tdbg.runtime.torch_hooks import hook_all, iter_targets, modules_of

# Entries in a row of a thread beside the one that is watched, which then trains no longer
OTHER_THREAD_TAKES_OVER = 100


class Watcher(Protocol):
    """Who is called: the monitor, as far as these hooks know it."""

    active: bool
    rerunning: bool
    plan: Plan
    optimizers: Optimizers
    roots: Roots
    modules: ModuleSampler
    losses: LossWatch
    local_gradients: LocalGradients
    step: int

    def clip_begins(self, parameters: list[Tensor]) -> bool: ...
    def clip_glanced(self, parameters: list[Tensor], total: object) -> None: ...
    def clip_ended(self, total: object) -> None: ...
    def clip_failed(self, parameters: list[Tensor], watched: bool) -> None: ...
    def update_begins(self, optimizer: Optimizer) -> None: ...
    def update_ended(self, optimizer: Optimizer) -> None: ...
    def suspend_probes(self, quiet: bool) -> None: ...
    def set_active(self, on: bool) -> None: ...
    def handle_failure(self, probe: str, error: BaseException) -> None: ...
    def note(self, code: str, text: str) -> None: ...
    def when_imported(self, name: str, then: Callable[[ModuleType], None]) -> None: ...


class TrainingHooks:
    """Calls the monitor at backward, clipping and updates; keeps torch's own behaviour unchanged.

    The wrappers do nothing inside a compiled region, and the compiler makes no frames of them.
    `torch.autograd.backward` is what ``Tensor.backward`` calls, by attribute; a backward inside a backward
    (reentrant checkpointing) is left alone.
    """

    def __init__(self, monitor: Watcher, state: State) -> None:
        self.monitor = monitor
        self._state = state
        self.patches = Patches()
        failed = monitor.handle_failure
        self._step = Guard("step", self._give_up)
        self.fast_path = FastPath(
            state, self._step_hook(self._update_begins), self._step_hook(self._update_ended), failed
        )
        # Told of every update, watched or not. Probes must not hook optimizers themselves: level and flags change
        # while torch goes through its hooks, and it ends the program if one is added or removed meanwhile.
        self.before_each: list[Callable[[Optimizer], None]] = []
        self.after_each: list[Callable[[Optimizer], None]] = []
        self._handles: list[HookHandle | RemovableHandle] = []
        self._depth = 0
        self._trainer: Thread | None = None  # the thread whose backward passes and updates are watched
        self._trainer_id = 0
        self._has_updated = False
        self._others = 0  # entries of other threads since its last
        self._others_since = 0  # steps done at the first of them
        self._backward, self._clip = Guard("backward", failed), Guard("clip", failed)
        self._optimizers, self._profiled = Guard("optimizers", failed), Guard("profiled", failed)
        self._compile, self._copies = Guard("compile", failed), Guard("copies", failed)
        self._script = Guard("script", self._give_up)  # torch.jit refuses modules that have hooks of ours
        self._script_debuggers = Guard("script of debuggers", failed)  # whose hooks stay when tdbg gives up

    def attach(self) -> None:
        """Set them all."""
        counter = self.fast_path.counter
        self._handles = [
            hook_all("before-update", counter.hook_before_update),
            hook_all("after-update", counter.hook_after_update),
        ]
        for place, make, drops_frames in (
            ("optimizer-made", self._around_optimizer_init, False),
            ("backward", self._around_backward, True),
            ("clip_grad_norm_", functools.cache(self._around_clip), True),  # at two places the same, so that it pickles
            ("script", self._around_script, False),
            ("module-copied", self._around_setstate, False),
            ("module-compiled", self._around_compile, False),
            ("profile-begins", self._around_profiler, False),
            ("profile-ends", self._around_profiler, False),
        ):
            for owner, name in iter_targets(place):
                self.patches.wrap_attribute(owner, name, make, drops_frames=drops_frames)
        for module in modules_of("fsdp-reduce"):
            self.monitor.when_imported(module, lambda _: self._backward.call_guarded(self._watch_groups))

    def detach(self) -> None:
        """Take them all away."""
        self.fast_path.stop_skipping()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.patches.restore()

    def _give_up(self, part: str, error: BaseException) -> None:
        """Steps cannot be counted any longer, or hooks not be taken away where they harm: nothing goes on without."""
        self.monitor.handle_failure(part, error)
        self.monitor.set_active(False)

    def is_elsewhere(self, optimizer: Optimizer | None = None) -> bool:
        """True in a thread that trains beside the one that is watched. optimizer: asked at its step.

        Its backward passes write gradients while they would be read from here (a read of `Tensor.grad` beside a write
        by autograd ends the process), and its steps are not those of the run. The thread that first updates is
        watched, until it ends or only another one trains. While its steps are skipped, where each costs too much to be
        asked here, another one is believed only if it steps the same optimizer.
        """
        updates = optimizer is not None
        if get_ident() == self._trainer_id:
            self._others = 0
            self._has_updated = self._has_updated or updates
            return False
        if not updates and in_backward():
            return True  # in a backward pass inside another, which autograd runs in a thread of its own
        is_alive = self._trainer is not None and self._trainer.is_alive()
        is_main = optimizer is not None and self.monitor.optimizers.is_main(optimizer)
        if is_alive and not is_main and self.fast_path.is_taken_elsewhere:
            return True
        if is_alive and (self._has_updated or not updates):
            if self._others_since != self.monitor.step:  # the other thread has stepped, maybe on the fast path
                self._others, self._others_since = 0, self.monitor.step
            self._others += 1
            if self._others < OTHER_THREAD_TAKES_OVER:
                if updates:  # a backward pass alone may be one inside another, in a thread of autograd's
                    self.monitor.note(
                        "threads", "several threads train: tdbg watches one at a time, the first that made an update"
                    )
                return True
        self.fast_path.stop_skipping()
        self._state.in_update = None  # of the other thread: it has raised, or is not watched any longer
        self._trainer, self._trainer_id, self._has_updated, self._others = current_thread(), get_ident(), updates, 0
        return False

    def _update_begins(self, optimizer: Optimizer) -> None:
        self.monitor.update_begins(optimizer)
        for tell in tuple(self.before_each):
            tell(optimizer)

    def _update_ended(self, optimizer: Optimizer) -> None:
        listeners = tuple(self.after_each)  # whoever comes with a change of level has not seen this update begin
        self.monitor.update_ended(optimizer)
        for tell in listeners:
            tell(optimizer)

    def _step_hook(self, target: Callable[[Optimizer], None]) -> Callable[[Optimizer], None]:
        guard = self._step

        def call_target(optimizer: Optimizer) -> None:
            if not is_capturing() and not self.is_elsewhere(optimizer):
                target(optimizer)

        def call_guarded(optimizer: Optimizer) -> None:
            if not torch.compiler.is_compiling():
                call_outside_compiler(guard.call_guarded, call_target, optimizer)

        return hide_from_compiler(call_guarded)

    def unseen_update(self, optimizer: Optimizer) -> None:
        """An update was made although its hooks were not called: those of a compiled ``optimizer.step`` are not."""
        self.monitor.note(
            "compiled-step",
            f"{type(optimizer).__name__}.step is compiled: its steps are counted; gradients and updates are not seen",
        )
        self._step.call_guarded(self._update_ended, optimizer)

    def __len__(self) -> int:
        return len(self._handles) + len(self.patches)

    def _watch_groups(self) -> None:
        """Stand before each reduction of FSDP2: there alone a rank's own gradients are to be seen."""
        if self._handles:
            for owner, name in iter_targets("fsdp-reduce"):
                self.patches.wrap_attribute(owner, name, self._around_group)

    def _around_group(self, original: Callable[..., object]) -> Callable[..., object]:
        monitor, guard = self.monitor, self._backward

        def post_backward(group: object, *args: object, **kwargs: object) -> object:
            if not torch.compiler.is_compiling() and monitor.active:
                call_outside_compiler(guard.call_guarded, monitor.local_gradients.group_ready, group)
            return original(group, *args, **kwargs)

        return hide_from_compiler(post_backward)

    def _around_optimizer_init(self, original: Callable[..., object]) -> Callable[..., object]:
        def __init__(optimizer: Optimizer, *args: object, **kwargs: object) -> None:
            original(optimizer, *args, **kwargs)
            self._optimizers.call_guarded(self.monitor.optimizers.add, optimizer)

        return __init__

    def _around_script(self, original: Callable[..., object]) -> Callable[..., object]:
        """torch.jit compiles a module's hooks with it, when it scripts and when it traces."""

        def create_script_module(module: object, *args: object, **kwargs: object) -> object:
            guard, removed = self._script, None
            if isinstance(module, nn.Module):
                removed = guard.call_guarded(take_away, module.modules())
                if removed is None:
                    guard = self._script_debuggers
                    removed = guard.call_guarded(take_away, module.modules())
            try:
                return original(module, *args, **kwargs)
            finally:
                if removed:
                    guard.call_guarded(put_back, removed)

        return create_script_module

    def _around_setstate(self, original: Callable[..., object]) -> Callable[..., object]:
        """A copy of a module, and one that was loaded, comes to be without being built."""

        def __setstate__(module: nn.Module, state: object) -> None:
            original(module, state)
            self._copies.call_guarded(self.monitor.roots.take_in_copy, module)

        return __setstate__

    def _around_compile(self, original: Callable[..., object]) -> Callable[..., object]:
        def compile(module: nn.Module, *args: object, **kwargs: object) -> None:
            roots = self.monitor.roots
            self._compile.call_guarded(self.monitor.modules.before_compile)
            was_hooked = self._compile.call_guarded(roots.before_compile, module)
            original(module, *args, **kwargs)
            if was_hooked:
                self._compile.call_guarded(roots.after_compile, module)

        return compile

    def _around_profiler(self, original: Callable[..., object]) -> Callable[..., object]:
        """While any profiler of torch records, ours or the program's, its trace is to show the program alone."""

        def begin_or_end(*args: object, **kwargs: object) -> object:
            if not self._profiled.call_guarded(is_profiled):
                self._profiled.call_guarded(self.monitor.suspend_probes, True)
            try:
                return original(*args, **kwargs)
            finally:
                self._profiled.call_guarded(lambda: self.monitor.suspend_probes(is_profiled()))

        return begin_or_end

    def _around_clip(self, original: Callable[..., object]) -> Callable[..., object]:
        monitor, guard = self.monitor, self._clip

        def clip(parameters: Tensor | Iterable[Tensor], *args: object, **kwargs: object) -> object:
            if (
                torch.compiler.is_compiling()
                or not monitor.active
                or call_outside_compiler(is_capturing)
                or call_outside_compiler(guard.call_guarded, self.is_elsewhere)
            ):
                return original(parameters, *args, **kwargs)
            if not isinstance(parameters, Tensor):
                # A generator must not be used up by looking; of one that is already, torch warns.
                parameters = list(parameters) or parameters
            clipped = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            watched = bool(call_outside_compiler(guard.call_guarded, monitor.clip_begins, clipped))
            try:
                total = original(parameters, *args, **kwargs)
            except RuntimeError as error:
                if is_norm_error(error):
                    call_outside_compiler(guard.call_guarded, monitor.clip_failed, clipped, watched)
                raise
            if watched:
                call_outside_compiler(guard.call_guarded, monitor.clip_ended, total)
            else:
                call_outside_compiler(guard.call_guarded, monitor.clip_glanced, clipped, total)
            return total

        hide_from_compiler(clip)

        def check_clipped_norm(clipped: list[Tensor], total: object) -> None:
            if total is None:
                call_outside_compiler(guard.call_guarded, monitor.clip_failed, clipped, False)
            else:
                call_outside_compiler(guard.call_guarded, monitor.clip_glanced, clipped, total)

        return self.fast_path.around_clip(original, clip, check_clipped_norm)

    def _note_capture(self) -> None:
        self.monitor.note(
            "cuda-graph",
            "a training step is captured as a CUDA graph: replaying it runs no Python, so its steps are not seen",
        )

    def _around_backward(self, original: Callable[..., object]) -> Callable[..., object]:
        monitor, guard = self.monitor, self._backward

        def look_and_go(tensors: Any, *args: object, **kwargs: object) -> object:
            if torch.compiler.is_compiling() or not monitor.active or self._depth or monitor.rerunning:
                return original(tensors, *args, **kwargs)
            if call_outside_compiler(is_capturing):
                call_outside_compiler(guard.call_guarded, self._note_capture)
                return original(tensors, *args, **kwargs)
            if call_outside_compiler(guard.call_guarded, self.is_elsewhere):
                return original(tensors, *args, **kwargs)
            # type(): an object of the program's may have a say in isinstance
            if type(tensors) is not Tensor and call_outside_compiler(issubclass, type(tensors), Iterator):
                tensors = tuple(tensors)  # looking must not use it up
            watched = monitor.plan.watch or not call_outside_compiler(
                guard.call_guarded, monitor.losses.check_loss_cheaply, tensors
            )
            if watched:
                call_outside_compiler(guard.call_guarded, monitor.losses.on_backward_start, tensors)
            look = call_outside_compiler(guard.call_guarded, monitor.local_gradients.begin_backward, tensors)
            if not watched and look is None:
                return original(tensors, *args, **kwargs)
            self._depth += 1
            returned = False
            try:
                result = original(tensors, *args, **kwargs)
                returned = True
            finally:
                self._depth -= 1
                if look is not None:
                    call_outside_compiler(guard.call_guarded, monitor.local_gradients.end_backward, look, returned)
            if watched:
                call_outside_compiler(guard.call_guarded, monitor.losses.on_backward_end)
            return result

        hide_from_compiler(look_and_go)

        return self.fast_path.around_backward(original, look_and_go)
