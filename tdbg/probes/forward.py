"""FORWARD: what each module put out in the steps that were looked at."""

import math
from typing import Any

from tdbg.core.events import Number, number
from tdbg.core.observations.forward import ModuleOutputs
from tdbg.probes import PROBES, Probe
from tdbg.runtime.module_sampler import STRIDE, ModuleSampler, SampleRequest, Seen

DEAD_SHARE = 0.999  # of the sample is zero
MAX_NAMES = 8
SAMPLED = ("mean", "std", "min", "max", "zero_share")


@PROBES.add
class Forward(Probe):
    """Shape, dtype, device and size of each module's output, and whether it is finite.

    Reads:  the output of every module below the root, on steps that are sampled (`ModuleSampler`).
    Emits:  one line and one observation a looked-at step; the names once, and again when they change. Of every
            module with the flag or at level extreme; else the first, the last and six others in turn. Without the
            flag at every other step.
    Cost:   one reduction and one sample of 1,024 elements a module.
    Limits: with the flag compiled models are run eagerly on those steps, where the last digits may differ; without
            it what is inside them is not seen.
    """

    name = "forward"
    levels = ("advanced", "extreme")
    observations = (ModuleOutputs,)

    def attach(self) -> None:
        self._keys: dict[int, tuple[object, ...]] = {}  # by turn

    def changed(self) -> None:
        asked = bool(self.flags)
        every = asked or self.monitor.settings.level == "extreme"
        stride = STRIDE if self.by_level_alone and not self.monitor.level_overrides.temporary else 1
        self.monitor.modules.request(
            self, SampleRequest(sample=True, every=every, stride=stride, exact=asked, force_eager=asked)
        )

    def detach(self) -> None:
        self.monitor.modules.forget(self)
        super().detach()

    def modules_seen(self, look: ModuleSampler) -> None:
        rows = [row for row in look.seen if row.rms is not None]
        if not rows:
            self.unavailable("no module's output holds floating-point numbers")
            return
        bad = [row.path or row.place.module_class for row in rows if not math.isfinite(row.rms or 0.0)]
        dead = [row.path for row in rows if row.leaf and row.sample.get("zero_share", 0.0) >= DEAD_SHARE]
        finite = [row for row in rows if math.isfinite(row.rms or 0.0)]
        outputs = ModuleOutputs(
            rms=[short(row.rms) for row in rows],
            **_samples(rows),
            calls=sum(row.calls for row in look.seen),
            **look.turns_told(),
            **self._names(rows, look.turn),
            bad=bad[:MAX_NAMES] or None,
            bad_count=len(bad),
            dead=dead[:MAX_NAMES] or None,
            dead_count=len(dead),
            loss=number(self.monitor.recorder.loss),
            extremes=_extremes(finite),
        )
        self.emit(outputs, step=look.step)

    def _names(self, rows: list[Seen], turn: int) -> dict[str, Any]:
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


def _extremes(rows: list[Seen]) -> str:
    if not rows:
        return ""
    low, high = min(rows, key=_rms), max(rows, key=_rms)
    return f", output rms {_rms(low):.3g} ({low.path or 'root'}) to {_rms(high):.3g} ({high.path or 'root'})"


def _samples(rows: list[Seen]) -> dict[str, Any]:
    """The sampled figures, where samples were taken."""
    if not any(row.sample for row in rows):
        return {}
    return {name: [short(row.sample.get(name)) for row in rows] for name in SAMPLED}


def _rms(row: Seen) -> float:
    return row.rms or 0.0


def short(value: float | None) -> Number | None:
    """Four significant digits, as JSON carries them."""
    if value is None or not math.isfinite(value):
        return number(value)
    return float(f"{value:.4g}")
