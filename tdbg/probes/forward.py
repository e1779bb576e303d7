"""FORWARD: what each module put out in the steps that were looked at."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tdbg.core.events import Number, number
from tdbg.core.observations.forward import AutocastIgnored, ModuleOutputs
from tdbg.probes import PROBES, Probe
from tdbg.runtime.listener import LATER_STEPS
from tdbg.runtime.module_sampler import STRIDE, ModuleSampler, SampleRequest, Seen

if TYPE_CHECKING:
    from tdbg.runtime.rerun import Call

DEAD_SHARE = 0.999  # of the sample is zero
MAX_NAMES = 8
CASTED = frozenset(cls.__name__ for cls in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))  # autocast runs these in half
HALF = (torch.float16, torch.bfloat16)
DEVICE_KINDS = ("cuda", "cpu", "xpu", "mps")  # that autocast may be on for
UNCAST_LOOKS = 2  # in a row
SAMPLED = ("mean", "std", "min", "max", "zero_share")


@PROBES.add
class Forward(Probe):
    """Shape, dtype, device and size of each module's output, and whether it is finite.

    Reads:  the output of every module below the root, on steps that are sampled (`ModuleSampler`).
            Whether the root was called inside autocast.
    Emits:  AUTOCAST once, if all linear and convolution layers return float32 inside it; one line and one observation a looked-at step; the names once, and again when they change. Of every
            module with the flag or at level extreme; else the first, the last and six others in turn. Without the
            flag at every other step.
    Cost:   one reduction and one sample of 1,024 elements a module.
    Limits: with the flag compiled models are run eagerly on those steps, where the last digits may differ; without
            it what is inside them is not seen.
    """

    name = "forward"
    levels = ("advanced", "extreme")
    comes_back = LATER_STEPS
    observations = (ModuleOutputs, AutocastIgnored)

    def attach(self) -> None:
        self._kinds = tuple(kind for kind in DEVICE_KINDS if knows_autocast(kind))
        self._autocast: tuple[str, torch.dtype] | None = None  # of the last call with gradients
        self._uncast = 0  # consecutive sampled steps
        self._keys: dict[int, tuple[object, ...]] = {}  # by turn

    def changed(self) -> None:
        asked = bool(self.flags)
        every = asked or self.monitor.settings.level == "extreme"
        stride = STRIDE if self.by_level_alone and not self.monitor.level_overrides.temporary else 1
        self.monitor.modules.request(
            self, SampleRequest(sample=True, every=every, stride=stride, exact=asked, force_eager=asked)
        )

    def detach(self) -> None:
        self.monitor.modules.withdraw_request(self)
        super().detach()

    def call_begins(self, module: nn.Module, call: "Call") -> None:
        if call.graded and self._uncast < UNCAST_LOOKS:
            kind = next((kind for kind in self._kinds if torch.is_autocast_enabled(kind)), "")
            self._autocast = (kind, torch.get_autocast_dtype(kind)) if kind else None

    def _look_at_casts(self, look: ModuleSampler) -> None:
        """Inside autocast a linear or convolution layer puts out half precision, but in an inner region without it.

        A look at all modules tells that it is each of them; the next one, at some, that it stays so.
        """
        rows = [row for row in look.seen if row.place.module_class in CASTED and row.numel]
        if self._autocast is None or self._autocast[1] not in HALF or not rows or self._uncast >= UNCAST_LOOKS:
            return
        if look.turn and not self._uncast:
            return
        self._uncast = self._uncast + 1 if all(row.dtype == torch.float32 for row in rows) else 0
        if self._uncast == UNCAST_LOOKS:
            kind, dtype = self._autocast
            seen = AutocastIgnored(
                device=kind,
                dtype=str(dtype).removeprefix("torch."),
                layers=[row.path for row in rows[:MAX_NAMES]],
                layer_count=len(rows),
                layer_device=rows[0].device.type,
                looks=UNCAST_LOOKS,
            )
            self.emit(seen, step=look.step)

    def modules_seen(self, look: ModuleSampler) -> None:
        self._look_at_casts(look)
        rows = [row for row in look.seen if row.rms is not None]
        if not rows:
            self.unavailable("no module's output holds floating-point numbers")
            return
        bad = [row.path or row.place.module_class for row in rows if not math.isfinite(row.rms or 0.0)]
        dead = [row.path for row in rows if row.leaf and row.sample.get("zero_share", 0.0) >= DEAD_SHARE]
        finite = [row for row in rows if math.isfinite(row.rms or 0.0)]
        outputs = ModuleOutputs(
            rms=[round_number(row.rms) for row in rows],
            **_collect_samples(rows),
            calls=sum(row.calls for row in look.seen),
            **look.describe_turn(),
            **self._collect_new_names(rows, look.turn),
            bad=bad[:MAX_NAMES] or None,
            bad_count=len(bad),
            dead=dead[:MAX_NAMES] or None,
            dead_count=len(dead),
            loss=number(self.monitor.recorder.loss),
            extremes=_format_extremes(finite),
        )
        self.emit(outputs, step=look.step)

    def _collect_new_names(self, rows: list[Seen], turn: int) -> dict[str, Any]:
        """Names and kinds, where they are not those of the last look."""
        key = tuple((row.path, row.shape, row.dtype, row.device) for row in rows)
        if key == self._keys.get(turn):
            return {}
        self._keys[turn] = key
        return {
            "modules": [row.path for row in rows],
            "classes": [row.place.module_class for row in rows],
            "shapes": [list(row.shape) for row in rows],
            "dtypes": [str(row.dtype).removeprefix("torch.") for row in rows],
            "devices": sorted({str(row.device) for row in rows}),
        }


def _format_extremes(rows: list[Seen]) -> str:
    if not rows:
        return ""
    low, high = min(rows, key=_get_rms), max(rows, key=_get_rms)
    return f", output rms {_get_rms(low):.3g} ({low.path or 'root'}) to {_get_rms(high):.3g} ({high.path or 'root'})"


def _collect_samples(rows: list[Seen]) -> dict[str, Any]:
    """The sampled figures, where samples were taken."""
    if not any(row.sample for row in rows):
        return {}
    return {name: [round_number(row.sample.get(name)) for row in rows] for name in SAMPLED}


def _get_rms(row: Seen) -> float:
    return row.rms or 0.0


def round_number(value: float | None) -> Number | None:
    """Four significant digits, as JSON carries them."""
    if value is None or not math.isfinite(value):
        return number(value)
    return float(f"{value:.4g}")


def knows_autocast(kind: str) -> bool:
    """True if this torch has autocast for a kind of device."""
    try:
        torch.is_autocast_enabled(kind)
    except RuntimeError:
        return False
    return True
