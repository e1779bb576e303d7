"""The figures of every weight and gradient, at the levels above basic."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from tdbg.events import Step
from tdbg.probes import PROBES, Probe, tensors
from tdbg.probes.forward import short
from tdbg.probes.spread import samples
from tdbg.probes.tensors import checkable, local

if TYPE_CHECKING:
    from torch.optim import Optimizer

PARTS = ("weight", "gradient")
IN_TURN = 16  # parameters a look


@PROBES.add
class TensorStats(Probe):
    """Norms of weights (advanced); mean, rms, min and max of weights and of gradients (extreme).

    Reads:  the main optimizer's parameters and their gradients when it is about to update, on sampled steps.
            Sixteen of them have their turn in each look; of gradients all norms are in the step's record.
    Emits:  one observation a looked-at step, in the order of the Params event, null for those whose turn it is
            not; the last ones are kept as the history that a trigger dumps.
    Cost:   one foreach call; at extreme one `aminmax` and one sample a tensor besides.
    Limits: of a sharded parameter (FSDP) the shard of this rank. Gradients as they are at the update: clipped,
            and unscaled if the program unscales.
    """

    name = "tensor-stats"
    levels = ("advanced", "extreme")
    fields: ClassVar[dict[str, str]] = {
        f"{part}_{name}": f"{text} of each {part}"
        for part in PARTS
        for name, text in (
            ("rms", "root mean square"),
            ("mean", "mean of a sample"),
            ("min", "smallest"),
            ("max", "largest"),
        )
    } | {"names": "parameter names, in the order of the figures; given when they change"}

    def __init__(self, monitor: Any) -> None:
        super().__init__(monitor)
        self.history: deque[dict[str, Any]] = deque(maxlen=max(monitor.settings.keep_steps, 1))
        self._key: tuple[int, ...] = ()
        self._looks = 0

    def update_begins(self, optimizer: "Optimizer") -> None:
        if not self.monitor.is_main(optimizer) or not self.may():
            return
        with self.work():
            parameters = [p for group in optimizer.param_groups for p in group["params"] if checkable(p)]
            if parameters:
                self._look(parameters)

    def _look(self, parameters: list[Tensor]) -> None:
        turns = -(-len(parameters) // IN_TURN)
        which = range(self._looks % turns, len(parameters), turns)
        self._looks += 1
        weights = [local(parameters[i].detach()) for i in which]
        columns = [Column("weight_rms", which, _norms(weights))]
        if self.monitor.settings.level == "extreme":
            columns += _extremes("weight", which, weights)
            graded = [i for i in which if parameters[i].grad is not None]
            grads = [local(parameters[i].grad) for i in graded]  # type: ignore[arg-type]
            if grads:
                columns += [Column("gradient_rms", graded, _norms(grads)), *_extremes("gradient", graded, grads)]
        device = columns[0].values.device
        joined = torch.cat([column.values.to(device) for column in columns])
        read = _Read(self, parameters, columns, self.monitor.step + 1)
        if tensors.on_host(joined):
            read(joined.tolist(), None)
        else:
            self.monitor.read_late(joined, read)

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
        known = [value for value in values["weight_rms"] if value is not None]
        worst = max(known, key=lambda value: value if isinstance(value, float) else math.inf)
        text = f"{len(known)} of {len(values['weight_rms'])} weights, rms at most {worst}"
        self.see(text, step=step, **values)

    def history_cleared(self) -> None:
        self.history.clear()

    def forked(self) -> None:
        self.history.clear()
        self._key = ()


@dataclass(slots=True)
class Column:
    """One figure of several tensors: its name, which parameters, the values (on their device)."""

    name: str
    which: Sequence[int]
    values: Tensor


class _Read:
    """Puts the columns that were read under their names."""

    def __init__(self, probe: TensorStats, parameters: list[Tensor], columns: list[Column], step: int) -> None:
        self.probe, self.parameters, self.step = probe, parameters, step
        self.numel = [local(parameter).numel() for parameter in parameters]
        self.columns = [(column.name, column.which) for column in columns]

    def __call__(self, values: list[float], record: Step | None) -> None:
        kept = self.probe.names(self.parameters)
        start = 0
        for name, which in self.columns:
            column: list[Any] = [None] * len(self.parameters)
            for index, value in zip(which, values[start : start + len(which)], strict=True):
                column[index] = short(value / self.numel[index] ** 0.5 if name.endswith("_rms") else value)
            kept[name] = column
            start += len(which)
        self.probe.keep(self.step, kept)


def _norms(found: list[Tensor]) -> Tensor:
    """The L2 norm of each."""
    return torch.stack([norm.to(torch.float32) for norm in torch._foreach_norm(found)])


def _extremes(part: str, which: Sequence[int], found: list[Tensor]) -> list[Column]:
    """Smallest and largest element of each, and the mean of a sample."""
    pairs = [torch.aminmax(tensor.real if tensor.is_complex() else tensor) for tensor in found]
    low = torch.stack([pair.min for pair in pairs]) if _alike(found) else _stacked([pair.min for pair in pairs])
    high = torch.stack([pair.max for pair in pairs]) if _alike(found) else _stacked([pair.max for pair in pairs])
    mean = samples(found).mean(1)
    columns = {"min": low.to(torch.float32), "max": high.to(torch.float32), "mean": mean}
    return [Column(f"{part}_{name}", which, values) for name, values in columns.items()]


def _alike(found: list[Tensor]) -> bool:
    return all(tensor.dtype == found[0].dtype for tensor in found)


def _stacked(values: list[Tensor]) -> Tensor:
    return torch.stack([value.to(torch.float32) for value in values])
