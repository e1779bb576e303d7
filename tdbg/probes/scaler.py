"""GradScaler: the unscaled loss, the scale, and updates it skipped."""

import time
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tdbg.events import Step, number
from tdbg.probes import PROBES, Probe, tensors

if TYPE_CHECKING:
    from torch.optim import Optimizer


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

    def __init__(self, monitor: Any) -> None:
        super().__init__(monitor)
        self._unscaled: tuple[int, Tensor] | None = None
        self._scale: float | None = None

    def attach(self) -> None:
        import torch

        scaler = torch.amp.GradScaler
        self.patches.wrap(scaler, "scale", self._around_scale)
        self.patches.wrap(scaler, "step", self._around_step)

    def _around_scale(self, original: Any) -> Any:
        def scale(scaler: Any, outputs: Any) -> Any:
            if not self.on:
                return original(scaler, outputs)
            scaled = original(scaler, outputs)
            self.guard.call(self._note_loss, scaler, outputs, scaled)
            return scaled

        return scale

    def _around_step(self, original: Any) -> Any:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.on or not scaler.is_enabled():
                return original(scaler, optimizer, *args, **kwargs)
            before = self.monitor.updates
            self.guard.call(self._note_scale, scaler)
            result = original(scaler, optimizer, *args, **kwargs)
            if self.monitor.updates == before:
                self.guard.call(self.monitor.skipped_update, optimizer, time.perf_counter())
            return result

        return step

    def _note_loss(self, scaler: Any, outputs: Any, scaled: Any) -> None:
        if scaler.is_enabled() and isinstance(outputs, Tensor) and isinstance(scaled, Tensor):
            self._unscaled = id(scaled), outputs.detach()
            self.monitor.scaling = True

    def _note_scale(self, scaler: Any) -> None:
        """Keep the scale that this step's gradients carry (``update`` changes it afterwards)."""
        held = getattr(scaler, "_scale", None)
        if isinstance(held, Tensor) and tensors.on_host(held):
            self._scale = float(held)
        elif isinstance(held, Tensor):
            self.monitor.read_late(held.detach().reshape(1).clone(), self._late_scale)

    def _late_scale(self, values: list[float], record: Step | None) -> None:
        self._scale = values[0]
        if record is not None:
            record.scale = number(self._scale)

    def scale_now(self) -> float | None:
        """The scale that the running step's gradients carry; None before the first scaled step."""
        return self._scale

    def unscaled(self, loss: Tensor) -> Tensor:
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
