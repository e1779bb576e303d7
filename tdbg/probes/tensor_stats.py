"""The figures of every weight and gradient, at the levels above basic."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from tdbg.core.events import Step
from tdbg.core.tables import format_count
from tdbg.probes import PROBES, Probe
from tdbg.probes.forward import round_number
from tdbg.runtime import tensors
from tdbg.runtime.sampling import SAMPLE, spread_of, stack_samples
from tdbg.runtime.tensors import is_checkable, local_elements

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor

PARTS = ("weight", "gradient")
IN_TURN = 8  # parameters a look
HISTORY = 64  # looks that are kept


@PROBES.add
class TensorStats(Probe):
    """Root mean square, mean, standard deviation, smallest and largest element of weights and gradients.

    Reads:  the main optimizer's parameters and their gradients when it is about to update, on sampled steps.
            Eight of them have their turn in each look; of gradients all norms are in the step's record.
    Emits:  one observation a looked-at step; the last ones are kept as the history that a trigger dumps.
    Cost:   one sample of 1,024 elements a tensor; at extreme one `aminmax` and one norm of all besides.
    Limits: below extreme all figures are those of the sample. Of a sharded parameter (FSDP) the shard of this rank.
            Gradients as they are at the update: clipped, and unscaled if the program unscales.
    """

    name = "tensor-stats"
    levels = ("advanced", "extreme")
    every = 4
    fields: ClassVar[dict[str, str]] = {
        f"{part}_{name}": f"{text} of each {part}"
        for part in PARTS
        for name, text in (
            ("rms", "root mean square"),
            ("mean", "mean of a sample"),
            ("std", "standard deviation of the sample"),
            ("min", "smallest element"),
            ("max", "largest element"),
        )
    } | {
        "which": "whose figures these are: places in the list of names",
        "names": "the names of all parameters; given when they change",
    }

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._history: deque[dict[str, Any]] = deque(maxlen=max(monitor.settings.keep_steps, HISTORY))
        self._names: list[str] = []
        self._key: tuple[int, ...] = ()
        self._looks = 0

    def update_begins(self, optimizer: "Optimizer") -> None:
        if not self.monitor.is_main(optimizer) or not self.should_sample():
            return
        with self.work():
            parameters = [p for group in optimizer.param_groups for p in group["params"] if is_checkable(p)]
            if parameters:
                self._sample_tensors(parameters)

    def _sample_tensors(self, parameters: list[Tensor]) -> None:
        turns = -(-len(parameters) // IN_TURN)
        which = list(range(self._looks % turns, len(parameters), turns))
        self._looks += 1
        exact = self.monitor.settings.level == "extreme"
        columns = []
        for part, found in (
            ("weight", [(i, parameters[i].detach()) for i in which]),
            ("gradient", [(i, parameters[i].grad) for i in which]),
        ):
            for indices, data in _by_device(found):
                columns += _compute_columns(part, indices, data, exact=exact)
        if not columns:
            return
        device = columns[0].values.device
        joined = torch.cat([column.values.to(device) for column in columns])
        read = _Read(self, parameters, which, columns, self.monitor.step + 1)
        if tensors.on_host(joined):
            read(joined.tolist(), None)
        else:
            self.monitor.read_late(joined, read)

    def collect_new_names(self, parameters: list[Tensor]) -> dict[str, Any]:
        """The parameters' names, where they are not those of the last look."""
        key = tuple(map(id, parameters))
        if key == self._key:
            return {}
        self._key = key
        gradients = self.monitor.find_probe("gradient-norms")
        self._names = [gradients.name_of(p) for p in parameters] if gradients is not None else []
        return {"names": self._names} if self._names else {}

    def collect_history(self) -> list[dict[str, object]]:
        """The last looks, each with the names of the parameters it was at."""
        names = dict(enumerate(self._names))
        return [{**look, "names": [names.get(index, str(index)) for index in look["which"]]} for look in self._history]

    def record_stats(self, step: int, values: dict[str, Any]) -> None:
        """Tell of one look, and keep it."""
        self._history.append({"step": step, **{name: value for name, value in values.items() if name != "names"}})
        known = [value for value in values.get("weight_rms", ()) if value is not None]
        worst = max(known, key=lambda value: value if isinstance(value, float) else math.inf, default=0.0)
        text = f"{format_count(len(known), 'weight')}, rms at most {worst}"
        self.observe(text, step=step, **values)

    def history_cleared(self) -> None:
        self._history.clear()

    def forked(self) -> None:
        self._history.clear()
        self._key = ()


@dataclass(slots=True)
class Column:
    """One figure of several tensors: its name, which parameters, the values (on their device)."""

    name: str
    which: Sequence[int]
    values: Tensor


class _Read:
    """Puts the columns that were read under their names."""

    def __init__(
        self, probe: TensorStats, parameters: list[Tensor], which: list[int], columns: list[Column], step: int
    ) -> None:
        self.probe, self.parameters, self.which, self.step = probe, parameters, which, step
        self.columns = [(column.name, column.which) for column in columns]

    def __call__(self, values: list[float], record: Step | None) -> None:
        kept = {**self.probe.collect_new_names(self.parameters), "which": self.which}
        start = 0
        for name, which in self.columns:
            found = dict(zip(which, values[start : start + len(which)], strict=True))
            before = kept.get(name, [None] * len(self.which))
            kept[name] = [
                round_number(found[i]) if i in found else old for i, old in zip(self.which, before, strict=True)
            ]
            start += len(which)
        self.probe.record_stats(self.step, kept)


def _by_device(found: Iterable[tuple[int, Tensor | None]]) -> list[tuple[list[int], list[Tensor]]]:
    """Indices and this rank's part of the tensors, those of one device together; empty shards are left out."""
    groups: dict[torch.device, tuple[list[int], list[Tensor]]] = {}
    for index, tensor in found:
        data = local_elements(tensor) if tensor is not None else None
        if data is not None and data.numel():
            indices, group = groups.setdefault(data.device, ([], []))
            indices.append(index)
            group.append(data)
    return list(groups.values())


def _compute_columns(part: str, which: Sequence[int], found: list[Tensor], *, exact: bool) -> list[Column]:
    """The figures of tensors on one device. exact: rms, smallest and largest of all elements, not of a sample."""
    rows_NS = stack_samples(found)
    mean_N, norm_N = rows_NS.mean(1), torch.linalg.vector_norm(rows_NS, dim=1)
    columns = {"rms": norm_N / SAMPLE**0.5, "mean": mean_N, "std": spread_of(norm_N, mean_N)}
    if exact:
        norms = tensors.compute_norms(found).unbind()
        columns["rms"] = torch.stack([norm / tensor.numel() ** 0.5 for norm, tensor in zip(norms, found, strict=True)])
        columns["min"], columns["max"] = _compute_min_max(found)
    else:
        columns["min"], columns["max"] = rows_NS.amin(1), rows_NS.amax(1)
    return [Column(f"{part}_{name}", which, values) for name, values in columns.items()]


def _compute_min_max(found: list[Tensor]) -> tuple[Tensor, Tensor]:
    pairs = [torch.aminmax(tensor.real if tensor.is_complex() else tensor) for tensor in found]
    low = torch.stack([pair.min.to(torch.float32) for pair in pairs])
    return low, torch.stack([pair.max.to(torch.float32) for pair in pairs])
