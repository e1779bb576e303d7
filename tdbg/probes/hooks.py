"""Where tdbg stands in torch: every hook and patch of the default level, set and taken away together."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch._C._autograd import _profiler_enabled
from torch.autograd import profiler as autograd_profiler
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_module

from tdbg.probes.compiler import hide, unseen
from tdbg.probes.counting import Optimizers
from tdbg.probes.loss_watch import LossWatch
from tdbg.probes.patches import Patches
from tdbg.probes.plan import Plan
from tdbg.probes.roots import Roots


class Watcher(Protocol):
    """Who is called: the monitor, as far as these hooks know it."""

    active: bool
    rerunning: bool
    plan: Plan
    optimizers: Optimizers
    roots: Roots
    losses: LossWatch

    @property
    def is_clipping_watched(self) -> bool: ...
    def clip_begins(self, parameters: list[Tensor]) -> None: ...
    def clip_glanced(self, parameters: list[Tensor], total: Any) -> None: ...
    def clip_ended(self, total: Any) -> None: ...
    def update_begins(self, optimizer: Any) -> None: ...
    def update_ended(self, optimizer: Any) -> None: ...
    def hush(self, quiet: bool) -> None: ...


class TorchHooks:
    """Calls the monitor at backward, clipping and updates; keeps torch's own behaviour unchanged.

    The wrappers do nothing inside a compiled region, and the compiler makes no frames of them.
    `torch.autograd.backward` is what ``Tensor.backward`` calls, by attribute; a backward inside a backward
    (reentrant checkpointing) is left alone.
    """

    def __init__(self, monitor: Watcher) -> None:
        self.monitor = monitor
        self.patches = Patches()
        # Told of every update, watched or not. Probes must not hook optimizers themselves: level and flags change
        # while torch goes through its hooks, and it ends the program if one is added or removed meanwhile.
        self.before_each: list[Callable[[Any], None]] = []
        self.after_each: list[Callable[[Any], None]] = []
        self._handles: list[Any] = []
        self._depth = 0

    def attach(self) -> None:
        """Set them all."""
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
        self.patches.wrap(autograd_profiler.profile, "_start_trace", self._around_profiler)
        self.patches.wrap(autograd_profiler.profile, "__exit__", self._around_profiler)

    def detach(self) -> None:
        """Take them all away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.patches.restore()

    def _update_begins(self, optimizer: Any) -> None:
        self.monitor.update_begins(optimizer)
        for tell in tuple(self.before_each):
            tell(optimizer)

    def _update_ended(self, optimizer: Any) -> None:
        listeners = tuple(self.after_each)  # whoever comes with a change of level has not seen this update begin
        self.monitor.update_ended(optimizer)
        for tell in listeners:
            tell(optimizer)

    def __len__(self) -> int:
        return len(self._handles) + len(self.patches)

    def _around_optimizer_init(self, original: Any) -> Any:
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self.monitor.optimizers.add(optimizer)

        return __init__

    def _around_script(self, original: Any) -> Any:
        def script(obj: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(obj, nn.Module):
                if len(args) < 2:  # a class finds the names it uses in its caller's frame, which is one further up
                    kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
                return original(obj, *args, **kwargs)
            with self.monitor.roots.bare([obj]):
                return original(obj, *args, **kwargs)

        return script

    def _around_compile(self, original: Any) -> Any:
        def compile(module: Any, *args: Any, **kwargs: Any) -> None:
            self.monitor.roots.compile(module, lambda: original(module, *args, **kwargs))

        return compile

    def _around_profiler(self, original: Any) -> Any:
        """While any profiler of torch records, ours or the program's, its trace is to show the program alone."""

        def begin_or_end(*args: Any, **kwargs: Any) -> Any:
            if not _profiler_enabled():
                self.monitor.hush(True)
            try:
                return original(*args, **kwargs)
            finally:
                self.monitor.hush(bool(_profiler_enabled()))

        return begin_or_end

    def _around_clip(self, original: Any) -> Any:
        monitor = self.monitor

        def clip_grad_norm_(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not monitor.active:
                return original(parameters, *args, **kwargs)
            if not isinstance(parameters, Tensor):
                parameters = list(parameters)  # a generator must not be used up by looking
            clipped = [parameters] if isinstance(parameters, Tensor) else parameters
            if not monitor.is_clipping_watched:
                total = original(parameters, *args, **kwargs)
                unseen(monitor.clip_glanced, clipped, total)
                return total
            unseen(monitor.clip_begins, clipped)
            total = original(parameters, *args, **kwargs)
            unseen(monitor.clip_ended, total)
            return total

        return hide(clip_grad_norm_)

    def _around_backward(self, original: Any) -> Any:
        monitor = self.monitor

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not monitor.active or self._depth or monitor.rerunning:
                return original(tensors, *args, **kwargs)
            if isinstance(tensors, Iterator):
                tensors = tuple(tensors)  # looking must not use it up
            if not monitor.plan.watch and unseen(monitor.losses.glance, tensors):
                return original(tensors, *args, **kwargs)
            unseen(monitor.losses.begins, tensors)
            self._depth += 1
            try:
                result = original(tensors, *args, **kwargs)
            finally:
                self._depth -= 1
            unseen(monitor.losses.ended)
            return result

        return hide(backward)


def _step_hook(target: Callable[[Any], None]) -> Callable[[Any, Any, Any], None]:
    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            unseen(target, optimizer)

    return cast("Callable[[Any, Any, Any], None]", hide(hook))
