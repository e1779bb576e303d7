"""`DiffusionModelDebugger`: the parts of a diffusion pipeline, and its latents step by step."""

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from tdbg.api.debugger import PyTorchDebugger, TensorInfo
from tdbg.api.levels import DebugLevel

GREW = 10.0  # times the largest spread so far, on the way from noise to a sample
COLLAPSED = 1e-6  # times the spread at the first step


class DiffusionModelDebugger(PyTorchDebugger):
    """Looks at a pipeline's components, and at the latents of each denoising step.

    Works with any diffusers pipeline, and with any object that has ``components``: a mapping of parts, those that
    are modules among them. Latents that are NaN or Inf, that grow to ten times their largest spread so far, or
    that lose all spread are anomalies.
    """

    def __init__(self, level: DebugLevel | str = DebugLevel.BASIC) -> None:
        super().__init__(level)
        self._spread: tuple[float, float] | None = None  # std at the first step, and the largest so far

    def analyze_diffusion_pipeline(self, pipeline: Any) -> dict[str, Any]:
        """What a pipeline is made of.

        Returns total_parameters (elements), memory_usage (bytes of parameters and buffers on this process) and
        components: name -> class, parameters, trainable, memory_usage, dtype, device and finite for a module (the
        last from ADVANCED on: it reads every parameter), class alone for the others; a part left out (None) is
        not listed. A module held under two names counts once.
        Raises TypeError for an object without components. Cost: no pass; from ADVANCED on three over all parameters.
        """
        components = _components(pipeline)
        result: dict[str, Any] = {"total_parameters": 0, "memory_usage": 0, "components": {}}
        if self.level is DebugLevel.OFF:
            return result
        seen: set[int] = set()
        for name, part in components.items():
            if part is None:
                continue
            about = self._module(name, part) if isinstance(part, nn.Module) else {"class": type(part).__name__}
            result["components"][name] = about
            if isinstance(part, nn.Module) and id(part) not in seen:
                seen.add(id(part))
                result["total_parameters"] += about["parameters"]
                result["memory_usage"] += about["memory_usage"]
        return result

    def _module(self, name: str, module: nn.Module) -> dict[str, Any]:
        first = next(module.parameters(), None)
        memory = self.profile_memory_usage(module)
        return {
            "class": type(module).__name__,
            "parameters": sum(p.numel() for p in module.parameters()),
            "trainable": sum(p.numel() for p in module.parameters() if p.requires_grad),
            "memory_usage": memory["parameters"] + memory["buffers"],
            "dtype": None if first is None else str(first.dtype).removeprefix("torch."),
            "device": None if first is None else str(first.device),
            "training": module.training,
            "finite": self.validate_parameters(module).valid if self.level.reaches(DebugLevel.ADVANCED) else None,
        }

    def monitor_diffusion_step(self, pipeline: Any, step: int, latents: Tensor) -> dict[str, Any]:
        """Look at the latents after one denoising step; step 0 begins a new sample.

        Returns step, timestamp (seconds since 1970), latents_analysis (a `TensorInfo`) and anomalies (texts).
        pipeline: as the callback of a pipeline gets it; its class stands in the history.
        Raises TypeError for latents that are no tensor. Cost: as `analyze_tensor`.
        """
        if not isinstance(latents, Tensor):
            raise TypeError(f"latents is a {type(latents).__name__}, not a tensor")
        ((info, _),) = self._look({"latents": latents})
        anomalies = self._judge(info, step) if self.level is not DebugLevel.OFF else []
        for text in anomalies:
            kind = "latents" if info.finite else "non-finite"
            self.remember(kind, f"step {step}: {text}", step=step, pipeline=type(pipeline).__name__)
        return {"step": step, "timestamp": time.time(), "latents_analysis": info, "anomalies": anomalies}

    def _judge(self, info: TensorInfo, step: int) -> list[str]:
        if step == 0:
            self._spread = None
        if not info.finite:
            return [info.problem()]
        spread = info.std_value
        if spread is None or info.shape.count(1) == len(info.shape):
            return []
        if self._spread is None:
            self._spread = spread, spread
            return []
        first, largest = self._spread
        self._spread = first, max(largest, spread)
        if 0 < GREW * largest < spread:
            return [f"the spread of the latents grew to {spread:.4g}, {spread / largest:.0f} times the largest so far"]
        if spread < COLLAPSED * first:
            return [f"the latents have lost all spread: std {spread:.4g}, {first:.4g} at the first step"]
        return []

    def on_step_end(self, pipeline: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        """Give it to a pipeline as ``callback_on_step_end``: monitors the latents of every step, changes nothing."""
        if isinstance(tensors.get("latents"), Tensor):
            self.monitor_diffusion_step(pipeline, step, tensors["latents"])
        return tensors


def _components(pipeline: Any) -> dict[str, Any]:
    found = getattr(pipeline, "components", None)
    if not isinstance(found, Mapping):
        raise TypeError(f"a {type(pipeline).__name__} has no components: give a pipeline")
    return dict(found)
