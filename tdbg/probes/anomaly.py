"""AUTOGRAD_ANOMALY: autograd's own anomaly mode, on the steps that are sampled."""

from typing import TYPE_CHECKING, Any

import torch

from tdbg.core.observations.anomaly import AnomalyMode, BackwardFailed
from tdbg.probes import PROBES, Probe

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from tdbg.core.events import Step
    from tdbg.runtime.rerun import Call

RAISES = "raise"  # the flag's value that lets torch check, and raise, at each node


@PROBES.add
class Anomaly(Probe):
    """Anomaly mode for chosen steps, so that an error in backward names the line of the forward pass.

    Reads:  nothing; it has autograd keep a traceback with each node (``check_nan=False``), which torch prints
            when backward fails. ``--flag AUTOGRAD_ANOMALY=raise`` also lets torch check each node for NaN and
            end the program with an error there, harmless NaN included; without it nothing is raised.
    Emits:  a line a step while it is on; what an error in backward said.
    Cost:   1.15-1.3x of a step while it is on (1.3-1.5x with ``raise``); sampled like any look, or chosen with
            ``--steps`` and ``--every``.
    Limits: a NaN needs no anomaly mode: TD-N001 runs the batch again and names module, operation and line.
    Source: torch.autograd.set_detect_anomaly.
    """

    name = "anomaly"
    observations = (AnomalyMode, BackwardFailed)

    def attach(self) -> None:
        self._entered: Any = None
        self._step = 0
        self._normal_ms: list[float] = []
        self.patch_at("backward", raised=self._handle_raised_error)

    def detach(self) -> None:
        self._exit_anomaly_mode()
        super().detach()

    @property
    def _should_raise(self) -> bool:
        return self.monitor.settings.flags.get("AUTOGRAD_ANOMALY") == RAISES

    def call_begins(self, module: "nn.Module", call: "Call") -> None:
        if not call.graded or self._entered is not None or not self.should_sample():
            return
        if torch.is_anomaly_enabled():
            self.unavailable("the program runs anomaly mode itself")
            return
        self._step = self.monitor.step + 1
        self._entered = torch.autograd.set_detect_anomaly(True, check_nan=self._should_raise)

    def _exit_anomaly_mode(self) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.__exit__(None, None, None)

    def step_ended(self, record: "Step", optimizer: "Optimizer") -> None:
        if record.step_ms is None:
            return
        if self._entered is None:
            self._normal_ms = [*self._normal_ms[-31:], record.step_ms]
            return
        mode = AnomalyMode(check_nan=self._should_raise)
        if len(self._normal_ms) >= 3:
            usual_ms = sorted(self._normal_ms)[len(self._normal_ms) // 2]
            extra_s = max(record.step_ms - usual_ms, 0.0) / 1e3
            self.monitor.budget.record_cost(self.name, extra_s, extra=True)
            self.monitor.budget.charge(self.name, extra_s)  # the mode works inside torch: only the clock shows it
            mode.slow_pct = round(100 * extra_s * 1e3 / usual_ms, 1)
        self.emit(mode, step=record.step)

    def after_step(self, optimizer: "Optimizer") -> None:
        self._exit_anomaly_mode()

    def backward_begins(self, loss: "Tensor | None") -> None:
        if self._entered is not None and self._step != self.monitor.step + 1:
            self._exit_anomaly_mode()  # the step it was meant for never ended

    def _handle_raised_error(
        self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], error: Exception
    ) -> None:
        if self._entered is None:
            return
        text = str(error).splitlines()[0][:300]
        self._exit_anomaly_mode()
        self.monitor.become_rank_now()
        self.emit(BackwardFailed(error=text))
