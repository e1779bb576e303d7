"""FORWARD: what each module put out in the steps that were looked at."""

import math
from typing import Any, ClassVar

from tdbg.core.events import Number, as_float, number
from tdbg.probes import PROBES, Probe
from tdbg.runtime.module_sampler import STRIDE, TURNS, ModuleSampler, SampleRequest, Seen

DEAD_SHARE = 0.999  # of the sample is zero
MAX_NAMES = 8
MAX_SHAPES = 24  # modules whose outputs are described in the text; the fields have all of them
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
    fields: ClassVar[dict[str, str]] = {
        **TURNS,
        "modules": "paths of the modules, in the order of the forward pass; given when they change",
        "classes": "their classes; given with the paths",
        "shapes": "the shapes of their outputs; given with the paths",
        "dtypes": "the dtypes of their outputs; given with the paths",
        "devices": "the devices of their outputs; given with the paths",
        "rms": "root mean square of each output",
        "mean": "mean of a sample of each output",
        "std": "standard deviation of the sample",
        "min": "smallest element of the sample",
        "max": "largest element of the sample",
        "zero_share": "share of the sample that is zero",
        "bad": "modules whose output is not finite, at most eight",
        "dead": "leaf modules whose output is zero all over, at most eight",
        "loss": "the step's loss",
        "calls": "calls of modules in the step",
    }

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
            self.abstain("no module's output holds floating-point numbers")
            return
        bad = [row.path or row.place.module_class for row in rows if not math.isfinite(row.rms or 0.0)]
        dead = [row.path for row in rows if row.leaf and row.sample.get("zero_share", 0.0) >= DEAD_SHARE]
        finite = [row for row in rows if math.isfinite(row.rms or 0.0)]
        values: dict[str, Any] = {
            "rms": [short(row.rms) for row in rows],
            **_samples(rows),
            "calls": sum(row.calls for row in look.seen),
            **look.turns_told(),
            **self._names(rows, look.turn),
        }
        if bad:
            values["bad"] = bad[:MAX_NAMES]
        if dead:
            values["dead"] = dead[:MAX_NAMES]
        values["loss"] = number(self.monitor.recorder.loss)
        text = f"{len(rows)} modules"
        if finite:
            low, high = min(finite, key=_rms), max(finite, key=_rms)
            text += f", output rms {_rms(low):.3g} ({low.path or 'root'}) to {_rms(high):.3g} ({high.path or 'root'})"
        text += f", {len(bad)} not finite" + (f" (first: {bad[0]})" if bad else "")
        if dead:
            text += f", {len(dead)} all zero (first: {dead[0]})"
        loss = as_float(self.monitor.recorder.loss)
        text += f", loss {loss:.6g}" if loss is not None else ""
        text += _described(rows) if "shapes" in values else ""
        self.see(text, step=look.step, **values)

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


def _described(rows: list[Seen]) -> str:
    """``; outputs: 0 (Linear) float32[32, 8], 2 (Linear) float32[32, 4]; on cpu``."""
    shown = [
        f"{row.path or 'root'} ({row.place.module_class}) {str(row.dtype).removeprefix('torch.')}{list(row.shape)}"
        for row in rows[:MAX_SHAPES]
    ]
    more = f" and {len(rows) - MAX_SHAPES} more" if len(rows) > MAX_SHAPES else ""
    devices = ", ".join(sorted({str(row.device) for row in rows}))
    return f"; outputs: {', '.join(shown)}{more}; on {devices}"


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
