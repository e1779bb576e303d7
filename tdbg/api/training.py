"""`TrainingDebugger`: one call a step, and what a whole training looked like."""

import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tdbg.api.debugger import PyTorchDebugger, TensorInfo, parameters_of
from tdbg.api.levels import DebugLevel
from tdbg.core.config import BUDGET_PCT
from tdbg.core.events import Step
from tdbg.core.step_anomalies import EXPLOSION, VANISHING, LossSpike
from tdbg.core.tables import format_count
from tdbg.runtime.budget import ALWAYS_STEPS, Budget
from tdbg.runtime.tensors import compute_norms, to_local_part

DETAILS = "details"


@dataclass(slots=True)
class StepInfo:
    """What one training step looked like.

    ``gradients`` is what `PyTorchDebugger.analyze_gradients` returns. ``parameters`` and ``gradient_infos`` are filled
    from ADVANCED and EXTREME on, on sampled steps; ``memory`` (bytes) from ADVANCED on. Norms are L2.
    """

    step: int
    timestamp: float  # seconds since 1970
    loss: float | None = None
    grad_norm: float | None = None  # L2, over all gradients
    loss_anomaly: bool = False  # not finite, or far above its recent course
    exploding: list[str] = field(default_factory=list)  # parameters with a norm above the threshold or not finite
    vanishing: list[str] = field(default_factory=list)  # parameters with a norm below the threshold
    anomalies: list[str] = field(default_factory=list)  # all that is wrong, in words
    gradients: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, TensorInfo] = field(default_factory=dict)
    gradient_infos: dict[str, TensorInfo] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    spent_ms: float = 0.0  # by this call

    @property
    def healthy(self) -> bool:
        """True if nothing is wrong."""
        return not self.anomalies

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        found = asdict(self)
        for name in ("parameters", "gradient_infos"):
            found[name] = {key: info.as_dict() for key, info in getattr(self, name).items()}
        return found


class TrainingDebugger(PyTorchDebugger):
    """Watches the steps it is told of; everything `PyTorchDebugger` does, too.

    level: BASIC reads loss and gradient norms in every step. ADVANCED adds memory, and the figures of every
    parameter; EXTREME those of every gradient, and a history of each tensor. These further figures are taken in the
    first 8 steps and then as often as the level's share of the wall time allows (3 % and 10 %). OFF looks at nothing.
    explosion, vanishing: bounds of a parameter's gradient norm (L2).
    """

    _sort = "training"

    def __init__(
        self,
        level: DebugLevel | str = DebugLevel.BASIC,
        *,
        explosion: float = EXPLOSION,
        vanishing: float = VANISHING,
    ) -> None:
        super().__init__(level)
        self.explosion = explosion
        self.vanishing_below = vanishing
        self._budget = Budget(BUDGET_PCT[self.level.value], time.perf_counter())
        self._forget_steps()

    def _forget_steps(self) -> None:
        self._counts = dict.fromkeys(
            ("total_steps", "anomaly_steps", "gradient_explosions", "gradient_vanishing", "loss_anomalies"), 0
        )
        self._spike = LossSpike()  # the trigger of `tdbg run`

    def monitor_training_step(self, model: nn.Module, loss: Tensor | float, step: int) -> StepInfo:
        """Look at one step: call it after backward and before the optimizer's step (and ``zero_grad``).

        loss: a number or a tensor of one element, on any device. Gradients are taken as they are: unscale and, if
        the figures are to be those before clipping, call it before clipping.
        A loss is an anomaly if it is NaN or Inf, or far above the last 64: after 32, more than twice their median and
        8 median absolute deviations above it, and higher than each of them.
        Raises ValueError for a loss of several elements. Cost: one pass over the gradients and one copy; at higher
        levels what is said above.
        """
        info = StepInfo(step=step, timestamp=time.time())
        if self.level is DebugLevel.OFF:
            return info
        begun = time.perf_counter()
        with self._time_call():
            self._read_step(model, loss, info)
            self._judge_step(info)
        if self.level.reaches(DebugLevel.ADVANCED):
            self._record_details(model, info)
        seconds = time.perf_counter() - begun
        self._budget.charge(DETAILS, seconds)
        info.spent_ms = round(seconds * 1e3, 3)
        return info

    def _read_step(self, model: nn.Module, loss: Tensor | float, info: StepInfo) -> None:
        """Loss and norms, with one copy where they are on one device."""
        parameters = dict(parameters_of(model))
        grads = {name: p.grad for name, p in parameters.items() if p.grad is not None}
        found = compute_norms(list(grads.values()))
        if isinstance(loss, Tensor):
            if loss.numel() != 1:
                raise ValueError(
                    f"the loss has {format_count(loss.numel(), 'element')}: pass the one backward() ran on"
                )
            device = found.device if grads else loss.device
            wide = torch.float32 if device.type == "mps" else torch.float64
            first = to_local_part(loss.detach()).reshape(1).to(device, wide)
            value, *rest = torch.cat([first, found.to(device)]).tolist()
        else:
            value, rest = float(loss), found.tolist()
        info.loss = value
        info.gradients = {
            "total_params": len(parameters),
            "params_with_grad": len(grads),
            **self._norms_of(grads, rest),
        }
        info.grad_norm = info.gradients["total_norm"] if grads else None

    def _judge_step(self, info: StepInfo) -> None:
        """What is wrong with the step, and the counts."""
        found: dict[str, float] = info.gradients["norms"]
        info.exploding = self.exploding(found, self.explosion)
        info.vanishing = self.vanishing(found, self.vanishing_below)
        loss, window = info.loss if info.loss is not None else math.nan, self._spike.window
        usual = f", the median of the last {len(window)} is {window.median:.4g}" if math.isfinite(loss) else ""
        info.loss_anomaly = not math.isfinite(loss) or self._spike.is_met(Step(step=info.step, loss=loss, micro=1))
        bad = sum(1 for norm in found.values() if not math.isfinite(norm))
        if info.loss_anomaly:
            info.anomalies.append(f"loss {loss:.4g}{usual}")
            self.remember("loss", f"step {info.step}: {info.anomalies[-1]}", step=info.step, loss=info.loss)
        if bad:
            info.anomalies.append(f"{format_count(bad, 'gradient', 'is')} not finite")
        if info.exploding:
            self._record_anomaly(
                info,
                "explosion",
                f"{format_count(len(info.exploding), 'gradient norm')} above {self.explosion:g}",
                info.exploding,
            )
        if info.vanishing:
            text = f"{format_count(len(info.vanishing), 'gradient norm')} below {self.vanishing_below:g}"
            self._record_anomaly(info, "vanishing", text, info.vanishing)
        with self._lock:
            self._counts["total_steps"] += 1
            self._counts["anomaly_steps"] += bool(info.anomalies)
            self._counts["gradient_explosions"] += bool(info.exploding)
            self._counts["gradient_vanishing"] += bool(info.vanishing)
            self._counts["loss_anomalies"] += info.loss_anomaly

    def _record_anomaly(self, info: StepInfo, kind: str, text: str, names: list[str]) -> None:
        info.anomalies.append(text)
        self.remember(kind, f"step {info.step}: {text} (first: {names[0]})", step=info.step, names=names[:50])

    def _record_details(self, model: nn.Module, info: StepInfo) -> None:
        """What the higher levels add, as often as their share of the wall time allows."""
        info.memory = self.profile_memory_usage(model)
        now = time.perf_counter()
        if self._counts["total_steps"] > ALWAYS_STEPS and not self._budget.allows((DETAILS,), now):
            return
        info.parameters = self.analyze_model_parameters(model)
        if self.level is DebugLevel.EXTREME:
            grads = {f"{name}.grad": p.grad for name, p in parameters_of(model) if p.grad is not None}
            infos = {found.name: found for found, _ in self._measure_tensors(grads)}
            info.gradient_infos = {name.removesuffix(".grad"): found for name, found in infos.items()}
        self._budget.record_cost(DETAILS, time.perf_counter() - now)

    def get_training_summary(self) -> dict[str, Any]:
        """total_steps, anomaly_steps, gradient_explosions, gradient_vanishing, loss_anomalies, and their rates.

        All are numbers of steps; a rate is the share of total_steps (0.0 before the first): anomaly_rate,
        loss_anomaly_rate, gradient_explosion_rate, gradient_vanishing_rate.
        """
        with self._lock:
            counts = dict(self._counts)
        total = max(counts["total_steps"], 1)
        return {
            **counts,
            "anomaly_rate": counts["anomaly_steps"] / total,
            "loss_anomaly_rate": counts["loss_anomalies"] / total,
            "gradient_explosion_rate": counts["gradient_explosions"] / total,
            "gradient_vanishing_rate": counts["gradient_vanishing"] / total,
        }

    def clear_debug_history(self) -> None:
        """Forget every entry, count and step."""
        super().clear_debug_history()
        with self._lock:
            self._forget_steps()
