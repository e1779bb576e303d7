"""The figures of every weight and gradient, at the levels above basic."""

import math
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from tdbg.events import Step
from tdbg.probes import PROBES, Probe, tensors
from tdbg.probes.forward import short
from tdbg.probes.tensors import checkable, local

if TYPE_CHECKING:
    from torch.optim import Optimizer

PARTS = ("weight", "gradient")


@PROBES.add
class TensorStats(Probe):
    """Norms of all weights (advanced); mean, rms, min and max of all weights and gradients (extreme).

    Reads:  the main optimizer's parameters and their gradients when it is about to update, on sampled steps.
    Emits:  one observation a looked-at step, in the order of the Params event; the last ones are kept as the
            history that a trigger dumps.
    Cost:   two foreach calls over the weights; at extreme one `aminmax` and one sum a tensor besides.
    Limits: of a sharded parameter (FSDP) the shard of this rank. Gradients as they are at the update: clipped,
            and unscaled if the program unscales.
    """

    name = "tensor-stats"
    levels = ("advanced", "extreme")
    fields: ClassVar[dict[str, str]] = {
        f"{part}_{name}": f"{text} of each {part}"
        for part in PARTS
        for name, text in (("rms", "root mean square"), ("mean", "mean"), ("min", "smallest"), ("max", "largest"))
    } | {"names": "parameter names, in the order of the figures; given when they change"}

    def __init__(self, monitor: Any) -> None:
        super().__init__(monitor)
        self.history: deque[dict[str, Any]] = deque(maxlen=max(monitor.settings.keep_steps, 1))
        self._key: tuple[int, ...] = ()

    def update_begins(self, optimizer: "Optimizer") -> None:
        if not self.monitor.is_main(optimizer) or not self.may():
            return
        with self.work():
            parameters = [p for group in optimizer.param_groups for p in group["params"] if checkable(p)]
            if parameters:
                self._look(parameters)

    def _look(self, parameters: list[Tensor]) -> None:
        weights = [local(parameter.detach()) for parameter in parameters]
        graded = [i for i, parameter in enumerate(parameters) if parameter.grad is not None]
        grads = [local(parameters[i].grad) for i in graded]  # type: ignore[arg-type]
        whole = self.monitor.settings.level == "extreme"
        columns = [_norms(weights)]
        if whole:
            columns += _extremes(weights)
            columns += [_norms(grads), *_extremes(grads)] if grads else []
        device = columns[0].device
        values = torch.cat([column.to(device) for column in columns])
        read = _Read(self, parameters, graded if whole else [], self.monitor.step + 1)
        if tensors.on_host(values):
            read(values.tolist(), None)
        else:
            self.monitor.read_late(values, read)

    def names(self, parameters: list[Tensor]) -> dict[str, Any]:
        """The parameters' names, where they are not those of the last look."""
        key = tuple(map(id, parameters))
        if key == self._key:
            return {}
        self._key = key
        gradients = self.monitor.probe("gradient-norms")
        return {"names": [gradients.name_of(p) for p in parameters]} if gradients is not None else {}

    def keep(self, step: int, values: dict[str, Any]) -> None:
        """Tell of one look, and keep it."""
        self.history.append({"step": step, **values})
        worst = max(values["weight_rms"], key=lambda value: value if isinstance(value, float) else math.inf)
        text = f"{len(values['weight_rms'])} weights, rms at most {worst}"
        self.see(text, step=step, **values)

    def history_cleared(self) -> None:
        self.history.clear()

    def forked(self) -> None:
        self.history.clear()
        self._key = ()


class _Read:
    """Puts the columns that were read under their names."""

    def __init__(self, probe: TensorStats, parameters: list[Tensor], graded: list[int], step: int) -> None:
        self.probe, self.parameters, self.graded, self.step = probe, parameters, graded, step
        self.numel = [local(parameter).numel() for parameter in parameters]

    def __call__(self, values: list[float], record: Step | None) -> None:
        count, rest = len(self.parameters), list(values)
        kept: dict[str, Any] = {"weight_rms": [short(v / n**0.5) for v, n in zip(rest, self.numel, strict=False)]}
        del rest[:count]
        if rest:
            self._extremes(kept, "weight", rest, range(count))
        if rest:
            chosen = self.graded
            rms: list[Any] = [None] * count
            for index, value in zip(chosen, rest, strict=False):
                rms[index] = short(value / self.numel[index] ** 0.5)
            kept["gradient_rms"] = rms
            del rest[: len(chosen)]
            self._extremes(kept, "gradient", rest, chosen)
        self.probe.keep(self.step, {**self.probe.names(self.parameters), **kept})

    def _extremes(self, kept: dict[str, Any], part: str, rest: list[float], chosen: Any) -> None:
        for name in ("min", "max", "mean"):
            column: list[Any] = [None] * len(self.parameters)
            for index, value in zip(chosen, rest, strict=False):
                column[index] = short(value / self.numel[index] if name == "mean" else value)
            kept[f"{part}_{name}"] = column
            del rest[: len(chosen)]


def _norms(found: list[Tensor]) -> Tensor:
    """The L2 norm of each."""
    return torch.stack([norm.to(torch.float32) for norm in torch._foreach_norm(found)])


def _extremes(found: list[Tensor]) -> list[Tensor]:
    """Three columns: smallest, largest, sum of each."""
    pairs = [torch.aminmax(tensor.real if tensor.is_complex() else tensor) for tensor in found]
    low = torch.stack([pair.min.to(torch.float32) for pair in pairs])
    high = torch.stack([pair.max.to(torch.float32) for pair in pairs])
    total = torch.stack([tensor.real.sum(dtype=torch.float32) for tensor in found])
    return [low, high, total]
