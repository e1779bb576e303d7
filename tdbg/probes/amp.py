"""AMP: autocast, the loss scale, skipped updates, and what half precision loses of the gradients."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tdbg.core.events import Step, as_float, number
from tdbg.core.observations.amp import PrecisionLoss, ScaleChanged, SkipExplained, UpdateSkipped
from tdbg.probes import PROBES, Probe
from tdbg.probes.forward import DEVICE_KINDS, HALF, knows_autocast, round_number
from tdbg.probes.scaler import ScaledUpdate
from tdbg.runtime import tensors
from tdbg.runtime.sampling import select_evenly, view_sample
from tdbg.runtime.tensors import Bad, find_bad_values
from tdbg.runtime.torch_compat import found_inf_of, scale_of

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.rerun import Call

MAX_NAMES = 8
MAX_PARAMETERS = 32  # whose gradients are sampled
ELEMENTS = 256  # of each
ALWAYS_REPORTED = 8  # skips and changes of scale; further ones as the budget allows
LOST_SHARE = 0.5  # of the gradient's elements are zero or below the normal range, and
FAINT_SHARE = 0.5  # of those that are not zero are below it: zeros alone may come from a ReLU
NOTHING_LEFT = 0.999  # of the elements are zero
NAN_STREAK = 8  # skips in a row with NaN and no Inf: no scale helps that
LOOKS_BEFORE_GIVING_UP = 8


@dataclass(slots=True)
class _Sample:
    """Shares of a sample of the gradients, as half precision sees them."""

    step: int
    dtype: str
    elements: int
    zero: float
    faint: float  # not zero, below the smallest normal number
    huge: float  # beyond the largest number, or not finite
    largest: float


@PROBES.add
class MixedPrecision(Probe):
    """What mixed precision does to the gradients, and what GradScaler does about it.

    Reads:  whether autocast is on when a root module is called, and its dtype; a sample of 256 elements of at most
            32 gradients after backward, still scaled; ``GradScaler.unscale_``, ``step`` and ``update``.
    Emits:  one line and one observation a looked-at step; SKIP for an update that was skipped, with its cause;
            CAUSE where that is known late; SCALE when the scale changes.
    Cost:   some 10 us a sampled gradient on steps that are looked at; an exact count of NaN and Inf for the first
            skipped updates and as the budget allows.
    Limits: autocast that begins inside the root's forward (Accelerate) is not seen: then the dtype of the gradients
            speaks. On an accelerator skipped updates are told without counts. Fused optimizers skip by themselves:
            that is seen in the step's record only.
    Source: Micikevicius et al. 2018, "Mixed Precision Training", section 3.2: gradients below 2^-24 become zero in
            fp16; the smallest normal number is 2^-14.
    """

    name = "amp"
    levels = ("advanced", "extreme")
    observations = (PrecisionLoss, UpdateSkipped, SkipExplained, ScaleChanged)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._device_types: tuple[str, ...] = ()
        self._reset_state()

    def _reset_state(self) -> None:
        self._autocast = ""
        self._sampled_step = 0
        self._looks = 0
        self._gave_up = False
        self._mixed = False  # any sign of mixed precision so far
        self._lost = self._lost_since = 0
        self._on_host = False  # the scaler's scale can be read without waiting
        self._scale: float | None = None
        self._skipped = self._streak = self._nan_streak = self._growths = self._backoffs = 0
        self._before: tuple[int, ScaledUpdate, float | None] | None = None  # step and loss as scaler.step begins
        self._bad: list[tuple[str, Bad]] = []
        self._reported_count = 0

    def attach(self) -> None:
        self._device_types = tuple(kind for kind in DEVICE_KINDS if knows_autocast(kind))
        self.patch_at("scale", after=self._handle_loss_scaled)
        self.patch_at("unscale", after=self._handle_unscaled_gradients)
        self.patch_at("scaler-step", before=self._step_begins, after=self._step_ended)
        self.patch_at("scaler-update", after=self._handle_scaler_update)

    def forked(self) -> None:
        self._reset_state()

    # the forward pass and the gradients

    def call_begins(self, module: nn.Module, call: "Call") -> None:
        if call.graded:
            on = next((kind for kind in self._device_types if torch.is_autocast_enabled(kind)), "")
            self._autocast = _short_name(torch.get_autocast_dtype(on)) if on else ""
            self._mixed = self._mixed or bool(on)

    def backward_ended(self) -> None:
        """The gradients are there, still scaled: what is lost in half precision is lost now."""
        step = self.monitor.step + 1
        if step == self._sampled_step or (self._gave_up and not self._mixed) or not self.should_sample():
            return
        self._sampled_step = step
        with self.work():
            self._sample_gradients(step)

    def _sample_gradients(self, step: int) -> None:
        self._looks += 1
        main = next((o for o in self.monitor.optimizers if self.monitor.is_main(o)), None)
        held = [p for group in main.param_groups for p in group["params"]] if main is not None else []
        graded = [p.grad for p in held if p.grad is not None]
        dtype = self._find_half_dtype(graded)
        if dtype is None:
            self._give_up_without_mixed_precision(graded)
            return
        matrices = [grad for grad in graded if grad.ndim > 1] or graded  # these are computed in half precision
        views = [
            view
            for grad in select_evenly(matrices, MAX_PARAMETERS)
            if (view := view_sample(grad, ELEMENTS)) is not None
        ]
        views = [view for view in views if view.device == views[0].device]
        if not views:
            return
        values = _compute_shares(torch.cat(views).float().abs(), dtype)
        read = _Read(self, step, _short_name(dtype), sum(view.numel() for view in views))
        if tensors.on_host(values):
            read(values.tolist(), None)
        else:
            self.monitor.read_late(values, read)

    def _find_half_dtype(self, grads: list[Tensor]) -> torch.dtype | None:
        """The half-precision dtype in play: the gradients' own, else autocast's; None without any."""
        own = next((grad.dtype for grad in grads if grad.dtype in HALF), None)
        self._mixed = self._mixed or own is not None
        return own or next((dtype for dtype in HALF if _short_name(dtype) == self._autocast), None)

    def _give_up_without_mixed_precision(self, grads: list[Tensor]) -> None:
        if not self._mixed and self._looks >= LOOKS_BEFORE_GIVING_UP and grads:
            self._gave_up = True
            self.unavailable("no mixed precision was seen: no autocast, no half-precision gradient, no GradScaler")

    def record_sample(self, sample: _Sample) -> None:
        """The shares of one look have arrived."""
        lost = sample.zero + sample.faint > LOST_SHARE and sample.faint > FAINT_SHARE * (1.0 - sample.zero)
        if sample.dtype == "float16" and not sample.huge and (lost or sample.zero >= NOTHING_LEFT):
            self._lost_since = self._lost_since if self._lost else sample.step
            self._lost += 1
        else:
            self._lost = 0
        self._emit_precision_loss(sample)

    # GradScaler

    def _handle_loss_scaled(
        self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object
    ) -> None:
        if args[0].is_enabled():
            self._mixed = True
            scale = _host_scale(args[0])
            self._on_host = scale is not None
            self._scale = self._scale if scale is None else scale

    def _handle_unscaled_gradients(
        self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, Any], result: object
    ) -> None:
        """Gradients have been divided by the scale; if any is bad, count before clipping blurs it."""
        scaler, optimizer = args[0], args[1] if len(args) > 1 else kwargs.get("optimizer")
        self._bad = []
        if not scaler.is_enabled() or optimizer is None or not self.monitor.is_main(optimizer):
            return
        found = found_inf_of(scaler, optimizer)
        if not all(map(tensors.on_host, found)) or not any(float(value) for value in found):
            return
        if self._skipped < ALWAYS_REPORTED or self.should_sample():
            with self.work():
                held = [p for group in optimizer.param_groups for p in group["params"]]
                bad = [(p, seen) for p in held if p.grad is not None and (seen := find_bad_values(p.grad))]
                self._bad = [(self._name_of(p), seen) for p, seen in bad]

    def _name_of(self, parameter: Tensor) -> str:
        named = self.monitor.find_probe("gradient-norms")
        return str(named.name_of(parameter)) if named is not None else f"parameter{list(parameter.shape)}"

    def _step_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scaler, optimizer = args[0], args[1] if len(args) > 1 else kwargs.get("optimizer")
        self._before = None
        if scaler.is_enabled() and optimizer is not None and self.monitor.is_main(optimizer):
            update = ScaledUpdate(self.monitor, scaler, optimizer)
            self._before = self.monitor.step + 1, update, self.monitor.recorder.loss

    def _step_ended(self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> None:
        if self._before is None:
            return
        (step, update, loss), self._before = self._before, None
        bad, self._bad = self._bad, []
        if update.was_made():
            self._streak = self._nan_streak = 0
            return
        self._skipped += 1
        self._streak += 1
        only_nan = bool(bad) and all(seen.kind == "nan" for _, seen in bad)
        self._nan_streak = self._nan_streak + 1 if only_nan else 0
        self._emit_skip(step, loss, bad)

    def _emit_skip(self, step: int, loss: float | None, bad: list[tuple[str, Bad]]) -> None:
        real = "loss" if loss is not None and not math.isfinite(loss) else ""
        if not real and self._nan_streak >= NAN_STREAK:
            real = "gradient"
        if self._skipped > ALWAYS_REPORTED and not real and not self.should_sample():
            return
        if real and self._reported_count >= ALWAYS_REPORTED and not self.should_sample():
            return
        self._reported_count += bool(real)
        skipped = UpdateSkipped(
            scale=self._scale,
            updates_skipped=self._skipped,
            streak=self._streak,
            loss=number(loss) if loss is not None else None,
            real=real or None,
        )
        if bad:
            skipped.bad = [{"name": name, "kind": seen.kind, "count": seen.count} for name, seen in bad[:MAX_NAMES]]
            skipped.bad_count = len(bad)
        self.emit(skipped, step=step)

    def _handle_scaler_update(
        self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object
    ) -> None:
        if args[0].is_enabled():
            self._follow_scale(_host_scale(args[0]))

    def _follow_scale(self, scale: float | None) -> None:
        before = self._scale
        if scale is None or scale == before:
            return
        self._scale = scale
        if before is None:
            return
        grew = scale > before
        self._growths, self._backoffs = self._growths + grew, self._backoffs + (not grew)
        if (self._growths if grew else self._backoffs) <= ALWAYS_REPORTED or self.should_sample():
            changed = ScaleChanged(scale=scale, before=before, growths=self._growths, backoffs=self._backoffs)
            self.emit(changed, step=max(self.monitor.step, 1))

    # the end of a step

    def record_written(self, record: Step) -> None:
        """On an accelerator scale and loss are known now, a step late."""
        if self._on_host:
            return
        self._follow_scale(as_float(record.scale))
        loss = as_float(record.loss)
        if record.skipped and loss is not None and not math.isfinite(loss) and self._reported_count < ALWAYS_REPORTED:
            self._reported_count += 1
            self.emit(SkipExplained(loss=record.loss, real="loss", scale=record.scale), step=record.step)

    def _emit_precision_loss(self, sample: _Sample) -> None:
        loss = PrecisionLoss(
            autocast=self._autocast,
            dtype=sample.dtype,
            scaler=self.monitor.scaling,
            elements=sample.elements,
            zero_share=round_number(sample.zero),
            faint_share=round_number(sample.faint),
            huge_share=round_number(sample.huge),
            largest=round_number(sample.largest),
            lost_looks=self._lost,
            lost_since=self._lost_since if self._lost else None,
        )
        if loss.scaler:
            loss.scale, loss.updates_skipped = self._scale, self._skipped
            loss.growths, loss.backoffs = self._growths, self._backoffs
        self.emit(loss, step=sample.step)


class _Read:
    """What to do with the shares of one look, now or when they have come from the device."""

    def __init__(self, probe: MixedPrecision, step: int, dtype: str, elements: int) -> None:
        self.probe, self.step, self.dtype, self.elements = probe, step, dtype, elements

    def __call__(self, values: list[float], record: Step | None) -> None:
        zero, faint, huge, largest = values
        self.probe.record_sample(_Sample(self.step, self.dtype, self.elements, zero, faint, huge, largest))


def _compute_shares(size: Tensor, dtype: torch.dtype) -> Tensor:
    """Shares of zeros, of numbers below the normal range and beyond the largest, and the largest, of one row."""
    info = torch.finfo(dtype)
    zero = size == 0
    faint = (size < info.tiny) & ~zero
    huge = ~(size <= info.max)  # NaN too
    shares = torch.stack([zero, faint, huge]).float().mean(1)
    return torch.cat([shares, size.max().reshape(1)])


def _host_scale(scaler: object) -> float | None:
    """The scale, where reading it waits for nothing."""
    held = scale_of(scaler)
    return float(held) if held is not None and tensors.on_host(held) else None


def _short_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
