"""`DiffusionModelDebugger`: the parts of a diffusion pipeline, and its latents step by step."""

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from tdbg.api.debugger import PyTorchDebugger, TensorInfo
from tdbg.api.levels import DebugLevel
from tdbg.runtime.tensors import iter_tensors

GREW = 10.0  # times the largest spread so far, on the way from noise to a sample
LATENTS = ("latents", "prev_sample", "sample", "images", "frames", "pred_original_sample")
COLLAPSED = 1e-6  # times the spread at the first step


class DiffusionModelDebugger(PyTorchDebugger):
    """Looks at a pipeline's components, and at the latents of each denoising step.

    Works with any diffusers pipeline, with any object that has ``components`` (a mapping of parts, those that are
    modules among them), and with other objects by their parts: the children of a module, the attributes of a class. Latents that are NaN or Inf, that grow to ten times their largest spread so far, or
    that lose all spread are anomalies.
    """

    _sort = "diffusion"

    def __init__(self, level: DebugLevel | str = DebugLevel.BASIC) -> None:
        super().__init__(level)
        self._spread: tuple[float, float] | None = None  # std at the first step, and the largest so far

    def analyze_diffusion_pipeline(self, pipeline: object) -> dict[str, Any]:
        """What a pipeline is made of.

        Returns total_parameters (elements), memory_usage (bytes of parameters and buffers on this process) and
        components: name -> class, parameters, trainable, memory_usage, dtype, device and finite for a module (the
        last from ADVANCED on: it reads every parameter), class alone for the others; a part left out (None) is
        not listed. A module held under two names counts once.
        Raises TypeError for an object that has no part. Cost: no pass; from ADVANCED on three over all parameters.
        """
        components = _find_components(pipeline)
        result: dict[str, Any] = {"total_parameters": 0, "memory_usage": 0, "components": {}}
        if self.level is DebugLevel.OFF:
            return result
        seen: set[int] = set()
        for name, part in components.items():
            if part is None:
                continue
            about = self._describe_module(name, part) if isinstance(part, nn.Module) else {"class": type(part).__name__}
            result["components"][name] = about
            if isinstance(part, nn.Module) and id(part) not in seen:
                seen.add(id(part))
                result["total_parameters"] += about["parameters"]
                result["memory_usage"] += about["memory_usage"]
        if isinstance(pipeline, nn.Module):  # its own parameters too, and what two children share once
            whole = self.profile_memory_usage(pipeline)
            result["total_parameters"] = sum(p.numel() for p in pipeline.parameters())
            result["memory_usage"] = whole["parameters"] + whole["buffers"]
        return result

    def _describe_module(self, name: str, module: nn.Module) -> dict[str, object]:
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

    def monitor_diffusion_step(self, pipeline: object, step: int, latents: object) -> dict[str, Any]:
        """Look at the latents after one denoising step; step 0 begins a new sample.

        latents: a tensor, or what a model, a scheduler or a pipeline returned: an object or a mapping that holds one
        (``prev_sample``, ``sample``, ``latents``, ``images``), or a tuple of tensors, whose first counts.

        Returns step, timestamp (seconds since 1970), latents_analysis (a `TensorInfo`) and anomalies (texts).
        pipeline: as the callback of a pipeline gets it; its class stands in the history.
        Raises TypeError for latents that hold no tensor. Cost: as `analyze_tensor`.
        """
        ((info, _),) = self._measure_tensors({"latents": latents_in(latents)})
        anomalies = self._find_anomalies(info, step) if self.level is not DebugLevel.OFF else []
        for text in anomalies:
            kind = "latents" if info.finite else "non-finite"
            self.remember(kind, f"step {step}: {text}", step=step, pipeline=type(pipeline).__name__)
        return {"step": step, "timestamp": time.time(), "latents_analysis": info, "anomalies": anomalies}

    def _find_anomalies(self, info: TensorInfo, step: int) -> list[str]:
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

    def on_step_end(self, pipeline: object, step: int, timestep: object, tensors: dict[str, Any]) -> dict[str, Any]:
        """Give it to a pipeline as ``callback_on_step_end``: monitors the latents of every step, changes nothing."""
        if isinstance(tensors.get("latents"), Tensor):
            self.monitor_diffusion_step(pipeline, step, tensors["latents"])
        return tensors


def latents_in(found: object) -> Tensor:
    """The latents in what a model, a scheduler or a pipeline returned. Raises TypeError where there is no tensor."""
    if isinstance(found, Tensor):
        return found
    for name in LATENTS:
        held = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
        if held is not None and not callable(held) and (tensor := _first_tensor(held)) is not None:
            return tensor
    first = _first_tensor(found)
    if first is None:
        raise TypeError(f"latents is a {type(found).__name__}, which holds no tensor")
    return first


def _first_tensor(found: object) -> Tensor | None:
    if isinstance(found, Tensor):
        return found
    if hasattr(found, "__array_interface__"):
        import torch

        return torch.as_tensor(found)
    return next((tensor for _, tensor in iter_tensors(found)), None)


def _find_components(pipeline: object) -> dict[str, object]:
    """The parts of a pipeline by name. Raises TypeError where there are none."""
    held = getattr(pipeline, "components", None)
    if not isinstance(held, Mapping):
        held = pipeline if isinstance(pipeline, Mapping) else None
    if held is not None:
        return {str(name): part for name, part in held.items()}
    if isinstance(pipeline, nn.Module):
        return dict(pipeline.named_children()) or {"model": pipeline}
    parts = {name: part for name, part in getattr(pipeline, "__dict__", {}).items() if _is_part(part)}
    if not any(isinstance(part, nn.Module) for part in parts.values()):
        raise TypeError(
            f"a {type(pipeline).__name__} has no components and holds no module: give a pipeline or a model"
        )
    return {name.lstrip("_"): part for name, part in parts.items()}


_SETTINGS = (str, bytes, int, float, complex, Tensor, list, tuple, dict, set, frozenset, type)


def _is_part(value: object) -> bool:
    """False for settings: numbers, texts, tensors, functions and containers of them."""
    return isinstance(value, nn.Module) or not (value is None or isinstance(value, _SETTINGS) or callable(value))
