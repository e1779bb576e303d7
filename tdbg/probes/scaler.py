"""GradScaler: the unscaled loss, the scale, and updates it skipped."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdbg.core.events import Step, number
from tdbg.probes import PROBES, Probe
from tdbg.runtime import tensors
from tdbg.runtime.compiler import call_outside_compiler, hide_from_compiler
from tdbg.runtime.torch_compat import found_inf_of, scale_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor


class ScaledUpdate:
    """One call of ``GradScaler.step``: made as it begins, it tells afterwards whether the optimizer was called.

    The hooks of a compiled ``optimizer.step`` are nothing, so an update that no hook has seen may have been made.
    """

    def __init__(self, monitor: "Monitor", scaler: Any, optimizer: "Optimizer") -> None:
        self.optimizer = optimizer
        self._monitor, self._scaler = monitor, scaler
        self._updates = monitor.updates
        held = (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
        self._weight: Tensor | None = next(held, None)
        self._version = self._weight_version()

    @property
    def was_seen(self) -> bool:
        """True if an optimizer's own hooks were called."""
        return self._monitor.updates != self._updates

    def was_made(self) -> bool:
        """False if the scaler left the update out.

        Cost: nothing waits for a device where the optimizer was called, unless its writes are not counted (`version`).
        """
        if self.was_seen or self._weight_version() != self._version:
            return True
        if getattr(self.optimizer, "_step_supports_amp_scaling", False):
            return True  # a fused optimizer is always called, and leaves the update out by itself
        return not any(float(found) for found in found_inf_of(self._scaler, self.optimizer))

    def _weight_version(self) -> int:
        return -1 if self._weight is None else tensors.read_version(self._weight)


@PROBES.add
class LossScaler(Probe):
    """What mixed precision's GradScaler does.

    Reads:  ``GradScaler.scale`` (the loss before scaling), ``step`` (did the optimizer step?), ``update``.
    Emits:  ``scale`` and ``skipped`` of the step record; a skipped update is a step, marked.
    Cost:   three clock reads a step. The scale is read from the host's own copy, without a sync on CPU;
            on an accelerator it is read one step late.
    Source: Micikevicius et al. 2018, "Mixed Precision Training", section 3.2.
    """

    name = "loss-scaler"
    levels = ("basic", "advanced", "extreme")

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._unscaled: tuple[int, Tensor] | None = None
        self._scale: float | None = None

    def attach(self) -> None:
        self.for_each_function(
            "scale", lambda owner, name: self.patches.wrap_attribute(owner, name, self._around_scale)
        )
        self.for_each_function(
            "scaler-step", lambda owner, name: self.patches.wrap_attribute(owner, name, self._around_step)
        )

    def _around_scale(self, original: Callable[..., object]) -> Callable[..., object]:
        def scale(scaler: object, outputs: object) -> object:
            scaled = original(scaler, outputs)
            if not torch.compiler.is_compiling() and self.on:
                call_outside_compiler(self.guard.call_guarded, self._note_loss, scaler, outputs, scaled)
            return scaled

        return hide_from_compiler(scale)

    def _around_step(self, original: Callable[..., object]) -> Callable[..., object]:
        def step(scaler: object, optimizer: "Optimizer", *args: object, **kwargs: object) -> Any:
            if torch.compiler.is_compiling() or not self.on:
                return original(scaler, optimizer, *args, **kwargs)
            update = call_outside_compiler(self.guard.call_guarded, self._step_begins, scaler, optimizer)
            result = original(scaler, optimizer, *args, **kwargs)
            if update is not None:
                call_outside_compiler(self.guard.call_guarded, self._step_ends, update)
            return result

        return hide_from_compiler(step)

    def _step_begins(self, scaler: Any, optimizer: "Optimizer") -> "ScaledUpdate | None":
        if not scaler.is_enabled():
            return None
        self._note_scale(scaler)
        return ScaledUpdate(self.monitor, scaler, optimizer)

    def _step_ends(self, update: "ScaledUpdate") -> None:
        if update.was_seen:
            return
        if update.was_made():
            self.monitor.hooks.unseen_update(update.optimizer)
        else:
            self.monitor.skipped_update(update.optimizer, time.perf_counter())

    def _note_loss(self, scaler: Any, outputs: object, scaled: object) -> None:
        if scaler.is_enabled() and isinstance(outputs, Tensor) and isinstance(scaled, Tensor):
            self._unscaled = id(scaled), outputs.detach()
            self.monitor.scaling = True

    def _note_scale(self, scaler: object) -> None:
        """Keep the scale that this step's gradients carry (``update`` changes it afterwards)."""
        held = scale_of(scaler)
        if held is not None and tensors.on_host(held):
            self._scale = float(held)
        elif held is not None:
            self.monitor.read_late(held.detach().reshape(1).clone(), self._late_scale)

    def _late_scale(self, values: list[float], record: Step | None) -> None:
        self._scale = values[0]
        if record is not None:
            record.scale = number(self._scale)

    def scale_now(self) -> float | None:
        """The scale that the running step's gradients carry; None before the first scaled step."""
        return self._scale

    def find_unscaled_loss(self, loss: Tensor) -> Tensor:
        """The loss as the program computed it, if ``loss`` is the scaled one."""
        if self._unscaled is not None and self._unscaled[0] == id(loss):
            return self._unscaled[1]
        return loss

    def step_ended(self, record: Step, optimizer: "Optimizer") -> None:
        record.scale = number(self._scale)

    def after_step(self, optimizer: "Optimizer") -> None:
        if self.monitor.is_main(optimizer):
            self.monitor.scaling = False
            self._unscaled = None
